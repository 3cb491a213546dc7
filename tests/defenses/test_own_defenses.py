"""Any Defense, not quantizers alone, stands before a classifier, is attacked and is audited."""

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import Linf
from vqshield.attacks.threats import threat
from vqshield.certificates import Coverage
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.noise import Draw, Stage

IMAGES, LABELS = noise_images(3, 3, 8, 8), torch.arange(3)


class Rounded(vq.Defense):
    """Few grey levels, a random one of the two nearest."""

    def __init__(self, *, levels: int = 8, seed: int | None = None) -> None:
        super().__init__(seed=seed)
        self.levels = levels

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        draw = Draw(self.seed, self.streams(images, streams))
        dither = draw.uniforms(Stage.CODEBOOK, 0, images[0].numel()).to(images).view_as(images)
        return (images * self.levels + dither).floor().clamp(max=self.levels).div(self.levels).detach()


def classifier() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4)).eval()


@pytest.fixture(params=[Rounded(seed=1), vq.GaussianNoise(sigma=0.1, seed=1)], ids=["own", "gaussian"])
def defense(request: pytest.FixtureRequest) -> vq.Defense:
    return request.param.reseeded(1)


def test_it_stands_before_a_classifier(defense: vq.Defense) -> None:
    model = vq.Defended(classifier(), defense)
    points = IMAGES.clone().requires_grad_()
    logits = model(points)
    assert torch.equal(logits, model(points, streams=torch.arange(3)))
    assert not torch.equal(logits, model(points))
    assert float(torch.autograd.grad(logits.sum(), points)[0].abs().max()) > 0
    assert torch.equal(vq.defend(classifier(), defense.reseeded(1))(IMAGES), logits)


def test_settings_are_the_attributes_of_the_constructors_own_arguments() -> None:
    class Forgetful(Rounded):
        def __init__(self, strength: float = 1.0) -> None:
            super().__init__()

    assert Rounded(levels=4, seed=1).settings() == {"levels": 4}
    with pytest.raises(InvalidInputError, match="Forgetful has no attribute 'strength'"):
        Forgetful().settings()


def test_it_is_attacked(defense: vq.Defense) -> None:
    found = threat("pgd:steps=2,eot=2", Linf(0.1))(classifier(), defense, IMAGES, LABELS)
    assert float((found - IMAGES).abs().max()) == pytest.approx(0.02, abs=0.1)
    assert not torch.equal(found, IMAGES)


def test_a_surrogate_of_quantizers_says_that_it_needs_one(defense: vq.Defense) -> None:
    message = f"surrogate='score' needs a quantizer such as SWRD, not {type(defense).__name__}"
    with pytest.raises(InvalidInputError, match=message):
        vq.Defended(classifier(), defense, surrogate="score")
    with pytest.raises(InvalidInputError, match=message):
        threat("pgd:steps=1,surrogate=score", Linf(0.1))(classifier(), defense, IMAGES, LABELS)


def test_another_seed_is_another_sequence_from_the_start(defense: vq.Defense) -> None:
    first = defense(IMAGES)
    assert torch.equal(defense.reseeded(1)(IMAGES), first)
    assert not torch.equal(defense.reseeded(2)(IMAGES), first)
    assert defense.reseeded(2).settings() == defense.settings()
    with pytest.raises(InvalidInputError, match="seed=-1 should be from 0"):
        defense.reseeded(-1)


def test_a_certificate_needs_its_terms() -> None:
    with pytest.raises(InvalidInputError, match="no certificate is known for Rounded"):
        Coverage.of(**Rounded().certificate_terms())


def test_a_threat_through_a_defense_needs_one() -> None:
    with pytest.raises(InvalidInputError, match="'pgd:steps=1' attacks through a defense: give one"):
        threat("pgd:steps=1", Linf(0.1))(classifier(), None, IMAGES, LABELS)
    bare = threat("pgd:steps=1,surrogate=none", Linf(0.1))
    found = bare(classifier(), None, IMAGES, LABELS)
    assert torch.equal(found, bare(classifier(), vq.PRD(codes=3, seed=1), IMAGES, LABELS))


def test_settings_go_with_a_name_and_once() -> None:
    with pytest.raises(InvalidInputError, match=r"codes should be set in PRD\(…\) itself"):
        vq.defend(classifier(), vq.PRD(), codes=3)
    with pytest.raises(InvalidInputError, match="'codes' is set twice, in 'prd:codes=3' and next to it"):
        vq.defend(classifier(), "prd:codes=3", codes=3)
    with pytest.raises(InvalidInputError, match="defense should be a spec string such as"):
        vq.defend(classifier(), 3)  # type: ignore[arg-type]
    made = vq.defend(classifier(), "prd:codes=3", size=3, seed=1).defense
    assert made.settings() == vq.PRD(codes=3, size=3).settings()

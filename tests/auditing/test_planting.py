"""R9: what is planted is there, an attack that does nothing finds none of it, and a real one most."""

from dataclasses import dataclass

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import EOT, L2, Attack, Ball, Linf
from vqshield.attacks.threats import Threat, threat
from vqshield.auditing.planting import Features, Readouts, plant_and_find
from vqshield.core.errors import InvalidInputError

SIDE, COUNT = 16, 8
QUICK = {"inner": 15, "draws": 8, "batch": 100, "seed": 0}


def convnet() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(8 * 49, 60),
            nn.Tanh(),
            nn.Linear(60, 4),
        ).eval()


def images() -> Tensor:
    return 0.2 + 0.6 * noise_images(COUNT, 3, SIDE, SIDE)


def defense() -> vq.Defense:
    return vq.SWRD(size=2, codes=8, iterations=4, seed=1)


@dataclass(frozen=True, kw_only=True)
class Nothing(Attack):
    """Returns the images as they came."""

    ball: Ball

    def run(self, model, images: Tensor, labels: Tensor) -> Tensor:
        return images


@pytest.mark.parametrize("room", [Linf(0.1), L2(2.0)], ids=str)
def test_an_attack_that_does_nothing_finds_none_and_a_real_one_most(room: Ball) -> None:
    idle = Threat(name="nothing", level="ste", attack=Nothing(ball=room))
    real = threat("pgd:steps=15,step=0.02,eot=3" if room.norm == "linf" else "pgd:steps=15,eot=3", room)
    lazy = plant_and_find(convnet(), defense(), idle, room, images(), **QUICK)
    found = plant_and_find(convnet(), defense(), real, room, images(), **QUICK)
    assert (lazy.total, found.total) == (COUNT, COUNT)
    assert min(lazy.valid, found.valid) >= COUNT - 2, "planted images are there by construction"
    assert lazy.found == 0
    assert found.found >= found.valid - 1
    assert found.found <= found.valid <= found.total


def test_without_randomness_everything_planted_is_there_and_found() -> None:
    still = vq.RandDisc(codes=SIDE**2, sigma=0.0, tau=0.0, init="random", iterations=1, seed=1)
    found = plant_and_find(
        convnet(), still, threat("pgd:steps=20", Linf(0.1)), Linf(0.1), images(), **{**QUICK, "draws": 1}
    )
    assert (found.total, found.valid, found.found) == (COUNT, COUNT, COUNT)


def test_blind_patterns_hit_less_than_the_attack() -> None:
    found = plant_and_find(
        convnet(), defense(), threat("pgd:steps=15,step=0.02,eot=3", Linf(0.1)), Linf(0.1), images(), **QUICK
    )
    assert found.blindly < found.found


def test_features_are_what_the_last_linear_layer_is_given() -> None:
    classifier = convnet()
    features = Features(classifier, images()[:2])
    found = features(images())
    assert found.shape == (COUNT, 60)
    assert torch.equal(classifier[-1](found), classifier(images()))
    assert not classifier[-1]._forward_hooks, "no hook stays behind"


def test_no_hook_stays_behind_after_an_error() -> None:
    classifier = convnet()
    features = Features(classifier, images()[:2])
    with pytest.raises(RuntimeError):
        features(torch.zeros(1, 5, SIDE, SIDE))
    assert not classifier[-1]._forward_hooks


def test_features_let_gradients_through() -> None:
    pixels = images().requires_grad_()
    (gradient,) = torch.autograd.grad(Features(convnet(), images()[:2])(pixels).sum(), pixels)
    assert float(gradient.abs().max()) > 0


def test_a_classifier_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no linear layer whose input could serve as features"):
        Features(nn.Conv2d(3, 4, 3), images()[:2])


class WithMore(nn.Module):
    """A classifier with linear layers that its answers do not depend on: unused, ignored, multiplied by 0."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(60, 4), convnet()[:-1]
        self.ignored, self.silent, self.unused = nn.Linear(60, 3), nn.Linear(60, 4), nn.Linear(7, 2)

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(images)
        logits = self.head(features)
        self.ignored(features)
        return logits + 0 * self.silent(2 * features)


def test_features_are_those_of_a_layer_that_the_answers_depend_on() -> None:
    classifier = WithMore().eval()
    found = Features(classifier, images()[:2])(images())
    assert torch.equal(classifier.head(found), classifier(images()))
    assert not any(layer._forward_hooks for layer in classifier.modules())


def test_a_random_classifier_has_features_too() -> None:
    classifier = nn.Sequential(*convnet()[:-1], nn.Dropout(0.5), convnet()[-1]).train()
    state = torch.random.get_rng_state()
    assert Features(classifier, images()[:2])._last == [classifier[-1]]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_where_no_linear_layer_matters_that_is_said() -> None:
    class Ignoring(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ignored = nn.Linear(SIDE, 2)

        def forward(self, images: Tensor) -> Tensor:
            self.ignored(images)
            return images.flatten(1)[:, :2]

    with pytest.raises(InvalidInputError, match="depend on none of those"):
        Features(Ignoring(), images()[:2])


def test_every_image_is_read_by_its_own_readout_in_every_draw() -> None:
    features = Features(convnet(), images()[:2])
    weights, offsets = noise_images(COUNT, 60) - 0.5, noise_images(COUNT, seed=1)
    readouts = Readouts(features, weights, offsets)
    logits = EOT(readouts, draws=3)(images())
    expected = (features(images()) * weights).sum(1) + offsets
    for draw in logits:
        assert torch.allclose(draw[:, 1], expected, atol=1e-5)
        assert not draw[:, 0].any()


def test_planting_repeats_with_its_seeds() -> None:
    real = threat("pgd:steps=3,step=0.02", Linf(0.1))
    first, again = (
        plant_and_find(convnet(), defense(), real, Linf(0.1), images(), **QUICK) for _ in range(2)
    )
    assert first == again

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from toys import convnet

from vqshield.attacks import L2, PGD, DiverseInputs, Ensemble, Linf, Transfer
from vqshield.core.errors import InvalidInputError

images, labels = noise_images(6, 3, 16, 16), torch.arange(6) % 5


def test_images_are_those_found_on_the_source_and_the_target_is_never_asked() -> None:
    def target(_: Tensor) -> Tensor:
        raise AssertionError("asked")

    attack, source = PGD(ball=Linf(0.05), steps=4), convnet()
    found = Transfer(attack=attack, source=source)(target, images, labels)
    assert torch.equal(found, attack(source, images, labels))
    assert not torch.equal(found, images)


def test_the_ball_is_the_attacks_and_the_source_is_left_as_it_was() -> None:
    source = convnet().train()
    transfer = Transfer(attack=PGD(ball=L2(0.5), steps=2), source=source)
    assert transfer.ball == L2(0.5)
    found = transfer(convnet(seed=1), images, labels)
    assert float((found - images).flatten(1).norm(dim=1).max()) <= 0.5 + 1e-6
    assert source.training
    assert all(p.requires_grad and p.grad is None for p in source.parameters())


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"attack should be an Attack such as PGD\(\.\.\.\), not str"):
        Transfer(attack="pgd", source=convnet())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="source should be a model, not int"):
        Transfer(attack=PGD(ball=Linf(0.1)), source=3)  # type: ignore[arg-type]


def test_diverse_inputs_shrink_an_image_into_a_black_frame() -> None:
    seen = []

    def model(images: Tensor) -> Tensor:
        seen.append(images)
        return images.flatten(1)[:, :2]

    white = torch.ones(64, 1, 12, 10)
    diverse = DiverseInputs(model, probability=0.5, least=0.5, seed=3)
    diverse(white)
    filled = seen[0].mean((1, 2, 3))
    assert 0.25 < float((filled == 1).double().mean()) < 0.75, "about half are shown as they are"
    assert float(filled.min()) < 0.5
    assert bool(((seen[0] == 0) | (seen[0] - 1).abs().lt(1e-6)).all()), "nothing but image and frame"
    diverse(white)
    assert not torch.equal(seen[0], seen[1]), "every call is another"
    DiverseInputs(model, probability=0.5, least=0.5, seed=3)(white)
    assert torch.equal(seen[0], seen[2]), "and a seed repeats them"
    DiverseInputs(model, probability=0.0)(white)
    assert torch.equal(seen[3], white)


def test_diverse_inputs_keep_the_picture_and_pass_gradients_on() -> None:
    """Shrunk by interpolation: a ramp stays a ramp, and every pixel has a share in what is seen."""
    ramp = torch.linspace(0, 1, 16).expand(8, 1, 16, 16).clone().requires_grad_()
    held = {}

    def model(images: Tensor) -> Tensor:
        held["seen"] = images
        return images.sum((2, 3)).expand(-1, 2)

    logits = DiverseInputs(model, probability=1.0, least=0.6, seed=1)(ramp)
    for picture in held["seen"].detach()[:, 0]:
        row = picture[picture.sum(1) > 0][0]
        inside = row[row > 0]
        assert bool((inside.diff() > 0).all())
        assert float(inside.diff().std()) < 0.02
    (slope,) = torch.autograd.grad(logits.sum(), ramp)
    assert bool((slope[:, :, 2:-2, 2:-2] > 0).all())


def test_an_ensemble_answers_with_the_mean_of_its_models() -> None:
    one, other = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = noise_images(4, 3, 2, 2)
    assert torch.allclose(Ensemble([one, other])(images), (one(images) + other(images)) / 2)
    with pytest.raises(InvalidInputError, match="at least one"):
        Ensemble([])

import pytest
import torch
from conftest import noise_images
from torch import Tensor
from toys import convnet

from vqshield.attacks import L2, PGD, Linf, Transfer

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

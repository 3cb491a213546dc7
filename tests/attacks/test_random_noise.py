import pytest
import torch
from conftest import noise_images
from toys import convnet

from vqshield.attacks import L2, PGD, Linf, RandomNoise, margin

images = 0.4 + 0.2 * noise_images(8, 3, 16, 16)
labels = torch.arange(8) % 5


def test_corners_change_every_value_by_the_same_amount() -> None:
    change = RandomNoise(ball=Linf(0.1), tries=1)(convnet(), images, labels) - images
    assert torch.allclose(change.abs(), torch.full_like(change, 0.1), atol=1e-6)
    assert float(change.sign().mean().abs()) < 0.05
    change = RandomNoise(ball=L2(0.5), tries=1)(convnet(), images, labels) - images
    assert torch.allclose(change.abs(), torch.full_like(change, 0.5 / 768**0.5), atol=1e-6)


def test_points_fill_the_ball() -> None:
    change = RandomNoise(ball=Linf(0.1), tries=1, kind="points")(convnet(), images, labels) - images
    assert float(change.std()) == pytest.approx(0.1 / 3**0.5, rel=0.03)
    found = RandomNoise(ball=L2(0.5), tries=1, kind="points")(convnet(), images, labels)
    assert torch.allclose((found - images).flatten(1).norm(dim=1), torch.full((8,), 0.5), atol=1e-5)


@pytest.mark.parametrize("kind", ["corners", "points"])
def test_more_tries_do_better_and_stay_behind_pgd(kind: str) -> None:
    model = convnet()

    def worth(attack) -> torch.Tensor:
        return margin(model(attack(model, images, labels)), labels).detach()

    few, many = (worth(RandomNoise(ball=Linf(0.05), tries=n, kind=kind)) for n in (1, 20))
    assert bool((many >= few).all())
    assert float(many.mean()) > float(few.mean())
    assert bool((worth(PGD(ball=Linf(0.05))) > many).all())


def test_a_seed_and_a_place_decide() -> None:
    same = images[:1].repeat(2, 1, 1, 1)
    found = RandomNoise(ball=Linf(0.1), tries=1, seed=1)(convnet(), same, labels[:2])
    assert not torch.equal(found[0], found[1])
    alone = RandomNoise(ball=Linf(0.1), tries=1, seed=1)(convnet(), same[:1], labels[:1])
    assert torch.equal(alone[0], found[0])


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="tries=0 should be >= 1"):
        RandomNoise(ball=Linf(0.1), tries=0)
    with pytest.raises(ValueError, match="kind='edges' is unknown; choose one of corners, points"):
        RandomNoise(ball=Linf(0.1), kind="edges")

import re

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from toys import convnet, two_classes

import vqshield as vq
from vqshield.attacks import APGD, EOT, PGD, InBasis, Linf, basis, list_bases
from vqshield.attacks.bases import Basis, Blocks, Clusters, LowFrequencies, Pixels

NUMBERED = ["dct1", "dct3", "dct100", "block1", "block2", "block8", "clusters1", "clusters2", "clusters3"]
NAMES = [*list_bases(), *NUMBERED]
SHAPES = [(3, 8, 8), (1, 7, 10), (2, 5, 5)]


@pytest.mark.parametrize("name", [*NAMES, "clusters2:codes=3"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_basis_is_an_orthogonal_projection_of_each_image_alone(name: str, shape) -> None:
    images = noise_images(4, *shape).double()
    one, other = (noise_images(4, *shape, seed=s).double() - 0.5 for s in (1, 2))
    chosen = basis(name)
    projected = chosen.project(one, images)
    assert projected.shape == one.shape
    assert torch.allclose(chosen.project(projected, images), projected, atol=1e-12), "not idempotent"
    left = (projected * other).flatten(1).sum(1)
    right = (one * chosen.project(other, images)).flatten(1).sum(1)
    assert torch.allclose(left, right, atol=1e-12), "not self-adjoint"
    alone = torch.cat([chosen.project(g[None], i[None]) for g, i in zip(one, images, strict=True)])
    assert torch.allclose(alone, projected, atol=1e-12), "depends on the batch"
    order = torch.tensor([2, 0, 3, 1])
    assert torch.allclose(chosen.project(one[order], images[order]), projected[order], atol=1e-12)


def test_low_frequencies_are_those_of_the_cosine_transform() -> None:
    scipy_fft = pytest.importorskip("scipy.fft")
    gradient = noise_images(2, 3, 9, 12).double() - 0.5
    spectrum = scipy_fft.dctn(gradient.numpy(), axes=(2, 3), norm="ortho")
    spectrum[:, :, 4:] = 0
    spectrum[:, :, :, 4:] = 0
    expected = torch.from_numpy(scipy_fft.idctn(spectrum, axes=(2, 3), norm="ortho"))
    assert torch.allclose(basis("dct4").project(gradient, gradient), expected, atol=1e-12)


def test_the_dimension_of_each_space_is_as_named() -> None:
    identity = torch.eye(3 * 6 * 10, dtype=torch.float64).view(-1, 3, 6, 10)
    images = noise_images(1, 3, 6, 10).double().expand_as(identity)
    expected = {"pixels": 180, "dct4": 48, "dct8": 3 * 6 * 8, "block4": 3 * 2 * 3, "clusters2:codes=5": 60}
    for name, dimension in expected.items():
        trace = basis(name).project(identity, images).flatten(1).diagonal().sum()
        assert float(trace) == pytest.approx(dimension), name


def test_blocks_are_means_and_the_last_may_be_smaller() -> None:
    gradient = torch.arange(15.0).view(1, 1, 3, 5)
    expected = torch.tensor([[3, 3, 5, 5, 6.5], [3, 3, 5, 5, 6.5], [10.5, 10.5, 12.5, 12.5, 14]])
    assert torch.equal(basis("block2").project(gradient, gradient)[0, 0], expected)


def test_patches_of_a_cluster_move_together() -> None:
    """Two kinds of patches, flat black and flat white: each kind gets the mean of its own gradients."""
    kinds = torch.tensor([[0, 1, 0], [1, 1, 0]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    images = kinds.float().expand(1, 3, 4, 6)
    gradient = noise_images(1, 3, 4, 6, seed=3)
    moved = Clusters(size=2, codes=2).project(gradient, images)
    for kind in (0, 1):
        tiles = [(r, c) for r in (0, 2) for c in (0, 2, 4) if int(kinds[r, c]) == kind]
        mean = torch.stack([gradient[0, :, r : r + 2, c : c + 2] for r, c in tiles]).mean(0)
        for r, c in tiles:
            assert torch.allclose(moved[0, :, r : r + 2, c : c + 2], mean, atol=1e-6)


def test_more_clusters_than_patches_is_all_patches() -> None:
    images, gradient = noise_images(2, 1, 4, 4), noise_images(2, 1, 4, 4, seed=1)
    assert torch.allclose(basis("clusters2").project(gradient, images), gradient, atol=1e-6)


def test_the_forward_pass_is_the_models_own() -> None:
    model, images = convnet(), noise_images(3, 3, 16, 16)
    for name in NAMES:
        assert torch.equal(InBasis(model, name)(images), model(images))
        assert torch.equal(InBasis(model, name)(images.clone().requires_grad_()), model(images))


@pytest.mark.parametrize("name", ["dct4", "block4", "clusters2"])
@pytest.mark.parametrize("attack", [PGD, APGD])
def test_gradients_and_attacks_stay_in_the_basis(name: str, attack) -> None:
    model, weight = two_classes(3, 8, 8)
    images, labels = 0.3 + 0.4 * noise_images(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    wrapped = InBasis(model, name)
    moving = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(wrapped(moving)[:, 0].sum(), moving)
    expected = basis(name).project(weight.expand_as(images), images)
    assert torch.allclose(gradient, expected, atol=1e-6)
    # One step: the clusters of the iterates after it may be others.
    found = attack(ball=Linf(0.05), steps=1, random_start=False)(wrapped, images, labels)
    assert torch.equal((images - found).sign(), expected.sign())


def test_it_goes_around_or_into_eot_and_a_defense() -> None:
    defended = vq.defend(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), "prd", codes=6, seed=1)
    images, labels = noise_images(2, 3, 8, 8), torch.tensor([0, 1])
    for model in (InBasis(EOT(defended, draws=3), "clusters2"), EOT(InBasis(defended, "dct4"), draws=3)):
        assert model(images).shape == (3, 2, 4)
        assert not torch.equal(PGD(ball=Linf(0.1), steps=2)(model, images, labels), images)


def test_names_give_the_bases_they_say() -> None:
    expected: dict[str, Basis] = {
        "pixels": Pixels(), "dct": LowFrequencies(8), "dct8": LowFrequencies(8), "dct16": LowFrequencies(16),
        "block": Blocks(4), "block2": Blocks(2), "block8": Blocks(8), "clusters": Clusters(2, 25),
        "clusters3": Clusters(3, 25), "clusters2:codes=70": Clusters(2, 70), "dct:count=5": LowFrequencies(5),
    }  # fmt: skip
    for name, chosen in expected.items():
        assert basis(name) == chosen
    assert InBasis(convnet(), Blocks(2)).basis == Blocks(2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wavelets", "basis='wavelets' is unknown; choose one of block, clusters, dct, pixels"),
        ("8x8", "'8x8' does not start with a name"),
        ("dct0", "count=0 should be >= 1"),
        ("block0", "side=0 should be >= 1"),
        ("clusters0", "size=0 should be >= 1"),
        ("clusters2:codes=0", "codes=0 should be >= 1"),
        ("clusters2:k=5", "clusters has no setting 'k'; it has size, codes"),
        ("pixels2", "basis='pixels2' takes no number; write pixels"),
        ("dct-8", "basis='dct-8' is unknown"),
        (8, "basis should be a name, not int"),
    ],
)
def test_bad_names_are_named(name, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        basis(name)
    with pytest.raises(ValueError, match=re.escape(message)):
        InBasis(convnet(), name)


def test_a_gradient_is_not_asked_for_where_none_is_wanted() -> None:
    class Strict(Basis):
        def project(self, gradient: Tensor, images: Tensor) -> Tensor:
            raise AssertionError("asked")

    InBasis(convnet(), Strict())(noise_images(1, 3, 16, 16))

"""Each control does what its docstring says, checked against the plainest way to say it."""

import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import noise_images
from PIL import Image
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import JPEG, BitDepth, EssentialFeatures, MedianFilter, ResizePad, TotalVariation


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_bit_depth_rounds_to_the_nearest_level(bits: int) -> None:
    images = noise_images(2, 3, 5, 5)
    found, levels = BitDepth(bits=bits)(images), torch.linspace(0, 1, 2**bits)
    assert float((found - images).abs().max()) <= 0.5 / (2**bits - 1) + 1e-6
    assert float((found[..., None] - levels).abs().amin(-1).max()) < 1e-6


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_median_is_the_middle_of_the_neighbourhood(size: int) -> None:
    images = noise_images(1, 2, 6, 7)
    found, (before, after) = MedianFilter(size=size)(images), ((size - 1) // 2, size // 2)
    padded = F.pad(images, (before, after, before, after), mode="reflect")
    for row in range(6):
        for column in range(7):
            window = padded[0, :, row : row + size, column : column + size].flatten(1)
            middle = window.sort(1).values[:, (size * size - 1) // 2]
            assert torch.equal(found[0, :, row, column], middle)


def test_jpeg_is_what_pillow_reads_back(natural: Tensor) -> None:
    file = io.BytesIO()
    pixels = (natural[0] * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    Image.fromarray(pixels).save(file, "JPEG", quality=40)
    expected = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) / 255
    assert torch.equal(JPEG(quality=40)(natural[:1])[0], expected)
    with pytest.raises(InvalidInputError, match=r"\(1, 2, 8, 8\) should have 1 or 3 channels"):
        JPEG()(torch.rand(1, 2, 8, 8))


def test_the_surrogate_of_jpeg_is_nearer_to_it_than_the_identity(natural: Tensor) -> None:
    jpeg, smooth = JPEG(quality=90), natural[:16]
    file = jpeg(smooth)
    imitated = jpeg.surrogate(smooth, streams=torch.arange(16))
    assert float((imitated - file).square().mean()) < float((smooth - file).square().mean())


def test_resize_and_pad_keeps_the_image_inside_a_black_border() -> None:
    images = torch.ones(40, 1, 10, 10)
    found = ResizePad(smallest=0.5, seed=1)(images)[:, 0]
    sides = (found.amax(2) > 0).sum(1)
    assert torch.equal(sides, (found.amax(1) > 0).sum(1))
    assert torch.equal(found.sum((1, 2)), (sides * sides).float())
    assert set(sides.tolist()) == {5, 6, 7, 8, 9, 10}
    assert torch.equal(ResizePad(smallest=1.0)(images), images)


def test_total_variation_solves_its_problem(natural: Tensor) -> None:
    images, weight = natural[:2].double(), 0.1

    def objective(found: Tensor) -> float:
        below, beside = F.pad(found.diff(dim=2), (0, 0, 0, 1)), F.pad(found.diff(dim=3), (0, 1))
        variation = (below.square() + beside.square()).sqrt().sum()
        return float((found - images).square().sum() / 2 + weight * variation)

    found = TotalVariation(weight=weight, rounds=200)(images)
    least = objective(found)
    assert least < objective(TotalVariation(weight=weight, rounds=3)(images)) < objective(images)
    for seed in range(5):
        moved = found + 1e-3 * (noise_images(*images.shape, seed=seed).double() - 0.5)
        assert objective(moved) > least
    assert torch.equal(TotalVariation(weight=0)(images), images)


def test_essential_features_spares_edges_and_leaves_few_colours(natural: Tensor) -> None:
    found = EssentialFeatures(codes=5, seed=1)(natural[:3])
    assert [len(each.flatten(1).unique(dim=1).T) for each in found] == [5, 5, 5]
    step = torch.zeros(1, 3, 12, 12)
    step[..., 6:] = 1
    assert float((EssentialFeatures(codes=2, seed=1)(step) - step).abs().max()) < 0.01
    with pytest.raises(InvalidInputError, match="codes=5 should be at most the number of patches n=4"):
        EssentialFeatures(codes=5)(torch.rand(1, 3, 2, 2))

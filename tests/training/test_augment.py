import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from vqshield.core.errors import InvalidInputError
from vqshield.training.augment import crop_and_flip, cutout


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    channels=st.integers(1, 3),
    padding=st.integers(0, 2),
    flip=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_every_result_is_a_crop_of_the_padded_image(size, channels, padding, flip, seed):
    images = torch.rand(4, channels, *size, generator=generator(seed))
    results = crop_and_flip(images, padding=padding, flip=flip, generator=generator(seed))
    padded = F.pad(images, (padding,) * 4, mode="reflect") if padding else images
    for image, result in zip(padded, results, strict=True):
        windows = [
            image[:, top : top + size[0], left : left + size[1]]
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
        ]
        candidates = windows + [window.flip(2) for window in windows] if flip else windows
        assert any(torch.equal(result, candidate) for candidate in candidates)


def test_all_shifts_and_both_flips_occur():
    images = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).expand(2000, 1, 8, 8)
    results = crop_and_flip(images, padding=2, flip=True, generator=generator())
    assert results.dtype == torch.uint8
    assert len(results.flatten(1).unique(dim=0)) == 5 * 5 * 2


def test_flip_off_never_mirrors():
    images = torch.arange(64).reshape(1, 1, 8, 8).expand(200, 1, 8, 8)
    results = crop_and_flip(images, padding=0, flip=False, generator=generator())
    assert torch.equal(results, images)


@given(size=st.integers(0, 8), seed=st.integers(0, 1000))
def test_cutout_paints_one_square_and_nothing_else(size, seed):
    images = torch.full((5, 2, 8, 8), 9, dtype=torch.uint8)
    results = cutout(images, size=size, fill=torch.tensor([1.0, 2.0]), generator=generator(seed))
    painted = results != 9
    assert torch.equal(painted[:, 0], painted[:, 1])
    assert set(results[:, 0].unique().tolist()) <= {1, 9}
    for mask in painted[:, 0]:
        rows, columns = mask.any(1), mask.any(0)
        assert torch.equal(mask, rows[:, None] & columns[None, :])
        assert rows.sum() <= size
        assert columns.sum() <= size
        assert bool(mask.any()) == (size > 0)


def test_equal_generators_give_equal_results_and_the_global_one_is_left_alone():
    images = torch.randint(0, 256, (16, 3, 8, 8), dtype=torch.uint8, generator=generator())
    before = torch.get_rng_state()
    first, second = (
        cutout(
            crop_and_flip(images, padding=4, flip=True, generator=source),
            size=4,
            fill=torch.zeros(3),
            generator=source,
        )
        for source in (generator(5), generator(5))
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_impossible_sizes_are_named():
    images = torch.zeros(1, 1, 4, 6)
    with pytest.raises(InvalidInputError, match=r"padding=4 should be from 0 to 3"):
        crop_and_flip(images, padding=4, flip=False, generator=generator())
    with pytest.raises(InvalidInputError, match=r"cutout=9.*from 0 to 8"):
        cutout(images, size=9, fill=torch.zeros(1), generator=generator())

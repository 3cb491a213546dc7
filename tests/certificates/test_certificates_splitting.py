"""The exact L1 certificate: brute force over images of few levels, random classifiers, its formula."""

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import vqshield as vq
from vqshield.certificates import certify_all_shifts, linf_radius, radius_for_linf, splitting_radius
from vqshield.core.errors import InvalidInputError

CLASSES = 3


def vote_counts(split: vq.Splitting, classifier: dict[tuple[float, ...], int], images: Tensor) -> Tensor:
    """The votes of all shifts under a classifier that is a table: any function of the split image at all."""
    counts = torch.zeros(len(images), CLASSES, dtype=torch.int64)
    for shift in range(split.levels):
        shown = split.shifted(images, torch.full((len(images),), shift))
        answers = [classifier[tuple(image.flatten().tolist())] for image in shown]
        counts[torch.arange(len(images)), answers] += 1
    return counts


def random_table(split: vq.Splitting, images: Tensor, seed: int, *, constant: float) -> dict:
    """A random class for every split image; `constant` of them class 0, so that something is certified."""
    source = torch.Generator().manual_seed(seed)
    table: dict[tuple[float, ...], int] = {}
    for shift in range(split.levels):
        for image in split.shifted(images, torch.full((len(images),), shift)):
            key = tuple(image.flatten().tolist())
            if key not in table:
                dull = float(torch.rand((), generator=source)) < constant
                table[key] = 0 if dull else int(torch.randint(CLASSES, (), generator=source))
    return table


@pytest.mark.parametrize(("scale", "base"), [(4 / 510, 100), (9 / 510, 0), (3 / 510, 252)])
@pytest.mark.parametrize("constant", [0.0, 0.7, 0.95])
def test_no_certified_vote_flips_under_any_perturbation_of_a_small_image(
    scale: float, base: int, constant: float
) -> None:
    """All 4⁴ images of 2×2 pixels with 4 levels, each against each other one."""
    split = vq.Splitting(scale=scale, pattern=3, seed=0)
    levels = torch.tensor(list(product(range(base, base + 4), repeat=4)))
    images = levels.view(-1, 1, 2, 2) / 255
    counts = vote_counts(split, random_table(split, images, 1, constant=constant), images)
    votes = certify_all_shifts(counts=counts)
    distance = (levels[:, None] - levels[None]).abs().sum(-1)  # in levels
    within = distance <= votes.steps[:, None]
    flipped = within & (votes.answers[:, None] != votes.answers[None])
    assert not bool(flipped.any())
    assert int(within.sum()) > len(images), "the case is meant to certify more than nothing"
    changed = (counts[:, None] - counts[None]).abs().amax(-1)
    assert bool((changed <= distance).all()), "each share is 1/(2λ)-Lipschitz in L1"


def test_a_classifier_that_knows_the_cuts_attains_the_radius() -> None:
    """One level further than certified, the vote may flip: the counts alone allow no larger radius."""
    split = vq.Splitting(scale=12 / 510, seed=0)
    values = 40
    image = torch.full((1, 1, 1, values), 100 / 255)
    shown = torch.cat([split.shifted(image, torch.tensor([shift])) for shift in range(12)])
    own = {tuple(each.flatten().tolist()) for each in shown}

    def votes(images: Tensor) -> Tensor:
        count = sum(
            tuple(split.shifted(images, torch.tensor([shift])).flatten().tolist()) in own
            for shift in range(12)
        )
        return torch.tensor([[count, 12 - count]])

    steps = int(certify_all_shifts(counts=votes(image)).steps)
    assert steps == 6
    # Raise, one level each, values that change cell under different shifts.
    moved, changed = image.clone(), set()
    for place in range(values):
        raised = image.clone()
        raised[..., place] += 1 / 255
        shift = next(s for s in range(12) if not torch.equal(
            split.shifted(raised, torch.tensor([s])), split.shifted(image, torch.tensor([s]))
        ))  # fmt: skip
        if shift not in changed and len(changed) < steps + 1:
            changed.add(shift)
            moved[..., place] += 1 / 255
    assert int(certify_all_shifts(counts=votes(moved)).answers) == 1


@given(
    counts=st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=5),
    lost=st.integers(0, 40),
)
def test_the_steps_are_the_most_that_cannot_change_the_answer(counts: list[list[int]], lost: int) -> None:
    found = certify_all_shifts(counts=torch.tensor(counts))

    def elected(row: list[int]) -> int:
        return row.index(max(row))  # the lowest of several

    for row, answer, steps in zip(counts, found.answers.tolist(), found.steps.tolist(), strict=True):
        assert answer == elected(row)
        for other in {0, 1, 2} - {answer}:
            for moved in {min(steps, row[answer]), min(lost, steps, row[answer])}:
                after = list(row)
                after[answer], after[other] = after[answer] - moved, after[other] + moved
                assert elected(after) == answer
        if row[answer] > steps:  # one vote more can be taken, and then some class wins
            after_all = []
            for other in {0, 1, 2} - {answer}:
                after = list(row)
                after[answer], after[other] = after[answer] - steps - 1, after[other] + steps + 1
                after_all.append(elected(after))
            assert any(each != answer for each in after_all)
        ordered = sorted(row, reverse=True)
        total = sum(row)
        if total:
            formula = splitting_radius(
                p_top=ordered[0] / total, p_second=ordered[1] / total, scale=total / 510
            )
            assert formula - 1 / 255 - 1e-12 <= steps / 255 <= formula + 1e-12


def test_real_valued_images_are_covered_half_as_far() -> None:
    votes = certify_all_shifts(counts=torch.tensor([[10, 1], [1, 10]]))
    assert votes.answers.tolist() == [0, 1]
    assert votes.steps.tolist() == [4, 4]
    assert votes.real_radii.tolist() == [5 / 510, 5 / 510]
    split = vq.Splitting(scale=11 / 510, seed=0)
    source = torch.Generator().manual_seed(0)
    image = torch.randint(5, 250, (1, 1, 2, 20), generator=source) / 255
    for _ in range(200):  # L1 distance below 5/510, in any direction: at most 4 votes change
        step = torch.rand(image.shape, generator=source) * (torch.rand(image.shape, generator=source) < 0.2)
        signs = torch.rand(image.shape, generator=source).round() * 2 - 1
        moved = image + step * signs * (4.999 / 510) / step.sum().clamp(min=1e-9)
        changed = sum(
            not torch.equal(split.shifted(moved, torch.tensor([s])), split.shifted(image, torch.tensor([s])))
            for s in range(split.levels)
        )
        assert changed <= 4


def test_what_radii_say_of_linf() -> None:
    assert radius_for_linf(eps=8 / 255, values=3072, norm="l1") == pytest.approx(8 / 255 * 3072)
    assert radius_for_linf(eps=8 / 255, values=3072, norm="l2") == pytest.approx(8 / 255 * 3072**0.5)
    for norm in ("l1", "l2"):
        needed = radius_for_linf(eps=0.03, values=48, norm=norm)
        assert linf_radius(radius=needed, values=48, norm=norm) == pytest.approx(0.03)
        corner = torch.full((48,), 0.03).double()
        assert float(corner.norm(p=1 if norm == "l1" else 2)) == pytest.approx(needed)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (torch.tensor([[1.0, 2.0]]), "dtype torch.float32 should be whole numbers"),
        (torch.tensor([1, 2]), "shape \\(2,\\)"),
        (torch.tensor([[1], [2]]), "2 classes or more"),
        (torch.tensor([[1, -2]]), "counts contain -2"),
    ],
)
def test_counts_that_cannot_be_are_named(counts: Tensor, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        certify_all_shifts(counts=counts)

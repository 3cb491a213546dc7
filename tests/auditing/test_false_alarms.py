"""How often luck fails an honest audit: the decisions alone, on thousands of simulated audits.

The hardest honest case: every attack leaves exactly as much as every other, so that all comparisons stand at
their limits. Real audits are farther from them: paper/results/false-alarms-audit.json.
"""

import pytest
import torch
from torch import Tensor

from vqshield.auditing import FAIL, PASS, POWER, SUSPICIOUS, Flag, Uncertain, flags
from vqshield.auditing.gradients import Differences, sign_agreement
from vqshield.auditing.planting import Planted
from vqshield.models.draws import Draws

AUDITS = 200
RUNS = 5


class Luck:
    """Draws of images that every attack leaves with the same chance."""

    def __init__(self, images: int, *, random: bool, low: bool, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        drawn = torch.rand(images, generator=self._random).double()
        self._chance = 0.1 * drawn if low else (1 + torch.cos(torch.pi * drawn)) / 2  # most near 0 or 1
        self._runs = RUNS if random else 1  # a model without randomness: an attack wins an image or not

    def left(self) -> Draws:
        drawn = torch.rand(self._runs, len(self._chance), generator=self._random)
        wrong = (drawn >= self._chance).long().expand(RUNS if self._runs == 1 else -1, -1)
        return Draws(wrong, torch.zeros(len(self._chance), dtype=torch.int64))

    def audit(self) -> list[Flag]:
        reported, natural, ignorant, usual = (self.left() for _ in range(4))
        count = len(self._chance)
        found = int((torch.rand(min(24, count), generator=self._random) < 0.95).sum())
        return [
            flags.monotone("R2", "steps", [(5, self.left()), (10, self.left()), (20, usual)]),
            flags.monotone("R3", "eps", [(1, self.left()), (2, usual), (4, self.left())]),
            flags.without_gradients(reported, {"transfer": ignorant, "square": self.left()}),
            flags.below_natural(reported, natural),
            flags.noise_is_weaker(self.left(), reported),
            flags.draws_suffice(usual, self.left(), 5),
            flags.knowing_helps(reported, ignorant, self.left(), knows=True),
            flags.planted(Planted(min(24, count), min(24, count), found, 0)),
            flags.as_good_elsewhere("mirrored", [(natural, self.left()), (usual, self.left())]),
        ]


@pytest.mark.parametrize("random", [True, False])
@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("images", [20, 50, 200])
def test_at_most_two_audits_in_a_hundred_fail_by_luck(images: int, low: bool, random: bool) -> None:
    failed = [
        any(
            flag.outcome in (FAIL, SUSPICIOUS)
            for flag in Luck(images, random=random, low=low, seed=seed).audit()
        )
        for seed in range(AUDITS)
    ]
    assert sum(failed) <= 0.02 * AUDITS


@pytest.mark.parametrize("name", ["R2", "R4", "R7", "R8"])
def test_nine_of_ten_honest_audits_pass_each_comparison(name: str) -> None:
    """With several comparisons in a check, which share draws; those of one are in test_flags."""
    passed = 0
    for seed in range(AUDITS):
        found = Luck(POWER[name][0], random=False, low=False, seed=seed).audit()
        passed += next(flag.outcome == PASS for flag in found if flag.name == name)
    assert passed >= 0.84 * AUDITS, "nine tenths, less three standard errors"


def test_r1_at_its_limit_fails_as_rarely() -> None:
    random = torch.Generator().manual_seed(1)
    for images in (20, 50, 200):
        lefts = [
            Draws((torch.rand(1, images, generator=random) >= 0.01).long(), torch.zeros(images).long())
            for _ in range(1000)
        ]
        assert sum(flags.unbounded(each, 0.5).outcome == FAIL for each in lefts) <= 5


@pytest.mark.parametrize("images", [20, 50])
def test_a_flattering_figure_is_still_caught(images: int) -> None:
    """95 % where a probe leaves nothing, 70 % where it leaves 10 %: whatever the luck."""
    random = torch.Generator().manual_seed(2)
    for reported, probe in ((0.95, 0.0), (0.7, 0.05)):
        for _ in range(100):
            draws = [
                Draws(
                    (torch.rand(RUNS, images, generator=random) >= share).long(), torch.zeros(images).long()
                )
                for share in (reported, reported, probe)
            ]
            assert flags.knowing_helps(*draws, knows=True).outcome == FAIL


def measured(truth: float, noise: float, flipped: float, seed: int) -> tuple[Differences, list[Tensor]]:
    """24 images of very different losses, four directions; gradients of that correlation with the truth."""
    random = torch.Generator().manual_seed(seed)
    images, directions, values = 24, 4, 64

    def normals(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).double()

    scale = torch.exp(1.5 * normals(images))
    signs = normals(directions, images, 1, 8, 8).sign()
    true = scale[:, None, None, None] * normals(images, 1, 8, 8)
    wrong = scale[:, None, None, None] * normals(images, 1, 8, 8)
    believed = truth * true + (1 - truth**2) ** 0.5 * wrong
    believed[torch.rand(images, generator=random) < flipped] *= -1
    changes = 0.01 * (signs * true).flatten(2).sum(2)
    spread = noise * 0.01 * scale * values**0.5
    halves = [believed + noise * scale[:, None, None, None] * normals(images, 1, 8, 8) for _ in range(2)]
    found = Differences(
        images=torch.full((images, 1, 8, 8), 0.5).double(), labels=torch.zeros(images).long(), signs=signs,
        step=0.01, draws=32, changes=changes + spread * normals(directions, images),
        variances=(spread**2).expand(directions, images),
    )  # fmt: skip
    return found, halves


def judged(*, truth: float, noise: float, flipped: float, seed: int) -> Flag:
    places = [measured(truth, noise, flipped, 2 * seed + place) for place in range(2)]
    agreements = {str(place): found.agreement(halves) for place, (found, halves) in enumerate(places)}
    signs: Uncertain = sign_agreement([(found, (a + b) / 2) for found, (a, b) in places])
    return flags.gradients_agree(agreements, signs, {})


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.5])
def test_r10_passes_good_gradients_however_few_the_draws(noise: float) -> None:
    found = [judged(truth=0.92, noise=noise, flipped=0.0, seed=seed).outcome for seed in range(150)]
    assert found.count(FAIL) <= 1
    if noise <= 0.3:
        assert found.count(PASS) >= 0.9 * len(found)


@pytest.mark.parametrize(("truth", "flipped"), [(0.0, 0.0), (0.25, 0.0), (-0.9, 0.0), (0.95, 0.5)])
def test_r10_catches_gradients_that_lead_nowhere_or_half_astray(truth: float, flipped: float) -> None:
    found = [judged(truth=truth, noise=0.3, flipped=flipped, seed=seed).outcome for seed in range(50)]
    assert found.count(FAIL) >= 40
    assert found.count(PASS) <= 0.1 * len(found)

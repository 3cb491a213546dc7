import math
import re
import statistics
from itertools import combinations

import pytest
import torch
from conftest import noise_images
from hypothesis import given
from hypothesis import strategies as st

import vqshield as vq
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import create
from vqshield.models.draws import Draws, accuracy_after_tries, draw_predictions, outputs, strongest


def test_mean_and_sample_standard_deviation_over_runs() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    predictions = torch.stack([labels, labels.flip(0), torch.tensor([0, 1, 0, 0])])
    draws = Draws(predictions, labels)
    assert draws.accuracies.tolist() == [1.0, 0.0, 0.5]
    assert draws.mean == 0.5
    assert draws.std == 0.5
    assert Draws(predictions[:1], labels).std == 0.0


def test_every_image_is_asked_once_a_run_in_order() -> None:
    images = noise_images(7, 1, 2, 2)
    labels = (images.flatten(1)[:, 0] > 0.5).long()
    seen = []

    def model(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return torch.stack([0.5 - batch.flatten(1)[:, 0], batch.flatten(1)[:, 0] - 0.5], 1)

    draws = draw_predictions(model, images, labels, runs=3, batch=3)
    assert seen == [3] * 7, "draws fill the batches, whichever image they are of"
    assert draws.mean == 1.0
    assert draws.predictions.shape == (3, 7)


@pytest.mark.parametrize(("runs", "batch"), [(0, 5), (2, 0)])
def test_bad_numbers_are_named(runs: int, batch: int) -> None:
    with pytest.raises(ValueError, match="=0 should be >= 1"):
        draw_predictions(
            lambda x: x, noise_images(2, 1, 2, 2), torch.zeros(2, dtype=torch.int64), runs=runs, batch=batch
        )


def hand(answers: list[list[int]], labels: list[int]) -> Draws:
    return Draws(torch.tensor(answers), torch.tensor(labels))


def test_right_counts_the_runs_per_image() -> None:
    draws = hand([[0, 1, 2], [0, 2, 2], [0, 0, 0]], [0, 1, 2])
    assert draws.right.tolist() == [3, 1, 2]


def test_the_standard_error_is_that_of_the_images_shares() -> None:
    draws = hand([[0, 1, 2, 0], [0, 2, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0]], [0, 1, 2, 3])
    shares = [4 / 4, 1 / 4, 2 / 4, 0 / 4]
    assert draws.standard_error == pytest.approx(statistics.stdev(shares) / math.sqrt(4))
    assert draws.mean == pytest.approx(statistics.mean(shares))
    assert hand([[0], [1]], [0]).standard_error == 0.0, "of a single image nothing is known"


def test_a_vote_takes_the_most_frequent_answer_and_the_lowest_of_equals() -> None:
    answers = [[2, 0, 1], [1, 0, 2], [2, 1, 1], [1, 3, 2]]
    assert hand(answers, [1, 0, 1]).vote() == 1.0, "image 0: 1 and 2 twice each; image 2 the same"
    assert hand(answers, [2, 0, 2]).vote() == pytest.approx(1 / 3)
    assert hand(answers, [9, 9, 9]).vote() == 0.0, "a class that is never answered"


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_votes_and_worst_cases_agree_with_counting(answers: list[list[int]]) -> None:
    labels = [0, 1, 2]
    draws = hand(answers, labels)
    columns = list(zip(*answers, strict=True))
    votes = [min(set(column), key=lambda c, column=column: (-column.count(c), c)) for column in columns]
    assert draws.vote() == pytest.approx(sum(map(int.__eq__, votes, labels)) / 3)
    always = [set(column) == {label} for column, label in zip(columns, labels, strict=True)]
    assert draws.worst() == pytest.approx(sum(always) / 3)
    assert draws.worst() <= draws.mean


def test_outputs_come_in_order_whatever_the_batch() -> None:
    images = noise_images(5, 1, 2, 3)
    for batch in (1, 4, 7, 1000):
        sizes: list[int] = []

        def model(some: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(len(some))
            return some.flatten(2)

        found = outputs(model, images, runs=3, batch=batch)
        assert torch.equal(found, images.flatten(2).expand(3, 5, 1, 6))
        assert sum(sizes) == 15
        assert set(sizes[:-1]) <= {batch}, "every batch but the last is full"


def test_outputs_are_fresh_draws_without_gradients() -> None:
    images = noise_images(2, 3, 6, 6).requires_grad_()
    model = vq.Defended(lambda x: x.flatten(1), vq.PRD(codes=3, seed=1))
    found = outputs(model, images, runs=4, batch=3)
    assert not found.requires_grad
    assert len(torch.unique(found[:, 0], dim=0)) == 4
    singly = vq.PRD(codes=3, seed=1)(images.detach().repeat(4, 1, 1, 1), streams=torch.arange(8))
    assert torch.equal(found.flatten(0, 1), singly.flatten(1)), "run 0 of every image, then run 1, …"


def test_no_images_give_no_outputs() -> None:
    assert outputs(lambda x: x.mean((2, 3)), torch.empty(0, 3, 4, 4), runs=2).shape == (2, 0, 3)


def test_the_strongest_attack_is_chosen_by_selection_and_told_by_report() -> None:
    labels = [0, 0, 0]
    selection = [hand([[0, 1, 0], [0, 1, 0]], labels), hand([[1, 0, 1], [1, 0, 0]], labels)]
    report = [hand([[0, 0, 0], [0, 1, 0]], labels), hand([[1, 1, 1], [0, 1, 1]], labels)]
    best, choice = strongest(selection, report)
    assert choice.tolist() == [1, 0, 1]
    assert best.predictions.tolist() == [[1, 0, 1], [0, 1, 1]]
    assert best.labels.tolist() == labels
    lucky, _ = strongest(report, report)
    assert lucky.mean < best.mean, "choosing by the reported draws would flatter the attack"


def test_ties_go_to_the_attack_that_is_strongest_overall() -> None:
    labels = [0, 0, 0, 0]
    weak, strong, same = [[0, 1, 0, 0]], [[0, 1, 1, 1]], [[0, 1, 1, 1]]
    selection = [hand(each, labels) for each in (weak, strong, same)]
    report = [hand([[number] * 4], labels) for number in range(3)]
    best, choice = strongest(selection, report)
    assert choice.tolist() == [1, 1, 1, 1], "also where the weak one does as well; of equals the first"
    assert best.predictions.tolist() == [[1, 1, 1, 1]]


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_no_attack_leaves_less_of_an_image_than_the_chosen_one(count: int, runs: int, seed: int) -> None:
    numbers = (noise_images(count, runs, 6, seed=seed) * 3).long()
    selection = [Draws(each, torch.zeros(6, dtype=torch.int64)) for each in numbers]
    best, choice = strongest(selection, selection)
    assert torch.equal(best.right, torch.stack([each.right for each in selection]).amin(0))
    totals = [int(each.right.sum()) for each in selection]
    for image, chosen in enumerate(choice.tolist()):
        equals = [n for n in range(count) if selection[n].right[image] == best.right[image]]
        assert totals[chosen] == min(totals[n] for n in equals)


def test_a_single_attack_is_the_strongest() -> None:
    only = hand([[0, 1]], [0, 0])
    best, choice = strongest([only], [only])
    assert (best.mean, choice.tolist()) == (0.5, [0, 0])


def test_selections_and_reports_belong_together() -> None:
    one = hand([[0]], [0])
    for selection, report in (([], []), ([one], []), ([one], [one, one])):
        found = f"{len(selection)} selections and {len(report)} reports should be equally many, at least one"
        with pytest.raises(ValueError, match=found):
            strongest(selection, report)


def test_every_image_gets_a_stream_of_its_own_in_order(defense_name: str) -> None:
    defense = create(defense_name, codes=3, seed=1)
    images = noise_images(4, 3, 6, 6)
    assert [defense.streams(images[:n]).tolist() for n in (4, 1, 2)] == [[0, 1, 2, 3], [4], [5, 6]]
    given = torch.tensor([9, -3, 2**40, 9])
    assert torch.equal(defense.streams(images, given), given)
    assert defense.streams(images[:1]).tolist() == [7], "given ones use up none"


def test_without_a_seed_streams_cannot_be_foretold(defense_name: str) -> None:
    defense = create(defense_name, codes=3)
    streams = torch.cat([defense.streams(noise_images(50, 3, 6, 6)) for _ in range(2)])
    assert len(streams.unique()) == 100
    assert float((streams.abs() > 2**40).double().mean()) > 0.9, "64 bits of entropy each"


def test_streams_are_not_handed_out_for_images_that_cannot_be_cut() -> None:
    defense = vq.PRD(size=2, codes=5, seed=1)
    for images, message in (
        (noise_images(1, 3, 4, 4), "codes=5 should be at most the number of patches n=4"),
        (noise_images(1, 3, 1, 9), "size=2 should be at most min"),
        (noise_images(4, 4), "should have 4 dimensions"),
    ):
        with pytest.raises(ValueError, match=message):
            defense.streams(images)
    assert defense.streams(noise_images(1, 3, 6, 6)).tolist() == [0]


def test_another_seed_makes_the_same_defense_with_other_draws(defense_name: str) -> None:
    images = noise_images(3, 3, 9, 8)
    changed = {"codes": 4, "sigma": 0.05, "tau": 0.02, "iterations": 3, "init": "random", "tolerance": 0.1}
    defense = create(defense_name, **changed, backend="torch", memory=2**20, seed=1)
    first = defense(images)
    other = defense.reseeded(2)
    assert type(other) is type(defense)
    assert other.settings() == defense.settings()
    assert (other.backend, other.memory, other.seed) == ("torch", 2**20, 2)
    assert torch.equal(other(images), create(defense_name, **changed, backend="torch", seed=2)(images))
    assert not torch.equal(other(images), first)
    assert torch.equal(defense.reseeded(1)(images), first), "its streams are from the start"
    assert defense.streams(images[:1]).tolist() == [3], "the first defense goes on where it was"


def test_a_defense_without_a_seed_can_be_given_one() -> None:
    images = noise_images(2, 3, 6, 6)
    assert torch.equal(vq.PRD(codes=3).reseeded(5)(images), vq.PRD(codes=3, seed=5)(images))


@given(right=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_accuracy_after_tries_is_the_mean_over_all_choices_of_draws(right: list[list[bool]]) -> None:
    """Brute force: every subset of an image's draws, all of which must be right."""
    by_hand = []
    for tries in range(1, 6):
        shares = [[all(some) for some in combinations(draws, tries)] for draws in right]
        by_hand.append(statistics.mean(statistics.mean(map(float, each)) for each in shares))
    counts = torch.tensor([sum(draws) for draws in right])
    assert accuracy_after_tries(counts, 5, range(1, 6)) == pytest.approx(tuple(by_hand))


def test_accuracy_after_tries_is_unbiased_and_the_plain_power_is_not() -> None:
    """In expectation over the draws of a coin with probability p, it is p to the number of tries."""
    p, runs, tries = 0.7, 8, 3
    weights = [math.comb(runs, r) * p**r * (1 - p) ** (runs - r) for r in range(runs + 1)]
    found = [accuracy_after_tries(torch.tensor([r]), runs, (tries,))[0] for r in range(runs + 1)]
    assert sum(w * f for w, f in zip(weights, found, strict=True)) == pytest.approx(p**tries)
    assert sum(w * (r / runs) ** tries for r, w in enumerate(weights)) > p**tries + 0.01


@pytest.mark.parametrize(
    ("right", "tries", "message"),
    [
        ([3], (5,), "tries=5 should be"),
        ([3], (0,), "tries=0"),
        ([5], (1,), "from 0 to 4"),
        ([], (1,), "right=[]"),
    ],
)
def test_tries_and_counts_that_cannot_be_are_refused(right, tries, message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        accuracy_after_tries(torch.tensor(right), 4, tries)

"""Margin, distance and evidence against plain loops, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vqshield.certificates import evidence, l1_distance, margin
from vqshield.core.errors import InvalidInputError


def softmax(*shape: int, seed: int, sharp: float = 2.0) -> Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double() * sharp).softmax(-1)


def loop_margin(row: list[float], label: int) -> float:
    return row[label] - max(value for j, value in enumerate(row) if j != label)


def test_margin_and_distance_are_the_papers() -> None:
    outputs, others, labels = softmax(5, 3, 4, seed=1), softmax(3, 4, seed=2), torch.tensor([0, 3, 1])
    for draw in range(5):
        for image in range(3):
            row, other = outputs[draw, image].tolist(), others[image].tolist()
            expected = loop_margin(row, int(labels[image]))
            assert float(margin(outputs, labels)[draw, image]) == pytest.approx(expected, abs=1e-15)
            distance = sum(abs(a - b) for a, b in zip(row, other, strict=True))
            assert float(l1_distance(outputs, others)[draw, image]) == pytest.approx(distance, abs=1e-15)
    assert margin(outputs[0], labels).shape == (3,)


@pytest.mark.parametrize("draws", [1, 2, 9])
def test_evidence_is_what_loops_count(draws: int) -> None:
    reference, drawn = softmax(6, 3, seed=3), softmax(draws, 6, 3, seed=4)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    seen = evidence(reference=reference, drawn=drawn, labels=labels)
    assert seen.draws == draws
    for image in range(6):
        label, row = int(labels[image]), reference[image].tolist()
        rho = loop_margin(row, label)
        distances = [float((drawn[i, image] - reference[image]).abs().sum()) for i in range(draws)]
        cut = [min(1.0, d / rho) if rho > 0 else 1.0 for d in distances]
        mean = sum(cut) / draws
        spread = sum((z - mean) ** 2 for z in cut) / (draws - 1) if draws > 1 else 0.0
        errors = sum(loop_margin(drawn[i, image].tolist(), label) <= 0 for i in range(draws))
        assert float(seen.margin[image]) == pytest.approx(rho, abs=1e-15)
        assert float(seen.mean_l1[image]) == pytest.approx(sum(distances) / draws)
        assert float(seen.mean_truncated[image]) == pytest.approx(mean)
        assert float(seen.variance_truncated[image]) == pytest.approx(spread, abs=1e-15)
        assert int(seen.errors[image]) == errors


def test_draws_may_come_one_by_one_and_in_any_precision() -> None:
    reference, drawn, labels = softmax(4, 10, seed=5), softmax(7, 4, 10, seed=6), torch.arange(4)
    whole = evidence(reference=reference, drawn=drawn, labels=labels)
    streamed = evidence(reference=reference, drawn=(draw for draw in drawn), labels=labels)
    assert torch.equal(whole.mean_l1, streamed.mean_l1)
    assert torch.equal(whole.errors, streamed.errors)
    half = evidence(reference=reference.half(), drawn=drawn.half(), labels=labels)
    assert half.mean_l1.dtype == torch.float64
    assert torch.allclose(half.mean_l1, whole.mean_l1, atol=1e-2)


@pytest.mark.parametrize("size", [1, 4, 11])
def test_draws_may_come_some_at_a_time(size: int) -> None:
    reference, drawn, labels = (
        softmax(5, 3, seed=9),
        softmax(11, 5, 3, seed=10),
        torch.tensor([0, 1, 2, 0, 1]),
    )
    found = evidence(reference=reference, drawn=drawn.split(size), labels=labels)
    expected = evidence(reference=reference, drawn=drawn, labels=labels)
    assert found.draws == expected.draws == 11
    for name in ("margin", "mean_l1", "mean_truncated", "variance_truncated", "errors"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_a_tie_is_an_error() -> None:
    reference = torch.tensor([[0.9, 0.1]])
    seen = evidence(reference=reference, drawn=torch.full((3, 1, 2), 0.5), labels=torch.tensor([0]))
    assert seen.errors.tolist() == [3]
    assert seen.mean_truncated.tolist() == pytest.approx([1.0])


@given(st.integers(0, 10**6), st.integers(2, 12), st.floats(0.1, 8))
def test_every_error_moves_the_outputs_by_the_margin(seed: int, classes: int, sharp: float) -> None:
    reference, drawn = softmax(20, classes, seed=seed), softmax(10, 20, classes, seed=seed + 1, sharp=sharp)
    labels = reference.argmax(-1)
    wrong = margin(drawn, labels) <= 0
    far = l1_distance(drawn, reference) >= margin(reference, labels) - 1e-12
    assert bool((far | ~wrong).all())


GOOD = {"reference": softmax(2, 3, seed=7), "drawn": softmax(4, 2, 3, seed=8), "labels": torch.tensor([0, 1])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": torch.randn(2, 3)}, "not logits"),
        ({"drawn": torch.ones(4, 2, 3)}, "sum 3; give softmax outputs"),
        ({"drawn": torch.full((4, 2, 3), torch.nan)}, "drawn contain nan"),
        ({"drawn": softmax(4, 2, 5, seed=1)}, r"a draw of shape \(2, 5\) should be \(2, 3\)"),
        ({"drawn": softmax(2, 3, seed=1)}, r"a draw of shape \(3,\)"),
        ({"drawn": [softmax(1, 4, 2, 3, seed=1)]}, r"a draw of shape \(1, 4, 2, 3\)"),
        ({"drawn": []}, "0 draws"),
        ({"labels": torch.tensor([0, 3])}, "labels contain 3; they should be from 0 to 2"),
        ({"labels": torch.tensor([0])}, r"labels of shape \(1,\)"),
        ({"labels": torch.tensor([0.0, 1.0])}, "labels of type torch.float32"),
        ({"reference": torch.ones(2, 1)}, r"\(2, 1\)"),
        ({"reference": torch.ones(2, 3, dtype=torch.int64)}, "dtype torch.int64"),
    ],
)
def test_bad_outputs_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evidence(**{**GOOD, **changes})

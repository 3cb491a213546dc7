import math
import re

import pytest
import torch

from vqshield.attacks import cross_entropy, dlr, list_losses, margin
from vqshield.attacks.losses import ENOUGH, errors, loss

LOGITS = torch.tensor([[2.0, 1.0, -1.0, 0.5], [0.0, 3.0, 2.5, -2.0], [1.0, 1.0, 0.0, -1.0]])
LABELS = torch.tensor([0, 2, 1])


def test_cross_entropy_is_torchs() -> None:
    expected = torch.nn.functional.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.allclose(cross_entropy(LOGITS, LABELS), expected)
    by_hand = -math.log(math.exp(2) / sum(math.exp(v) for v in (2.0, 1.0, -1.0, 0.5)))
    assert float(cross_entropy(LOGITS, LABELS)[0]) == pytest.approx(by_hand)


def test_margin_by_hand() -> None:
    assert margin(LOGITS, LABELS).tolist() == [-1.0, 0.5, 0.0]


def test_margin_is_positive_just_where_the_answer_is_wrong_and_has_an_end() -> None:
    logits = torch.randn(500, 7, generator=torch.Generator().manual_seed(0)) * 5
    labels = torch.arange(500) % 7
    assert torch.equal(margin(logits, labels) > 0, logits.argmax(1) != labels)
    assert float(margin(logits, labels).max()) == ENOUGH


def test_dlr_by_hand() -> None:
    """(best wrong − true) / (largest − third largest)."""
    expected = [(1 - 2) / (2 - 0.5), (3 - 2.5) / (3 - 0), (1 - 1) / (1 - 0)]
    assert dlr(LOGITS, LABELS).tolist() == pytest.approx(expected)


def test_dlr_knows_neither_the_scale_nor_the_origin_of_logits() -> None:
    assert torch.allclose(dlr(LOGITS * 100 + 7, LABELS), dlr(LOGITS, LABELS), atol=1e-5)


def test_equal_logits_give_no_nan() -> None:
    flat = torch.zeros(2, 5, requires_grad=True)
    for name in list_losses():
        value = loss(name)(flat, torch.tensor([0, 3]))
        (gradient,) = torch.autograd.grad(value.sum(), flat)
        assert value.isfinite().all(), name
        assert gradient.isfinite().all(), name


@pytest.mark.parametrize("name", list_losses())
def test_draws_are_averaged_after_the_loss(name: str) -> None:
    draws = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1))
    single = torch.stack([loss(name)(draw, LABELS) for draw in draws]).mean(0)
    assert torch.allclose(loss(name)(draws, LABELS), single)
    assert torch.allclose(loss(name)(draws.view(2, 3, 3, 4), LABELS), single)
    assert loss(name)(draws, LABELS).shape == (3,)


def test_errors_are_the_share_of_wrong_draws() -> None:
    draws = torch.stack([LOGITS, -LOGITS, LOGITS])
    expected = torch.stack([(draw.argmax(1) != LABELS).float() for draw in draws]).mean(0)
    assert torch.equal(errors(draws, LABELS), expected)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"loss='dlr' needs at least 3 classes, not 2"):
        dlr(LOGITS[:, :2], torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=re.escape("logits of shape (3, 4) should be (..., 2, classes)")):
        cross_entropy(LOGITS, LABELS[:2])
    with pytest.raises(ValueError, match="loss='hinge' is unknown; choose one of cross-entropy, dlr, margin"):
        loss("hinge")

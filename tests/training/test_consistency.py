"""The consistency loss: its terms one by one, and a gradient that makes draws agree."""

import pytest
import torch
from torch.nn import functional as F

from vqshield.training.objectives import consistency_loss

SOURCE = torch.Generator().manual_seed(0)
LOGITS = torch.randn(3, 5, 4, generator=SOURCE).double()
LABELS = torch.tensor([0, 3, 1, 1, 2])


def test_the_terms_are_those_of_the_paper() -> None:
    shares = LOGITS.softmax(-1)
    mean = shares.mean(0)
    expected = sum(float(F.cross_entropy(each, LABELS)) for each in LOGITS) / 3
    for image in range(5):
        for draw in range(3):
            kl = sum(
                float(m) * float((m / s).log()) for m, s in zip(mean[image], shares[draw, image], strict=True)
            )
            expected += 7.0 * kl / 3 / 5
        expected += 0.4 * sum(-float(m) * float(m.log()) for m in mean[image]) / 5
    found = consistency_loss(LOGITS, LABELS, agreement=7.0, entropy=0.4)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_draws_that_agree_pay_for_their_errors_alone() -> None:
    same = LOGITS[:1].expand(2, -1, -1)
    found = consistency_loss(same, LABELS, agreement=100.0, entropy=0.0)
    assert float(found) == pytest.approx(float(F.cross_entropy(LOGITS[0], LABELS)), rel=1e-9)
    off = consistency_loss(LOGITS, LABELS, agreement=0, entropy=0)
    assert float(off) == pytest.approx(float(F.cross_entropy(LOGITS.flatten(0, 1), LABELS.repeat(3))))


def test_descent_makes_draws_agree() -> None:
    logits = LOGITS.clone().requires_grad_()
    before = float((LOGITS[0].softmax(-1) - LOGITS[1].softmax(-1)).abs().mean())
    for _ in range(50):
        (slope,) = torch.autograd.grad(consistency_loss(logits, LABELS, agreement=20.0, entropy=0.5), logits)
        logits = (logits - slope).detach().requires_grad_()
    logits = logits.detach()
    assert float((logits[0].softmax(-1) - logits[1].softmax(-1)).abs().mean()) < 0.3 * before
    assert bool(torch.isfinite(consistency_loss(1e4 * LOGITS, LABELS, agreement=10.0, entropy=0.5)))

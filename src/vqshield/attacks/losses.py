"""The losses that attacks raise, from logits (..., B, classes) and labels (B,) to one value per image, (B,).

Draws in front of the batch dimension are averaged: an attacker cannot know the next draw.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.models import calling as models

Loss = Callable[[Tensor, Tensor], Tensor]

TARGETED = "targeted-margin"
"""The loss of PGD whose restarts each climb towards another wrong class."""

ENOUGH = 5.0  # the largest margin: more would only outvote draws that are still classified correctly


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log softmax of the true class, (B,); logits are (..., B, classes), labels (B,).

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [5.0, -5.0]])
        >>> vq.attacks.cross_entropy(logits, torch.tensor([0, 1]))
        tensor([ 0.6931, 10.0000])
    """
    return _averaged(-_true(_checked(logits, labels).log_softmax(-1), labels), labels)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The best wrong logit minus the true one, at most 5; positive where the image is misclassified.

    Example:
        >>> logits = torch.tensor([[3.0, 1.0], [9.0, 1.0]])
        >>> vq.attacks.margin(logits, torch.tensor([0, 1]))
        tensor([-2.,  5.])
    """
    return _averaged(_lead(_checked(logits, labels), labels).clamp(max=ENOUGH), labels)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """The difference of logits ratio (Croce and Hein 2020): the margin, independent of the logits' scale.

    Example:
        >>> logits = torch.tensor([[3.0, 1.0, 0.0]])
        >>> vq.attacks.dlr(logits, torch.tensor([0])), vq.attacks.dlr(9 * logits, torch.tensor([0]))
        (tensor([-0.6667]), tensor([-0.6667]))
    """
    if _checked(logits, labels).shape[-1] < 3:
        raise InvalidInputError(f"loss='dlr' needs at least 3 classes, not {logits.shape[-1]}")
    ordered = logits.sort(-1, descending=True).values
    spread = ordered[..., 0] - ordered[..., 2]
    return _averaged(_lead(logits, labels) / (spread + 1e-12), labels)


def targeted_margin(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The logit of a given wrong class minus the true one, at most 5; targets (B,).

    With several near wrong classes, steps towards the best of them alternate; a climb towards each in turn
    gets further (Croce and Hein 2020, APGD-T).
    """
    lead = _true(_checked(logits, labels), targets) - _true(logits, labels)
    return _averaged(lead.clamp(max=ENOUGH), labels)


@torch.no_grad()
def wrong_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """The wrong classes of each image, those with the largest mean logits first: (classes − 1, B)."""
    if _checked(logits, labels).shape[-1] < 2:
        raise InvalidInputError(f"loss={TARGETED!r} needs at least 2 classes, not {logits.shape[-1]}")
    mean = logits.reshape(-1, *logits.shape[-2:]).mean(0)
    return mean.scatter(-1, labels[:, None], -torch.inf).argsort(-1, descending=True)[:, :-1].T


def errors(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of misclassified draws, without gradient."""
    return _averaged((_checked(logits, labels).argmax(-1) != labels).to(logits.dtype), labels)


_LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "margin": margin, "dlr": dlr}


def list_losses() -> list[str]:
    """The names of the losses.

    Example:
        >>> vq.attacks.list_losses()
        ['cross-entropy', 'margin', 'dlr']
    """
    return list(_LOSSES)


def loss(name: str) -> Loss:
    """A loss by name."""
    return _LOSSES[checks.one_of("loss", name, _LOSSES)]


def _checked(logits: Tensor, labels: Tensor) -> Tensor:
    models.check_rows(logits, len(labels))
    models.check_finite(logits)
    return logits


def _true(values: Tensor, labels: Tensor) -> Tensor:
    return values.gather(-1, labels.expand(values.shape[:-1])[..., None])[..., 0]


def _lead(logits: Tensor, labels: Tensor) -> Tensor:
    """The best wrong logit minus the true one."""
    true = labels.expand(logits.shape[:-1])[..., None]
    return logits.scatter(-1, true, -torch.inf).amax(-1) - _true(logits, labels)


def _averaged(values: Tensor, labels: Tensor) -> Tensor:
    return values.reshape(-1, len(labels)).mean(0)

"""What an attack raises. Each takes logits (..., B, classes) and labels (B,), and gives one value per image;
draws in front of the batch dimension are averaged: the loss of an attacker who cannot know the next draw.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vqshield import checks
from vqshield.errors import InvalidInputError

Loss = Callable[[Tensor, Tensor], Tensor]

ENOUGH = 5.0  # logits by which a draw is lost for good: more would only outvote draws that are not lost yet


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log softmax of the true class."""
    return _averaged(-_true(logits.log_softmax(-1), labels), labels)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """The best wrong logit less the true one, at most ENOUGH; positive where the answer is wrong."""
    return _averaged(_lead(logits, labels).clamp(max=ENOUGH), labels)


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """The difference of logits ratio (Croce and Hein 2020): the margin, whatever the logits' scale."""
    if logits.shape[-1] < 3:
        raise InvalidInputError(f"loss='dlr' needs at least 3 classes, not {logits.shape[-1]}")
    ordered = logits.sort(-1, descending=True).values
    spread = ordered[..., 0] - ordered[..., 2]
    return _averaged(_lead(logits, labels) / (spread + 1e-12), labels)


def errors(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of draws whose answer is wrong; has no gradient, but says what an attack is after."""
    return _averaged((logits.argmax(-1) != labels).to(logits.dtype), labels)


_LOSSES: dict[str, Loss] = {"cross-entropy": cross_entropy, "margin": margin, "dlr": dlr}


def losses() -> list[str]:
    """The names of the losses."""
    return list(_LOSSES)


def loss(name: str) -> Loss:
    """A loss by name."""
    return _LOSSES[checks.one_of("loss", name, _LOSSES)]


def _true(values: Tensor, labels: Tensor) -> Tensor:
    if values.shape[-2:-1] != labels.shape:
        raise InvalidInputError(
            f"logits of shape {tuple(values.shape)} should be (..., {len(labels)}, classes): a row per image"
        )
    return values.gather(-1, labels.expand(values.shape[:-1])[..., None])[..., 0]


def _lead(logits: Tensor, labels: Tensor) -> Tensor:
    """The best wrong logit less the true one."""
    true = _true(logits, labels)
    chosen = labels.expand(logits.shape[:-1])[..., None]
    return logits.scatter(-1, chosen, -torch.inf).amax(-1) - true


def _averaged(values: Tensor, labels: Tensor) -> Tensor:
    return values.reshape(-1, len(labels)).mean(0)

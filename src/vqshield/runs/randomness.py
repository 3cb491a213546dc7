"""Classifiers that are random themselves: found out, and drawn from repeatably; a digest of what is not."""

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vqshield.models.calling import differ

_ASKED = 8


def answers_vary(model: Callable[[Tensor], Tensor], images: Tensor) -> bool:
    """Whether the same images get other answers when asked again, without gradients or with them."""
    some = images[:_ASKED].detach()
    with torch.no_grad():
        first, again = model(some), model(some)
    with torch.enable_grad():
        with_gradients = model(some.clone().requires_grad_()).detach()
    return any(differ(first, each) for each in (again, with_gradients))


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Torch's own generators begin at that seed here, and are afterwards as they were.

    Nothing of vqshield draws from them; a random classifier, or another library's attack, may.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def answers_digest(answers: Tensor) -> str:
    """SHA-256 of what a model returned for each image, (N, ...), up to rounding errors.

    Each image counts with one random projection to three decimals: errors of single values average out.
    """
    values = answers.detach().double().cpu().flatten(1)
    weights = torch.rand(values.shape[1], generator=torch.Generator().manual_seed(0), dtype=values.dtype)
    sums = values @ weights / math.sqrt(len(weights))
    return hashlib.sha256((1000 * sums).round().to(torch.int64).numpy().tobytes()).hexdigest()

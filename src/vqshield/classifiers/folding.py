"""Faster forms of a trained classifier: batch norms folded into convolutions, channels last, bfloat16.

They pay off where a classifier is called thousands of times, as in attacks and certificates.
"""

import copy
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from vqshield.defended import has_hooks
from vqshield.models.calling import fold_norms

Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def folded(classifier: nn.Module) -> nn.Module:
    """A copy in eval mode whose foldable norms are gone; logits agree up to float rounding."""
    copied = copy.deepcopy(classifier).eval()
    fold_norms(copied)
    return copied


def is_folded(classifier: nn.Module) -> bool:
    """Whether `folded` made it: a norm that could be folded is gone."""
    return any(
        isinstance(getattr(module, norm), nn.Identity)
        for module in classifier.modules()
        for _, norm in getattr(module, "folds", ())
    )


def fastest_form(classifier: nn.Module) -> nn.Module:
    """A copy with folded norms, channels last: the same function up to rounding.

    A classifier with hooks is returned as it is: hooks may change its logits, and a copy would lose them.
    """
    if any(map(has_hooks, classifier.modules())):
        return classifier
    return folded(classifier).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def fast_forward(
    classifier: nn.Module, *, device: torch.device, precision: str
) -> Callable[[Tensor], Tensor]:
    """images → logits in float32, without gradients: the fastest form on a GPU; "bf16" on any device."""
    model = fastest_form(classifier) if device.type == "cuda" else classifier
    halved = precision == "bf16"

    @torch.no_grad()
    def forward(images: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=halved):
            logits: Tensor = model(images)
        return logits.float() if halved else logits

    return forward

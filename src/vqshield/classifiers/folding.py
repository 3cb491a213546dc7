"""Batch norms folded into the convolutions before them: the same function, less memory traffic.

Worth it where a trained network is called thousands of times, as an attack does.
"""

import copy

from torch import nn

from vqshield.classifiers.base import FoldableNorms
from vqshield.models.calling import fold_norms


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
        if isinstance(module, FoldableNorms)
        for _, norm in module.folds
    )

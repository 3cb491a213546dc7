"""Batch norms folded into the convolutions before them: the same function, less memory traffic.

Worth it where a trained network is called thousands of times, as an attack does.
"""

import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vqshield.classifiers.base import FoldableNorms


def folded(classifier: nn.Module) -> nn.Module:
    """A copy in eval mode whose foldable norms are gone; logits agree up to float rounding."""
    copied = copy.deepcopy(classifier).eval()
    for module in copied.modules():
        if not isinstance(module, FoldableNorms):
            continue
        for conv_name, norm_name in module.folds:
            conv, norm = getattr(module, conv_name), getattr(module, norm_name)
            with torch.no_grad():
                fused = fuse_conv_bn_eval(conv, norm)
            setattr(module, conv_name, fused.requires_grad_(conv.weight.requires_grad))
            setattr(module, norm_name, nn.Identity())
    return copied


def is_folded(classifier: nn.Module) -> bool:
    """Whether `folded` made it: a norm that could be folded is gone."""
    return any(
        isinstance(getattr(module, norm), nn.Identity)
        for module in classifier.modules()
        if isinstance(module, FoldableNorms)
        for _, norm in module.folds
    )

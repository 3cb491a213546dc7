"""Evaluations whose batch norms use each batch's own statistics, as in training mode.

A prediction then depends on the other images of the batch: this is for reproducing published numbers alone.
"""

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vqshield_paper
from vqshield.core import checks
from vqshield.core.settings import parse_spec, refuse_unknown
from vqshield.runs.batch_norm import BATCH_NORMS, RUNNING, parse_batch_norm, with_norms
from vqshield.runs.target import ClassifierId
from vqshield.training.calibration import batch_norms, check_norms
from vqshield_paper.shared_images import SharedEvaluation

BATCH = "batch"
SAME: Final = "same"


class BatchStatistics(nn.Module):
    """A classifier whose batch norms use each batch's own mean and variance, as in training mode.

    The running statistics are neither used nor changed; a single image is classified with them.

    Args:
        classifier: with batch norms that are not folded; it is copied.
        size: images per batch. A call with more is cut into equal batches of at most that many.
    """

    def __init__(self, classifier: nn.Module, size: int) -> None:
        super().__init__()
        check_norms(classifier, type(classifier).__name__)
        self.running, self.size = classifier, checks.whole("size", size, least=2)
        self.batch, self._groups = copy.deepcopy(classifier).eval(), 1
        for layer in batch_norms(self.batch).values():
            layer.forward = partial(self._normalized, layer)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes)."""
        if len(images) == 1:
            logits: Tensor = self.running(images)
            return logits
        parts = math.ceil(len(images) / self.size)
        least, longer = divmod(len(images), parts)
        first = longer * (least + 1)  # in batches with one image more
        outputs = []
        for part, self._groups in ((images[:first], longer), (images[first:], parts - longer)):
            if len(part):
                outputs.append(self.batch(part))
        return torch.cat(outputs)

    def _normalized(self, layer: Any, values: Tensor) -> Tensor:
        """Every batch by its own statistics, all of them in one call: the rest of the network is not cut."""
        groups, (count, channels, *rest) = self._groups, values.shape
        folded = values.view(groups, count // groups, channels, *rest).transpose(0, 1)
        scale, shift = (None if each is None else each.repeat(groups) for each in (layer.weight, layer.bias))
        joined = folded.reshape(count // groups, groups * channels, *rest)
        normalized = F.batch_norm(joined, None, None, scale, shift, True, eps=layer.eps)
        return normalized.view(count // groups, groups, channels, *rest).transpose(0, 1).reshape(values.shape)


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """The settings of "batch:size=100,attack=running".

    Attributes:
        size: images per batch.
        attack: which statistics attacked models use: "same", or "running".
    """

    size: int = 100
    attack: Literal["same", "running"] = SAME

    @classmethod
    def of(cls, text: str) -> "BatchSettings":
        """The settings in a spec string.

        Raises:
            InvalidInputError: an unknown or impossible setting.
        """
        mode, settings = parse_spec(text)
        refuse_unknown(mode, settings, ["size", "attack"])
        parsed = cls(**settings)  # type: ignore[arg-type]
        checks.whole("size", parsed.size, least=2)
        checks.one_of("attack", parsed.attack, [SAME, RUNNING])
        return parsed


@dataclass(frozen=True, kw_only=True)
class BatchEvaluation(SharedEvaluation):
    """An evaluation with batch_norm="batch:size=100"; also in front of the bare classifier."""

    package = vqshield_paper.__name__

    @cached_property
    def settings(self) -> BatchSettings:
        return BatchSettings.of(self.batch_norm)

    def check_batch_norm(self) -> None:
        _ = self.settings

    def classifier_behind(self, defense: str) -> nn.Module:
        return self._batch_statistics

    def attacked_classifier(self, defense: str) -> nn.Module:
        return self.target.model if self.settings.attack == RUNNING else self._batch_statistics

    @property
    def attacked_id(self) -> ClassifierId:
        attacked = super().attacked_id
        if self.settings.attack == SAME:  # its images are those of another classifier
            attacked = replace(attacked, sha256=f"{attacked.sha256}, {self.batch_norm}")
        return attacked

    @cached_property
    def _batch_statistics(self) -> BatchStatistics:
        return BatchStatistics(with_norms(self.target), self.settings.size)


def check_batch_norm(text: str) -> None:
    """Refuse what is not a spec string of batch-norm statistics, "batch" included."""
    mode = text.partition(":")[0]
    checks.one_of("batch_norm", mode, [*BATCH_NORMS, BATCH])
    if mode == BATCH:
        BatchSettings.of(text)
    else:
        parse_batch_norm(text)

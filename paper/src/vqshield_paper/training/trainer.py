"""Train by a recipe: its first weights, optimizer, learning rates and borders in vqshield's trainer."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from vqshield.classifiers import Network, Normalised, load_classifier
from vqshield.core.errors import InvalidInputError
from vqshield.core.progress import Progress, no_progress
from vqshield.data import ImageSet, load
from vqshield.training.augment import crop_and_flip
from vqshield.training.run import TrainResult
from vqshield.training.run import train_on as train_on_by
from vqshield.training.trainer import Trainer, parameter_groups
from vqshield_paper.training.recipe import Recipe


class RecipeTrainer(Trainer):
    """A run by a `Recipe`."""

    settings: Recipe

    def first_model(self, training: ImageSet) -> Normalised:
        settings, network = self.settings, self.fresh_network(training)
        if settings.start is None:
            if settings.normalise:
                return super().first_model(training)
            channels = network.in_channels
            return Normalised(network, mean=[0.0] * channels, std=[1.0] * channels)
        started = load_classifier(settings.start)
        assert isinstance(started.network, Network)
        found, wanted = _described(started.network), _described(network)
        if found != wanted:
            raise InvalidInputError(
                f"start={Path(settings.start).name!r} holds {found}, this run trains {wanted}; "
                "give a file of that network, or the network of that file"
            )
        return started.requires_grad_(True)  # with its own mean and std: its weights are used to them

    def make_optimizer(self) -> torch.optim.Optimizer:
        settings, fused = self.settings, self.device.type == "cuda"
        others = settings.weight_decay if settings.decay == "all" else 0.0
        groups = parameter_groups(self.model, decay=settings.weight_decay, others=others)
        if settings.optimizer == "adam":
            return torch.optim.Adam(groups, lr=settings.peak_lr, fused=fused)
        return torch.optim.SGD(
            groups,
            lr=settings.peak_lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov and settings.momentum > 0,
            fused=fused,
        )

    def rate(self, step: int) -> float:
        settings, steps = self.settings, self.settings.epochs * self.steps
        if settings.schedule == "one-cycle":
            return super().rate(step)
        if settings.schedule == "cosine":
            return cosine(step, steps=steps, peak=settings.peak_lr)
        milestones = [epoch * self.steps for epoch in settings.milestones]  # none: the rate is constant
        return stepwise(step, peak=settings.peak_lr, milestones=milestones, drop=settings.drop)

    def augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        padding = self.settings.padding
        if self.settings.border == "mirror" or padding == 0:
            return super().augmented(images, generator)
        framed = F.pad(images, [padding] * 4)  # so wide that a shift mirrors nothing into the middle
        flip = bool(self.settings.flip)
        moved = crop_and_flip(framed, padding=padding, flip=flip, generator=generator)
        return moved[..., padding:-padding, padding:-padding].contiguous()


train_on = partial(train_on_by, trainer=RecipeTrainer)
"""As `vqshield.training.train_on`, for a `Recipe`."""


def train(
    recipe: Recipe,
    *,
    folder: str | Path,
    out: str | Path,
    device: str = "cpu",
    fresh: bool = False,
    test_every: int = 1,
    progress: Progress = no_progress,
) -> TrainResult:
    """Train on a data set, as of `vqshield.training.train_on`.

    Args:
        recipe: everything that decides the weights.
        folder: folder with the data set's official binary files.
        out: folder for weights, card and checkpoint.
        device: "cpu", "cuda" or "auto".
        fresh: start over. Without it, a checkpoint in out is continued; its settings and data must be equal.
        test_every: test after every N epochs, and after the last.
        progress: called with what is being done, the steps that are done, and their total.
    """
    training, test = (load(recipe.data, split, folder) for split in ("train", "test"))
    return train_on(
        recipe, training, test, out=out, device=device, fresh=fresh, test_every=test_every,
        progress=progress,
    )  # fmt: skip


def cosine(step: int, *, steps: int, peak: float) -> float:
    """Loshchilov and Hutter 2017, without restarts: from the peak to 0, which the step after the last has."""
    return peak * (1 + math.cos(math.pi * step / steps)) / 2


def stepwise(step: int, *, peak: float, milestones: Sequence[int], drop: float) -> float:
    """The peak, multiplied by ``drop`` at each milestone, a number of steps."""
    return peak * drop ** sum(step >= each for each in milestones)


def _described(network: Network) -> str:
    options = "".join(f", {name}={value}" for name, value in network.options.items())
    return f"{network.arch} ({network.in_channels} channels, {network.classes} classes{options})"

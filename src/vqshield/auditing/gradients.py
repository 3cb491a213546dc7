"""R10, R13, R14: is there a gradient that attacks can follow?

R10 compares a surrogate's gradient with finite differences of the expected loss. R13 looks for a loss that is
flat, R14 for answers that jump.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqshield.attacks import EOT, cross_entropy
from vqshield.auditing.results import Agreement, Uncertain
from vqshield.core.errors import NoGradientError
from vqshield.core.seeds import torch_seeded
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.calling import differ
from vqshield.models.draws import outputs
from vqshield.quantization.noise import Draw, Stage
from vqshield.surrogates import Surrogate

_WITHOUT_GRADIENT = ("does not require grad", "not have been used in the graph")  # torch's words
_TINY = 1e-4  # of the budget: invisible, and a network's answer changes by about as much


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Measured changes of the expected loss for steps of ±`step` along random signs, (directions, B)."""

    images: Tensor
    labels: Tensor
    signs: Tensor  # (directions, B, q, h, w)
    step: float
    draws: int
    changes: Tensor  # (directions, B), half of the difference between both ends
    variances: Tensor  # of the changes, from the spread of the draws

    def predicted(self, gradient: Tensor) -> Tensor:
        """The changes that a gradient predicts, (directions, B)."""
        ends = [(self.images + way * self.step * self.signs).clamp(0, 1) for way in (1, -1)]
        return ((ends[0] - ends[1]) / 2 * gradient).flatten(2).sum(2).double()

    def agreement(self, halves: Sequence[Tensor]) -> Agreement:
        """How well a gradient of the expected loss predicts the changes.

        Args:
            halves: the gradient from two halves of its draws, whose difference is its sampling noise.
        """
        predictions = torch.stack([self.predicted(half) for half in halves])  # (2, directions, B)
        predicted = predictions.mean(0)
        doubt = (predictions[0] - predictions[1]).square() / 4
        own = [_correlation(predicted[:, i], self.changes[:, i]) for i in range(len(self.images))]
        noise = self.variances.mean() / self.changes.square().mean()
        gradient_noise = doubt.mean() / predicted.square().mean()
        return Agreement(
            pooled=_correlation(predicted.flatten(), self.changes.flatten()),
            median=float(torch.tensor(own).median()),
            reliability=float((1 - noise).nan_to_num(neginf=0.0)),  # none where no change was measured
            images=len(self.images),
            directions=len(self.signs),
            draws=self.draws,
            step=self.step,
            gradient_reliability=float((1 - gradient_noise).nan_to_num(neginf=0.0)),
            corrected=_corrected(predicted, self.changes, doubt, self.variances),
            error=_jackknife(predicted, self.changes, doubt, self.variances),
        )


def sign_agreement(pairs: Sequence[tuple[Differences, Tensor]]) -> Uncertain:
    """The share of measured changes whose direction a gradient predicts, with its error over images.

    Only changes beyond two standard errors of their own count. An image weighs as much as it has of them,
    however large they are: a few images with large losses do not decide.
    """
    agreeing, counted = [], []
    for measured, gradient in pairs:
        clear = measured.changes.abs() > 2 * measured.variances.sqrt()
        same = measured.predicted(gradient).sign() == measured.changes.sign()
        agreeing.append((same & clear).sum(0).double())
        counted.append(clear.sum(0).double())
    right, total = torch.cat(agreeing), torch.cat(counted)  # (B,) each
    images = int((total > 0).sum())
    if images < 2:
        return Uncertain(0.0, 1.0)
    share = float(right.sum() / total.sum())
    spread = (right - share * total).square().sum().sqrt() * math.sqrt(images / (images - 1))
    return Uncertain(share, float(spread / total.sum()))


def differences(
    classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor, *,
    step: float, directions: int, draws: int, batch: int, seed: int,
) -> Differences:  # fmt: skip
    """Central differences of E[cross-entropy] along random sign patterns; both ends see the same draws."""
    signs = random_signs(images, seed=seed, patterns=directions)
    changes, variances = [], []
    for number, pattern in enumerate(signs):
        up, down = (
            _losses(
                Defended(classifier, defense.reseeded(seed + number)),
                (images + way * step * pattern).clamp(0, 1),
                labels, draws, batch,
            )
            for way in (1, -1)
        )  # fmt: skip
        halves = (up - down) / 2  # (draws, B)
        changes.append(halves.mean(0))
        variances.append(halves.var(0) / draws)
    return Differences(
        images=images, labels=labels, signs=signs, step=step, draws=draws,
        changes=torch.stack(changes), variances=torch.stack(variances),
    )  # fmt: skip


def random_signs(images: Tensor, *, seed: int, patterns: int = 1) -> Tensor:
    """Patterns of independent random signs for images (B, ...), (patterns, B, ...)."""
    draw = Draw(seed, torch.arange(patterns * len(images), device=images.device))
    drawn = draw.signs(Stage.ATTACK_START, 0, images[0].numel())
    return drawn.to(images.dtype).view(patterns, *images.shape)


def needed_draws(classifier: nn.Module, defense: Defense, images: Tensor, draws: int) -> int:
    """That many for a random model, else two: more would only repeat them."""
    model = Defended(classifier, defense)
    with torch.no_grad():
        return draws if differ(model(images), model(images)) else 2


def expected_gradient(
    classifier: nn.Module, defense: Defense, surrogate: str | Surrogate, images: Tensor, labels: Tensor, *,
    draws: int, at_once: int = 5,
) -> Tensor:  # fmt: skip
    """The surrogate's gradient of the expected loss, averaged over draws; NoGradientError if it has none."""
    total, rounds = torch.zeros_like(images), max(1, draws // at_once)
    model = EOT(Defended(classifier, defense, surrogate=surrogate), draws=min(at_once, draws))
    for _ in range(rounds):
        moved = images.detach().requires_grad_()
        with gradients_wanted():
            loss = cross_entropy(model(moved), labels).sum()
            total += torch.autograd.grad(loss, moved)[0] / rounds
    return total


@contextmanager
def gradients_wanted() -> Iterator[None]:
    """Turn torch's error about a missing gradient into a NoGradientError about the model."""
    try:
        yield
    except (RuntimeError, NoGradientError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in _WITHOUT_GRADIENT):
            raise
        raise NoGradientError(
            "the model's answers have no gradient towards the images (they are detached, or made without "
            "autograd)"
        ) from error


def _losses(model: nn.Module, images: Tensor, labels: Tensor, draws: int, batch: int) -> Tensor:
    """The loss of each image in each draw, (draws, B)."""
    logits = outputs(model, images, runs=draws, batch=batch).double()
    return torch.stack([cross_entropy(each, labels) for each in logits])


def _corrected(predicted: Tensor, changes: Tensor, doubt: Tensor, variances: Tensor) -> float:
    """The correlation that endless draws would show: sampling noise taken out of both variances."""
    a, b = (predicted - predicted.mean()).flatten(), (changes - changes.mean()).flatten()
    true_a, true_b = (
        max(float(values.square().mean() - noise.mean()), 0.05 * float(values.square().mean()))
        for values, noise in ((a, doubt), (b, variances))
    )
    size = math.sqrt(true_a * true_b)
    return max(-1.0, min(1.0, float((a * b).mean()) / size)) if size > 0 else 0.0


def _jackknife(*measured: Tensor) -> float:
    """The standard error of the corrected correlation, from leaving each image out in turn."""
    count = measured[0].shape[1]
    if count < 2:
        return 1.0
    kept = [torch.arange(count) != left_out for left_out in range(count)]
    correlations = torch.tensor([_corrected(*(values[:, some] for values in measured)) for some in kept])
    return float((correlations.double().var(correction=0) * (count - 1)).sqrt())


def _correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's; zero if one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float((a * b).sum()) / size if size > 0 else 0.0


class Rescaled(nn.Module):
    """A classifier with its logits divided by a constant, which changes no answer."""

    def __init__(self, classifier: nn.Module, scale: float) -> None:
        super().__init__()
        self.classifier, self.scale = classifier, scale

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(images)
        return logits / self.scale


@torch.no_grad()
def saturation(classifier: nn.Module, defense: Defense, images: Tensor) -> tuple[int, float]:
    """How many answers to one draw are so certain that the gradient of their cross-entropy is exactly zero in
    single precision, and the first logit minus the second, the median of the images.
    """
    logits: Tensor = Defended(classifier, defense)(images)
    probabilities = logits.float().softmax(-1)
    certain = (probabilities > 0).sum(-1) == 1
    best = logits.double().topk(min(2, logits.shape[-1]), -1).values
    return int(certain.sum()), float((best[:, 0] - best[:, -1]).median())


@torch.no_grad()
def jump(classifier: nn.Module, defense: Defense, images: Tensor, *, step: float, seed: int) -> float:
    """How far logits move for a ten thousandth of the budget, as a share of how far they move for all of it.

    The median over images is about a ten thousandth if answers are continuous, and about one if noise depends
    on the image's last bits. The draw and the state of torch's random generators are the same every time. How
    far logits move when the call is repeated is subtracted.
    """
    streams, signs = defense.streams(images), random_signs(images, seed=seed)[0]
    model = Defended(classifier, defense)

    def answers(size: float) -> Tensor:
        with torch_seeded(0):
            logits: Tensor = model((images + size * step * signs).clamp(0, 1), streams=streams)
        return logits.double()

    usual = answers(0.0)
    again, slight, whole = ((answers(size) - usual).norm(dim=-1) for size in (0.0, _TINY, 1.0))
    return float(((slight - again).clamp(min=0) / whole.clamp(min=torch.finfo(whole.dtype).tiny)).median())

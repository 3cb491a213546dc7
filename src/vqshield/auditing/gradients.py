"""R10: does a surrogate's gradient predict how the expected loss changes? Measured by finite differences."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqshield.attacks import EOT, cross_entropy
from vqshield.auditing.results import Agreement, Uncertain
from vqshield.core.errors import NoGradientError
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.calling import differ
from vqshield.models.draws import outputs
from vqshield.quantization.noise import Draw, Stage
from vqshield.surrogates import Surrogate

_WITHOUT_GRADIENT = ("does not require grad", "not have been used in the graph")  # torch's words


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
            halves: the gradient from two halves of its draws; what they differ by is its sampling noise.
        """
        each = torch.stack([self.predicted(half) for half in halves])  # (2, directions, B)
        predicted = each.mean(0)
        doubt = (each[0] - each[1]).square() / 4
        own = [_correlation(predicted[:, i], self.changes[:, i]) for i in range(len(self.images))]
        noise = self.variances.mean() / self.changes.square().mean()
        gradient_noise = doubt.mean() / predicted.square().mean()
        corrected = _corrected(predicted, self.changes, doubt, self.variances)
        return Agreement(
            pooled=_correlation(predicted.flatten(), self.changes.flatten()),
            median=float(torch.tensor(own).median()),
            reliability=float((1 - noise).nan_to_num(neginf=0.0)),  # none where no change was measured
            images=len(self.images),
            directions=len(self.signs),
            draws=self.draws,
            step=self.step,
            gradient_reliability=float((1 - gradient_noise).nan_to_num(neginf=0.0)),
            corrected=corrected,
            error=_jackknife(predicted, self.changes, doubt, self.variances),
        )


def sign_agreement(pairs: Sequence[tuple[Differences, Tensor]]) -> Uncertain:
    """The share of measured changes whose direction a gradient predicts, with its error over images.

    Only changes that are beyond two standard errors of their own count; each image weighs as much as it has
    of them, however large they are, so that a few images with large losses do not speak for all.
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
    """Central differences of E[cross-entropy] along random sign patterns.

    Both ends see the same draws, so that the difference between them is the images' rather than luck's.
    """
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
    """Patterns of signs for images (B, ...), (patterns, B, ...), each value drawn alone."""
    draw = Draw(seed, torch.arange(patterns * len(images), device=images.device))
    drawn = draw.signs(Stage.ATTACK_START, 0, images[0].numel())
    return drawn.to(images.dtype).view(patterns, *images.shape)


def needed_draws(classifier: nn.Module, defense: Defense, images: Tensor, draws: int) -> int:
    """So many of a random model; two of one that is not: more would only say the same again."""
    model = Defended(classifier, defense)
    with torch.no_grad():
        return draws if differ(model(images), model(images)) else 2


def expected_gradient(
    classifier: nn.Module, defense: Defense, surrogate: str | Surrogate, images: Tensor, labels: Tensor, *,
    draws: int, at_once: int = 5,
) -> Tensor:  # fmt: skip
    """The surrogate's gradient of the expected loss, averaged over draws.

    Raises:
        NoGradientError: where the model has none.
    """
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
    """Say what torch says when a model has no gradient in words that are about the model."""
    try:
        yield
    except (RuntimeError, NoGradientError) as error:
        if isinstance(error, RuntimeError) and not any(each in str(error) for each in _WITHOUT_GRADIENT):
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
    found = torch.tensor([_corrected(*(each[:, some] for each in measured)) for some in kept])
    return float((found.double().var(correction=0) * (count - 1)).sqrt())


def _correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's; zero where one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float((a * b).sum()) / size if size > 0 else 0.0

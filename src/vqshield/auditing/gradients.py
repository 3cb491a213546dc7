"""R10: does a surrogate's gradient predict how the expected loss changes? Measured by finite differences."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqshield.attacks import EOT, cross_entropy
from vqshield.auditing.results import Agreement
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.draws import outputs
from vqshield.noise import Draw, Stage
from vqshield.surrogates import Surrogate


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

    def agreement(self, gradient: Tensor) -> Agreement:
        """How well a gradient of the expected loss predicts the changes."""
        ends = [(self.images + way * self.step * self.signs).clamp(0, 1) for way in (1, -1)]
        predicted = ((ends[0] - ends[1]) / 2 * gradient).flatten(2).sum(2).double()
        own = [_correlation(predicted[:, i], self.changes[:, i]) for i in range(len(self.images))]
        noise = self.variances.mean() / self.changes.square().mean()
        return Agreement(
            pooled=_correlation(predicted.flatten(), self.changes.flatten()),
            median=float(torch.tensor(own).median()),
            reliability=float((1 - noise).nan_to_num(neginf=0.0)),  # none where no change was measured
            images=len(self.images),
            directions=len(self.signs),
            draws=self.draws,
            step=self.step,
        )


def differences(
    classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor, *,
    step: float, directions: int, draws: int, batch: int, seed: int,
) -> Differences:  # fmt: skip
    """Central differences of E[cross-entropy] along random sign patterns.

    Both ends see the same draws, so that the difference between them is the images' rather than luck's.
    """
    stream = torch.arange(directions * len(images), device=images.device)
    drawn = Draw(seed, stream).signs(Stage.ATTACK_START, 0, images[0].numel())
    signs = drawn.to(images.dtype).view(directions, *images.shape)
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


def expected_gradient(
    classifier: nn.Module, defense: Defense, surrogate: str | Surrogate, images: Tensor, labels: Tensor, *,
    draws: int, at_once: int = 5,
) -> Tensor:  # fmt: skip
    """The surrogate's gradient of the expected loss, averaged over draws."""
    total, rounds = torch.zeros_like(images), max(1, draws // at_once)
    model = EOT(Defended(classifier, defense, surrogate=surrogate), draws=at_once)
    for _ in range(rounds):
        moved = images.detach().requires_grad_()
        loss = cross_entropy(model(moved), labels).sum()
        total += torch.autograd.grad(loss, moved)[0] / rounds
    return total


def _losses(model: nn.Module, images: Tensor, labels: Tensor, draws: int, batch: int) -> Tensor:
    """The loss of each image in each draw, (draws, B)."""
    logits = outputs(model, images, runs=draws, batch=batch).double()
    return torch.stack([cross_entropy(each, labels) for each in logits])


def _correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's; zero where one of them does not vary."""
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float((a * b).sum()) / size if size > 0 else 0.0

"""R9, the binarization test (Zimmermann et al. 2022): plant adversarial images, and let an attack find them.

Around each image a linear readout of the classifier's features is fitted that tells one point on the border
of the ball from points well inside it: that point is adversarial by construction. For a random defense the
fit is over many draws, and the majority of fresh ones judges both the planting and the finding. The planted
points are patterns of large blocks: single pixels would not survive any quantizer.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vqshield.attacks.balls import Ball
from vqshield.attacks.threats import Threat
from vqshield.auditing.gradients import gradients_wanted, random_signs
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import torch_seeded
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.draws import outputs

_BLOCK = 8
_INSIDE = 0.5  # the inner points' share of the budget
_RIDGE = 0.1  # of the features' mean variance, added to each: few draws, many features
_APART = 10.0  # logits between the two means: at hundreds a cross-entropy has no gradient left to follow


class Features(nn.Module):
    """The input of the last linear layer that a classifier's answers depend on.

    An InvalidInputError says that the answers for these images depend on none.
    """

    def __init__(self, classifier: nn.Module, images: Tensor) -> None:
        super().__init__()
        called = _called_linears(classifier, images)
        matter = (layer for layer in reversed(called) if _matters(classifier, layer, images))
        last = next(matter, None)
        if last is None:
            raise InvalidInputError(
                "the classifier has no linear layer whose input could serve as features"
                + (": its answers depend on none of those that it calls" if called else "")
            )
        self.classifier, self._last = classifier, [last]  # in a list: it is registered already

    def forward(self, images: Tensor) -> Tensor:
        kept: list[Tensor] = []
        with _hooked(lambda _layer, given, _output: kept.append(given[0]), self._last):
            self.classifier(images)
        return kept[-1].flatten(1)


@contextmanager
def _hooked(hook: Callable[..., Tensor | None], layers: Iterable[nn.Linear]) -> Iterator[None]:
    """Call the hook with every layer that is called, its inputs, and its output."""
    with ExitStack() as hooks:
        for layer in layers:
            hooks.callback(layer.register_forward_hook(hook).remove)
        yield


@torch.no_grad()
def _called_linears(classifier: nn.Module, images: Tensor) -> list[nn.Linear]:
    """The linear layers that the classifier calls, first to last."""
    called: list[nn.Linear] = []
    layers = [layer for layer in classifier.modules() if isinstance(layer, nn.Linear)]
    with _hooked(lambda layer, _given, _output: called.append(layer), layers):
        _repeatably(classifier, images)
    return called


@torch.no_grad()
def _matters(classifier: nn.Module, layer: nn.Linear, images: Tensor) -> bool:
    """Whether the answers change as the layer's output does, more than they do by themselves."""

    def disturb(_layer: nn.Module, _given: object, output: Tensor) -> Tensor:
        return output + torch.linspace(1, 2, output.shape[-1]).to(output) * (1 + 10 * output.abs().max())

    usual, again = (_repeatably(classifier, images) for _ in range(2))
    with _hooked(disturb, [layer]):
        disturbed = _repeatably(classifier, images)
    return float((disturbed - usual).abs().max()) > 10 * float((again - usual).abs().max())


def _repeatably(classifier: nn.Module, images: Tensor) -> Tensor:
    """With the same state of torch's random generators each time."""
    with torch_seeded(0):
        answers: Tensor = classifier(images)
    return answers


class Readouts(nn.Module):
    """Logits (0, w_i·features + b_i) with a readout of its own for each image of the batch, in turn."""

    def __init__(self, features: Features, weights: Tensor, offsets: Tensor) -> None:
        super().__init__()
        self.features, self._weights, self._offsets = features, weights, offsets

    def forward(self, images: Tensor) -> Tensor:
        """Readout i modulo their number reads image i of a batch, which EOT may repeat."""
        which = torch.arange(len(images), device=images.device) % len(self._weights)
        scores = (self.features(images) * self._weights[which]).sum(1) + self._offsets[which]
        return torch.stack([torch.zeros_like(scores), scores], 1)


@dataclass(frozen=True)
class Planted:
    """How many planted images were confirmed, and of these found by the attack, and by a random pattern."""

    total: int
    valid: int
    found: int
    blindly: int


def plant_and_find(
    classifier: nn.Module, defense: Defense, threat: Threat, ball: Ball, images: Tensor, *,
    inner: int, draws: int, batch: int, seed: int,
) -> Planted:  # fmt: skip
    """Run the test on a batch of images with a threat as it would be used.

    Raises:
        InvalidInputError: the classifier has no features to plant in.
        NoGradientError: the features have no gradient towards the images.
    """
    features = Features(classifier, images[:2])
    model = Defended(features, defense)
    patterns = _patterns(images, inner + 2, seed)
    planted = ball.project(images + _longest(ball, patterns[0]), images)
    inner_points = (ball.project(images + _INSIDE * _longest(ball, half), images) for half in patterns[2:])
    outer = outputs(model, planted, runs=2 * draws, batch=batch)  # (draws, B, F)
    runs = max(1, draws // 8)
    within = torch.cat([outputs(model, each, runs=runs, batch=batch) for each in (images, *inner_points)])
    readouts = Readouts(features, *_fit(within, outer))
    judged = Defended(readouts, defense)
    valid = (_share(judged, planted, draws) > 0.5) & (_share(judged, images, draws) < 0.5)
    labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    with gradients_wanted():
        attacked = threat(readouts, defense, images, labels, drop_lost=False)  # readouts go by place
    found = _share(judged, attacked, draws) > 0.5
    blind = ball.project(images + _longest(ball, patterns[1]), images)
    blindly = _share(judged, blind, draws) > 0.5
    return Planted(len(images), *(int(hits.sum()) for hits in (valid, found & valid, blindly & valid)))


def _patterns(images: Tensor, count: int, seed: int) -> Tensor:
    """Random signs in blocks, (count, B, q, h, w)."""
    rows, columns = (-(-size // _BLOCK) for size in images.shape[2:])
    blocks = random_signs(images[:, :, :rows, :columns], seed=seed, patterns=count)
    large = F.interpolate(blocks.flatten(0, 1), scale_factor=_BLOCK)
    return large[:, :, : images.shape[2], : images.shape[3]].reshape(count, *images.shape)


def _longest(ball: Ball, patterns: Tensor) -> Tensor:
    return ball.eps * ball.steepest(patterns)


def _fit(within: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Each image's readout: Fisher's discriminant, its threshold halfway between the two means."""
    low, high = within.double().transpose(0, 1), outer.double().transpose(0, 1)  # (B, draws, F)
    means = low.mean(1), high.mean(1)
    centred = torch.cat([low - means[0][:, None], high - means[1][:, None]], 1)
    covariance = centred.transpose(1, 2) @ centred / centred.shape[1]
    ridge = _RIDGE * covariance.diagonal(dim1=1, dim2=2).mean(1)
    covariance += ridge[:, None, None].clamp(min=1e-12) * torch.eye(low.shape[2], device=low.device)
    apart = means[1] - means[0]
    # Not linalg.solve: MKL's LU fails on several threads where another library brought its own OpenMP.
    weights = torch.cholesky_solve(apart[:, :, None], torch.linalg.cholesky(covariance))[:, :, 0]
    weights *= _APART / (weights * apart).sum(1, keepdim=True).clamp(min=1e-12)
    offsets = -(weights * (means[0] + means[1]) / 2).sum(1)
    return weights.to(within), offsets.to(within)


@torch.no_grad()
def _share(model: nn.Module, images: Tensor, draws: int) -> Tensor:
    """The share of draws that take each image for a planted one. Whole batches: readouts go by place."""
    return torch.stack([model(images).argmax(1) for _ in range(draws)]).double().mean(0)

"""R12: does a model say the same of an image however it is asked, for the same draw of its defense?"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.draws import Draws

_SAME = 1e-6  # of a probability: a model that changes by more when asked again draws at random


@dataclass(frozen=True)
class Answers:
    """How answers differ by the way of asking.

    Attributes:
        differences: largest change of a probability against asking for the whole batch, by the way of asking.
        random: whether the classifier answers the same question in different ways.
        accuracies: in a batch, and in that way, by the way of asking; of a random classifier only.
    """

    differences: dict[str, float]
    random: bool
    accuracies: dict[str, tuple[Draws, Draws]]


def ask_in_every_way(
    classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor, *, runs: int
) -> Answers:
    """Ask for the same images with the same draws again, one by one, and with gradients switched on."""
    model = Defended(classifier, defense)
    streams = defense.streams(images)
    one_by_one = [(images[i : i + 1], streams[i : i + 1]) for i in range(len(images))]
    ways: dict[str, Callable[[], Tensor]] = {
        "when asked again": lambda: _probabilities(model, images, streams),
        "when asked alone": lambda: torch.cat([_probabilities(model, *each) for each in one_by_one]),
        "when gradients are on": lambda: _with_gradients(model, images, streams),
    }
    usual = _probabilities(model, images, streams)
    found = {how: ask() for how, ask in ways.items()}
    differences = {how: float((answer - usual).abs().max()) for how, answer in found.items()}
    random = not differences["when asked again"] <= _SAME
    if not random:
        return Answers(differences, random, {})
    batch = _accuracy(ways.pop("when asked again"), labels, runs)
    accuracies = {how: (batch, _accuracy(ask, labels, runs)) for how, ask in ways.items()}
    return Answers(differences, random, accuracies)


@torch.no_grad()
def _probabilities(model: Defended, images: Tensor, streams: Tensor) -> Tensor:
    logits: Tensor = model(images, streams=streams)
    return logits.double().softmax(-1)


def _with_gradients(model: Defended, images: Tensor, streams: Tensor) -> Tensor:
    with torch.enable_grad():
        logits: Tensor = model(images.detach().requires_grad_(), streams=streams)
    return logits.detach().double().softmax(-1)


def _accuracy(ask: Callable[[], Tensor], labels: Tensor, runs: int) -> Draws:
    return Draws(torch.stack([ask().argmax(-1).cpu() for _ in range(runs)]), labels.cpu())

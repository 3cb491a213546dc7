"""R12: does a model say the same of an image however, and however often, it is asked, for the same draw?"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqshield.auditing.traces import Seen, changed, dropout_on, far_on, snapshot
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.draws import Draws

_SAME = 1e-6  # of a probability: a model that changes by more when asked again draws at random
_OFTEN = 50  # how often a defense is asked again


@dataclass(frozen=True)
class Answers:
    """How answers differ by the way of asking.

    Attributes:
        differences: largest change of a probability against asking for the whole batch, by the way of asking.
        random: whether the classifier answers the same question in different ways.
        accuracies: in a batch, and in that way, by the way of asking; of a random classifier only.
        traces: attributes of the classifier or the defense that change as it is asked.
        dropout: kinds of dropout that are on.
    """

    differences: dict[str, float]
    random: bool
    accuracies: dict[str, tuple[Draws, Draws]]
    traces: tuple[str, ...] = ()
    dropout: tuple[str, ...] = ()


@dataclass(frozen=True)
class First:
    """What a model said before it was attacked, to be compared with what it says afterwards.

    Attributes:
        images: those it was asked about.
        streams: the draws of the defense.
        answers: probabilities, (B, classes).
        kept: what its attributes held after that.
    """

    images: Tensor
    streams: Tensor
    answers: Tensor
    kept: Seen


def ask_first(classifier: nn.Module, defense: Defense, images: Tensor) -> First:
    """Ask before anything else does; the defense is a fresh one, and the same one at the end."""
    streams = defense.streams(images)
    answers = _probabilities(Defended(classifier, defense), images, streams)
    return First(images, streams, answers, snapshot(classifier))


def ask_in_every_way(
    classifier: nn.Module, defense: Defense, first: First, images: Tensor, labels: Tensor, *, runs: int
) -> Answers:
    """Ask for the same images with the same draws again, one by one, beside copies, and with gradients on.

    Args:
        classifier: images → logits.
        defense: the one that `ask_first` was given.
        first: what that gave.
        images: those to ask about.
        labels: their true classes.
        runs: how often a random classifier is asked.
    """
    model = Defended(classifier, defense)
    streams = first.streams
    one_by_one = [(images[i : i + 1], streams[i : i + 1]) for i in range(len(images))]
    ways: dict[str, Callable[[], Tensor]] = {
        "when asked again": lambda: _probabilities(model, images, streams),
        "when asked alone": lambda: torch.cat([_probabilities(model, *each) for each in one_by_one]),
        "beside copies of itself": lambda: _beside_copies(model, images, streams),
        "when gradients are on": lambda: _with_gradients(model, images, streams),
        "when its own defenses have counted far": lambda: _far_on(model, images, streams),
    }
    usual = _probabilities(model, images, streams)
    found = {how: ask() for how, ask in ways.items()}
    differences = {how: float((answer - usual).abs().max()) for how, answer in found.items()}
    random = not differences["when asked again"] <= _SAME
    later = _probabilities(model, first.images, streams)
    traces = [f"classifier's {name}" for name in changed(first.kept, snapshot(classifier))]
    worn, left = _asked_often(defense, images, streams)
    traces += [f"defense's {name}" for name in left]
    dropout = tuple(dropout_on(lambda: model(images[:2], streams=streams[:2])))
    if not random:
        differences["after the attacks"] = float((later - first.answers).abs().max())
        differences["once the defense was asked often"] = worn
        return Answers(differences, random, {}, tuple(traces), dropout)
    batch = _accuracy(ways.pop("when asked again"), labels, runs)
    accuracies = {how: (batch, _accuracy(ask, labels, runs)) for how, ask in ways.items()}
    accuracies["after the attacks"] = (
        Draws(first.answers.argmax(-1).cpu()[None], labels.cpu()),
        _accuracy(lambda: _probabilities(model, first.images, streams), labels, runs),
    )
    return Answers(differences, random, accuracies, tuple(traces), dropout)


@torch.no_grad()
def _asked_often(defense: Defense, images: Tensor, streams: Tensor) -> tuple[float, list[str]]:
    """The largest change of a defended pixel after many calls with the same draw, and what they changed."""
    before: Tensor = defense(images, streams=streams)
    kept = snapshot(defense)
    for _ in range(_OFTEN):
        defense(images[:1], streams=streams[:1])
    after: Tensor = defense(images, streams=streams)
    return float((after - before).abs().max()), changed(kept, snapshot(defense))


@torch.no_grad()
def _probabilities(model: Defended, images: Tensor, streams: Tensor) -> Tensor:
    logits: Tensor = model(images, streams=streams)
    return logits.double().softmax(-1)


def _beside_copies(model: Defended, images: Tensor, streams: Tensor) -> Tensor:
    """As EOT asks: every image several times in one batch."""
    return _probabilities(model, images.repeat(3, 1, 1, 1), streams.repeat(3))[: len(images)]


def _with_gradients(model: Defended, images: Tensor, streams: Tensor) -> Tensor:
    with torch.enable_grad():
        logits: Tensor = model(images.detach().requires_grad_(), streams=streams)
    return logits.detach().double().softmax(-1)


def _far_on(model: Defended, images: Tensor, streams: Tensor) -> Tensor:
    with far_on(model.classifier):
        return _probabilities(model, images, streams)


def _accuracy(ask: Callable[[], Tensor], labels: Tensor, runs: int) -> Draws:
    return Draws(torch.stack([ask().argmax(-1).cpu() for _ in range(runs)]), labels.cpu())

"""R12: does a model say the same of an image however, and however often, it is asked, for the same draw?"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vqshield.auditing.traces import changed, dropout_on, far_on, snapshot
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
    random: bool = False
    accuracies: dict[str, tuple[Draws, Draws]] = field(default_factory=dict)
    traces: tuple[str, ...] = ()
    dropout: tuple[str, ...] = ()


class Questions:
    """What a model says before it is attacked, to be compared with what it says afterwards.

    Args:
        classifier: images → logits.
        defense: stands in front of it; asked for the same draws at the end.
        images: those that are asked about before and after.
    """

    def __init__(self, classifier: nn.Module, defense: Defense, images: Tensor) -> None:
        self._classifier, self._defense, self._images = classifier, defense, images
        self._model, self._streams = Defended(classifier, defense), defense.streams(images)
        self._first = self._answers(images)
        self._kept = snapshot(classifier)

    def ask_again(self, images: Tensor, labels: Tensor, *, runs: int) -> Answers:
        """Ask with the same draws again, one by one, beside copies, and with gradients on.

        Args:
            images: those to ask about.
            labels: their true classes.
            runs: how often a random classifier is asked.
        """
        ways: dict[str, Callable[[], Tensor]] = {
            "when asked again": lambda: self._answers(images),
            "when asked alone": lambda: torch.cat([self._answers(images, i) for i in range(len(images))]),
            "beside copies of itself": lambda: self._beside_copies(images),
            "when gradients are on": lambda: self._with_gradients(images),
            "when its own defenses have counted far": lambda: self._far_on(images),
        }
        usual = self._answers(images)
        differences = {how: float((ask() - usual).abs().max()) for how, ask in ways.items()}
        later = self._answers(self._images)
        traces = [f"classifier's {name}" for name in changed(self._kept, snapshot(self._classifier))]
        worn, left = self._asked_often(images)
        traces += [f"defense's {name}" for name in left]
        dropout = dropout_on(lambda: self._model(images[:2], streams=self._streams[:2]))
        random, accuracies = not differences["when asked again"] <= _SAME, {}
        if random:
            batch = _accuracy(ways.pop("when asked again"), labels, runs)
            accuracies = {how: (batch, _accuracy(ask, labels, runs)) for how, ask in ways.items()}
            accuracies["after the attacks"] = (
                _accuracy(lambda: self._first, labels, 1),
                _accuracy(lambda: self._answers(self._images), labels, runs),
            )
        else:
            differences["after the attacks"] = float((later - self._first).abs().max())
            differences["once the defense was asked often"] = worn
        return Answers(differences, random, accuracies, tuple(traces), tuple(dropout))

    @torch.no_grad()
    def _answers(self, images: Tensor, only: int | None = None) -> Tensor:
        """Probabilities, (B, classes); of one image alone where its number is given."""
        some = slice(None) if only is None else slice(only, only + 1)
        return self._asked(images[some], self._streams[some])

    def _beside_copies(self, images: Tensor) -> Tensor:
        """As EOT asks: every image several times in one batch."""
        with torch.no_grad():
            return self._asked(images.repeat(3, 1, 1, 1), self._streams.repeat(3))[: len(images)]

    def _with_gradients(self, images: Tensor) -> Tensor:
        with torch.enable_grad():
            return self._asked(images.detach().requires_grad_(), self._streams).detach()

    def _far_on(self, images: Tensor) -> Tensor:
        with far_on(self._classifier):
            return self._answers(images)

    def _asked(self, images: Tensor, streams: Tensor) -> Tensor:
        logits: Tensor = self._model(images, streams=streams)
        return logits.double().softmax(-1)

    @torch.no_grad()
    def _asked_often(self, images: Tensor) -> tuple[float, list[str]]:
        """The largest change of a defended pixel after many calls with one draw, and what they changed."""
        before: Tensor = self._defense(images, streams=self._streams)
        kept = snapshot(self._defense)
        for _ in range(_OFTEN):
            self._defense(images[:1], streams=self._streams[:1])
        after: Tensor = self._defense(images, streams=self._streams)
        return float((after - before).abs().max()), changed(kept, snapshot(self._defense))


def _accuracy(ask: Callable[[], Tensor], labels: Tensor, runs: int) -> Draws:
    return Draws(torch.stack([ask().argmax(-1).cpu() for _ in range(runs)]), labels.cpu())

"""R12: does a model answer the same for an image, however and however often it is called with the same draw?

A model may also keep traces of calls, or leave dropout on. Neither proves a trick, and a model that keeps its
memory outside its own attributes shows neither: both are reasons to look.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vqshield.defended import Defended
from vqshield.defenses import Defense, Preprocessor, defense_class, list_all_defenses
from vqshield.models.draws import Draws

_SAME = 1e-6  # of a probability: a model that changes by more in a second call draws at random
_OFTEN = 50  # calls that may wear a defense
_FAR_ON = 1 << 40  # calls
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"_buffers"}
_OWN_DEFENSES = frozenset({Preprocessor, *map(defense_class, list_all_defenses())})
_OWN_NOTES = frozenset({"_next_stream", "_differentiable"})  # what these classes note of calls, no subclass
_DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d",
    "alpha_dropout", "feature_dropout", "feature_alpha_dropout",
)  # fmt: skip


@dataclass(frozen=True)
class Answers:
    """How answers differ by how the model is called."""

    differences: dict[str, float]  # by the way: largest change of a probability from one call for the batch
    random: bool = False  # whether equal calls have different answers
    accuracies: dict[str, tuple[Draws, Draws]] = field(default_factory=dict)  # if so: in a batch, in that way
    traces: tuple[str, ...] = ()  # attributes of the classifier or the defense that calls change
    dropout: tuple[str, ...] = ()  # kinds that are on


class Questions:
    """The answers of a model for some images before it is attacked, to compare with those afterwards."""

    def __init__(self, classifier: nn.Module, defense: Defense, images: Tensor) -> None:
        self._classifier, self._defense, self._images = classifier, defense, images
        self._model, self._streams = Defended(classifier, defense), defense.streams(images)
        self._first = self._answers(images)
        self._kept = snapshot(classifier)

    def ask_again(self, images: Tensor, labels: Tensor, *, runs: int) -> Answers:
        """Call the model with the same draws once more, one by one, with copies, and with gradients on.

        runs: how often a random classifier is called.
        """
        ways: dict[str, Callable[[], Tensor]] = {
            "when asked again": lambda: self._answers(images),
            "when asked alone": lambda: torch.cat(
                [self._answers(images[i : i + 1], self._streams[i : i + 1]) for i in range(len(images))]
            ),
            # As EOT calls it.
            "beside copies of itself": lambda: self._answers(
                images.repeat(3, 1, 1, 1), self._streams.repeat(3)
            )[: len(images)],
            "when gradients are on": lambda: self._answers(images, gradients=True),
            "when its own defenses have counted far": far_on(self._classifier)(lambda: self._answers(images)),
        }
        usual = self._answers(images)
        differences = {how: float((ask() - usual).abs().max()) for how, ask in ways.items()}
        later = self._answers(self._images)
        traces = [f"classifier's {name}" for name in changed(self._kept, snapshot(self._classifier))]
        worn, left = self._asked_often(images)
        traces += [f"defense's {name}" for name in left]
        dropout = dropout_on(lambda: self._model(images[:2], streams=self._streams[:2]))
        once_more, *others = ways.items()
        random, accuracies = not differences[once_more[0]] <= _SAME, {}
        if random:
            batch = _accuracy(once_more[1], labels, runs)
            accuracies = {how: (batch, _accuracy(ask, labels, runs)) for how, ask in others}
            accuracies["after the attacks"] = (
                _accuracy(lambda: self._first, labels, 1),
                _accuracy(lambda: self._answers(self._images), labels, runs),
            )
        else:
            differences["after the attacks"] = float((later - self._first).abs().max())
            differences["once the defense was asked often"] = worn
        return Answers(differences, random, accuracies, tuple(traces), tuple(dropout))

    def _answers(self, images: Tensor, streams: Tensor | None = None, *, gradients: bool = False) -> Tensor:
        """Probabilities, (B, classes)."""
        streams = self._streams if streams is None else streams
        with torch.set_grad_enabled(gradients):
            logits: Tensor = self._model(images.detach().requires_grad_(gradients), streams=streams)
        return logits.detach().double().softmax(-1)

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


def snapshot(model: object) -> Mapping[str, object]:
    """Every number, text, tensor and size of a container among a module's attributes, by its name.

    Weights are not included: they are large, and an attack could not have changed them unnoticed.
    """
    summaries: dict[str, object] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        held = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        held |= held.pop("_buffers", {})
        for key, value in held.items():
            if type(module) in _OWN_DEFENSES and key in _OWN_NOTES:
                continue
            if (summary := _summary(value)) is not None:
                summaries[f"{path}.{key}".lstrip(".")] = summary
    return summaries


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """The names of attributes that differ between two snapshots."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _summary(value: object) -> object:
    if value is None or isinstance(value, int | float | str | bytes):
        return repr(value)
    if isinstance(value, Tensor):
        sums = value.detach().double().sum() if value.numel() and not value.is_complex() else value.numel()
        return tuple(value.shape), float(sums)
    return len(value) if isinstance(value, Sized) and not isinstance(value, nn.Module) else None


@contextmanager
def far_on(model: nn.Module) -> Iterator[None]:
    """Let the defenses inside a model count as if they had been called very often.

    A count that `snapshot` does not include could still decide what the model answers.
    """
    defenses = [module for module in model.modules() if isinstance(module, Defense)]
    for defense in defenses:
        defense._count_from(int(defense._next_stream) + _FAR_ON)
    try:
        yield
    finally:
        for defense in defenses:
            defense._count_from(int(defense._next_stream) - _FAR_ON)


class _Watch(TorchFunctionMode):
    """Notes every dropout that is on."""

    def __init__(self) -> None:
        super().__init__()
        self.dropouts: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., object], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:  # fmt: skip
        options = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS:
            share = args[1] if len(args) > 1 else options.get("p", 0.5)
            on = args[2] if len(args) > 2 else options.get("training", options.get("train", True))
            if on and share > 0:
                self.dropouts.add(f"{name} of {share:g}")
        return func(*args, **options)


def dropout_on(call: Callable[[], object]) -> list[str]:
    """The kinds of dropout that are on in a call of the model, "dropout of 0.5" and the like."""
    with _Watch() as watch, torch.no_grad():
        call()
    return sorted(watch.dropouts)

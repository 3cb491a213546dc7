"""What being asked leaves behind in a model, and which randomness of training it still has on.

Neither proves a trick, and a model that keeps its memory outside its own attributes shows neither: what is
found here is a reason to look.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vqshield.defenses import Defense, Preprocessor, defense_class, list_all_defenses

Seen = Mapping[str, object]
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"_buffers"}
_OWN_DEFENSES = frozenset({Preprocessor, *map(defense_class, list_all_defenses())})
_OWN_NOTES = frozenset({"_next_stream", "_differentiable"})  # what these classes note of calls, no subclass
_FAR_ON = 1 << 40  # calls
_DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d",
    "alpha_dropout", "feature_dropout", "feature_alpha_dropout",
)  # fmt: skip


def snapshot(model: object) -> Seen:
    """Every number, text, tensor and size of a container among a module's attributes, by its name.

    Weights are left out: they are large, and an attack could not have changed them unnoticed.
    """
    found: dict[str, object] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        held = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        held |= held.pop("_buffers", {})
        if type(module) in _OWN_DEFENSES:
            held = {key: value for key, value in held.items() if key not in _OWN_NOTES}
        for key, value in held.items():
            summary = _summary(value)
            if summary is not None:
                found[f"{path}.{key}".lstrip(".")] = summary
    return found


def changed(before: Seen, after: Seen) -> list[str]:
    """The names of what is not as it was."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _summary(value: object) -> object:
    if value is None or isinstance(value, int | float | str | bytes):
        return repr(value)
    if isinstance(value, Tensor):
        sums = value.detach().double().sum() if value.numel() and not value.is_complex() else value.numel()
        return tuple(value.shape), float(sums)
    return len(value) if isinstance(value, Sized) and not isinstance(value, nn.Module) else None


@contextmanager
def far_on(model: object) -> Iterator[None]:
    """Let the defenses inside a model count as if they had been called very often.

    A count that `snapshot` leaves out could still decide what the model answers.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    defenses = [each for each in modules if isinstance(each, Defense)]
    for each in defenses:
        each._count_from(int(each._next_stream) + _FAR_ON)
    try:
        yield
    finally:
        for each in defenses:
            each._count_from(int(each._next_stream) - _FAR_ON)


class _Watch(TorchFunctionMode):
    """Notes every dropout that is on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS:
            share = args[1] if len(args) > 1 else given.get("p", 0.5)
            on = args[2] if len(args) > 2 else given.get("training", given.get("train", True))
            if on and share > 0:
                self.found.append(f"{name} of {share:g}")
        return func(*args, **given)


def dropout_on(ask: Callable[[], object]) -> list[str]:
    """The kinds of dropout that are on while the model is asked, "dropout of 0.5" and the like."""
    watch = _Watch()
    with watch, torch.no_grad():
        ask()
    return sorted(set(watch.found))

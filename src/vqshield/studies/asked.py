"""What several studies are asked for in the same words: a target, defenses and attacks by text, each once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor, nn

from vqshield import checks
from vqshield.attacks import Ball
from vqshield.classifiers import load_classifier
from vqshield.data import load
from vqshield.data.base import MAX_CLASSES
from vqshield.defended import Defended
from vqshield.defenses import (
    Defense,
    Preprocessor,
    Quantizer,
    defense_class,
    from_text,
    is_preprocessor,
    known_settings,
    list_all_defenses,
)
from vqshield.devices import pick_device
from vqshield.errors import InvalidInputError
from vqshield.names import NONE
from vqshield.plain import Json
from vqshield.runs.manifests import AttackId, DefenseId, ThreatId
from vqshield.runs.target import IN_MEMORY, DataId, Target
from vqshield.settings import parse_spec
from vqshield.suites import expand

_HELD: ContextVar[tuple[str, Defense] | None] = ContextVar("held", default=None)
"""The defense of the model that is being measured, where no text stands for it, and what records call it."""


def defense_from(text: str, *, seed: int) -> Defense | None:
    """The defense that "swrd:size=3,codes=25" or "mine:blur" stands for, with that seed; None for "none"."""
    held = _HELD.get()
    if held is not None and held[0] == text:
        return held[1].reseeded(seed)
    if text.startswith(IN_MEMORY):
        raise InvalidInputError(
            f"defense={text!r} is in the memory of another process; give it as package.module:function, or "
            "use the executor local"
        )
    if is_preprocessor(text):
        return from_text(text, seed=seed)
    name, settings = parse_spec(text)
    if name != NONE:
        checks.one_of("defense", name, [*list_all_defenses(), NONE])
        return from_text(text, seed=seed)
    if settings:
        raise InvalidInputError(f"{text!r} has settings; {NONE} takes none")
    return None


def quantizer_from(text: str, *, seed: int, why: str) -> Quantizer:
    """A defense that has codebooks; why: what one without is refused with."""
    defense = defense_from(text, seed=seed)
    if not isinstance(defense, Quantizer):
        raise InvalidInputError(f"defense {text!r} {why}")
    return defense


def target_from(
    model: nn.Module | str,
    images: Tensor | str,
    labels: Tensor | None,
    *,
    limit: int | None,
    data_dir: Path | str | None,
    device: str,
) -> Target:
    """The target that a module or the name of a classifier makes with tensors or the name of a data set."""
    if isinstance(images, str) and labels is not None:
        raise InvalidInputError(f"labels are given beside the data set {images!r}, which has its own")
    if isinstance(model, str) and isinstance(images, str):
        folder = None if data_dir is None else Path(data_dir)
        return Target(data=images, data_dir=folder, classifier=model, limit=limit, device=device)
    if isinstance(images, str):
        held = load(images, "test", data_dir).take(limit)
        images, labels = held.floats(), held.labels
    if labels is None:
        raise InvalidInputError("labels are missing; give one for each image")
    if isinstance(model, str):
        model = load_classifier(model, device=pick_device(device))
    return Target.in_memory(model, images, labels, limit=limit)


@contextmanager
def split_defended(model: nn.Module | str) -> Iterator[tuple[nn.Module | str, str | None]]:
    """A defended model as its classifier and its defense by text; any other model as it is, with None.

    A defense that no text stands for, such as one of the user's own, has one meanwhile, which `defense_from`
    knows.
    """
    if not isinstance(model, Defended):
        yield model, None
        return
    defense = model.defense
    if any(type(defense) is defense_class(name) for name in list_all_defenses()):
        yield model.classifier, text_of(defense)
        return
    name = defense.name if isinstance(defense, Preprocessor) else type(defense).__name__
    text = name if is_preprocessor(name) else f"{IN_MEMORY}: {name}"
    before = _HELD.set((text, defense))
    try:
        yield model.classifier, text
    finally:
        _HELD.reset(before)


def text_of(defense: Defense) -> str:
    """A registered defense as one writes it, with the settings that are not its defaults."""
    for name in list_all_defenses():
        if type(defense) is defense_class(name):
            usual, given = known_settings(name), defense.settings()
            given["backend"] = getattr(defense, "backend", "auto")
            chosen = {key: value for key, value in given.items() if value != usual.get(key, "auto")}
            # A default of None follows from the other settings: it is written only where it does not.
            short = _written(name, {key: value for key, value in chosen.items() if usual[key] is not None})
            like = defense_from(short, seed=0)
            same = like is not None and like.settings() == defense.settings()
            return short if same else _written(name, chosen)
    raise InvalidInputError(
        f"{type(defense).__name__} is no registered defense; give one of {', '.join(list_all_defenses())}"
    )


def _written(name: str, settings: Mapping[str, Json]) -> str:
    pairs = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{name}:{pairs}" if pairs else name


def defense_ids(texts: Sequence[str]) -> tuple[DefenseId, ...]:
    """The defenses as a manifest holds them."""
    return tuple(DefenseId.of(text, defense_from(text, seed=0)) for text in texts)


def attack_ids(texts: Sequence[str], ball: Ball) -> tuple[AttackId, ...]:
    """The attacks as a manifest holds them."""
    return tuple(AttackId(name=text, threats=tuple(map(ThreatId.of, expand(text, ball)))) for text in texts)


ROUNDING = 1e-5
"""How far beyond its budget an attack may come by rounding, in any norm."""


def impossible_class(data: DataId, classes: Sequence[int]) -> str | None:
    """The first of these that is no class of the data, in words; None where all are."""
    most = MAX_CLASSES if data.classes is None else data.classes
    for each in classes:
        if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each < most:
            return f"class {each!r} is none of the classes 0 to {most - 1}"
    return None


def refuse_twice(name: str, given: Sequence[object]) -> None:
    """Refuse a list that names a thing more than once."""
    for each in given:
        if given.count(each) > 1:
            raise InvalidInputError(f"{name} {each!r} is given twice; give it once")


def refuse_too_large(defenses: Sequence[Defense | None], target: Target) -> None:
    """Refuse a defense whose patches do not fit into the target's images."""
    image = target.images.floats(slice(1))
    for defense in defenses:
        if defense is not None:
            defense.streams(image)

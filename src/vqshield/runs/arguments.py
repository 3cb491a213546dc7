"""The arguments that several verbs share: a model or target, defenses and attacks by spec string."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from vqshield.attacks import Ball
from vqshield.attacks.suites import expand
from vqshield.classifiers import as_shown_to, load_classifier, named_defense
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY, NONE
from vqshield.core.environment import pick_device
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec
from vqshield.data import load
from vqshield.data.base import MAX_CLASSES
from vqshield.defended import Defended, alteration_of
from vqshield.defenses import (
    Defense,
    DefenseLike,
    Preprocessor,
    as_defense,
    from_text,
    is_preprocessor,
    list_all_defenses,
)
from vqshield.runs.manifests import AttackId, DefenseId, ThreatId
from vqshield.runs.target import ClassifierId, DataId, Target, defenses_inside

_HELD: ContextVar[Mapping[str, Defense]] = ContextVar("held", default={})  # noqa: B039 (never written to)
"""The defenses in memory while a verb measures them, by their names in records."""


def defense_from(text: str, *, seed: int) -> Defense | None:
    """The defense of "swrd:size=3,codes=25" or "mine:blur", with that seed; None for "none"."""
    if text in _HELD.get():
        return _HELD.get()[text].reseeded(seed)
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


def target_from(
    model: nn.Module | str,
    images: Tensor | str,
    labels: Tensor | None,
    *,
    limit: int | None,
    data_dir: Path | str | None,
    device: str,
) -> Target:
    """The target of a module or the name of a classifier, with tensors or the name of a data set."""
    if isinstance(images, str) and labels is not None:
        raise InvalidInputError(f"labels are given with the data set {images!r}, which has its own")
    if isinstance(images, str):
        if isinstance(model, str):
            folder = None if data_dir is None else Path(data_dir)
            return Target(data=images, data_dir=folder, classifier=model, limit=limit, device=device)
        held = as_shown_to(model, load(images, "test", data_dir).take(limit))
        target = Target.in_memory(model, held.floats(), held.labels, limit=limit)
        classes = len(target.images.classes)
        if classes != len(held.classes):
            raise InvalidInputError(
                f"classifier {target.name!r} has {classes} classes, {images!r} has "
                f"{len(held.classes)}; give a classifier of that data set"
            )
        return target
    if data_dir is not None:
        raise InvalidInputError(f"data_dir={str(data_dir)!r} is given with tensors; give the data set's name")
    if labels is None:
        raise InvalidInputError("labels are missing; give one for each image")
    called = tuned_behind = None
    if isinstance(model, str):
        called, tuned_behind = Target(classifier=model).name, named_defense(model)
        model = load_classifier(model, device=pick_device(device))
    return Target.in_memory(model, images, labels, limit=limit, called=called, tuned_behind=tuned_behind)


@contextmanager
def split_model(
    model: nn.Module | str,
    defense: DefenseLike | Sequence[DefenseLike] | None,
    *,
    several: bool = False,
) -> Iterator[tuple[nn.Module | str, tuple[str, ...]]]:
    """The classifier that a verb measures, and its defenses as records name them.

    A `Defended` model is split only if classifier and defense define it completely. One with hooks, a
    `forward` of its own, or streams from content, and one inside another module, is measured as a whole
    without a defense. A classifier whose file names the defense that it was fine-tuned behind is measured
    behind that one, unless another is given.

    Args:
        model: as every verb takes it.
        defense: one, or None: measure the model as it is.
        several: whether a list of defenses is allowed.

    Raises:
        InvalidInputError: the model has a defense, and another one is given.
    """
    defenses: list[DefenseLike] = []
    if several and isinstance(defense, Sequence) and not isinstance(defense, str):
        defenses = list(defense)
    elif defense is not None:
        defenses = [cast("DefenseLike", defense)]
    inside = defenses_inside(model)
    if inside and defenses:
        raise InvalidInputError(
            f"the model has a defense already ({', '.join(inside)}), and defense={defense!r} is given; give "
            "the classifier alone (model.classifier), or no defense"
        )
    if not defenses:
        defenses = [NONE]
        if isinstance(model, str):
            defenses = [named_defense(model) or NONE]
            if not _is_registered(defenses[0]):
                raise InvalidInputError(
                    f"classifier {model} was fine-tuned behind {defenses[0]!r}, which is code of its author; "
                    "give that defense to run it, or 'none'"
                )
        elif isinstance(model, Defended) and alteration_of(model) is None:
            defenses = [model.defense]
            model = model.classifier
    held: dict[str, Defense] = {}
    names = tuple(_named(each, held) for each in defenses)
    before = _HELD.set({**_HELD.get(), **held})
    try:
        yield model, names
    finally:
        _HELD.reset(before)


def _named(defense: DefenseLike, held: dict[str, Defense]) -> str:
    """The name of a defense in records; one without a spec string is added to `held`."""
    if isinstance(defense, str):
        return defense
    if isinstance(defense, Defended):
        raise InvalidInputError("defense= is a whole model; give it as the model, without defense=")
    defense = as_defense(defense)
    alteration = alteration_of(Defended(nn.Identity(), defense))
    if alteration is not None:
        raise InvalidInputError(
            f"defense {type(defense).__name__} cannot be measured apart from its model ({alteration}); give "
            "vq.defend(classifier, defense) as the model"
        )
    text = defense.spec
    if text is None or isinstance(defense, Preprocessor):
        name = defense.name if isinstance(defense, Preprocessor) else type(defense).__name__
        text = text or f"{IN_MEMORY}: {name}"
        if held.setdefault(text, defense) is not defense:
            raise InvalidInputError(f"two defenses are called {text!r}; give one of them another name")
    return text


def _is_registered(defense: object) -> bool:
    return str(defense).partition(":")[0] in (NONE, *list_all_defenses())


def tuning_note(classifier: ClassifierId, defenses: Sequence[DefenseId]) -> list[str]:
    """A warning for a classifier that is not measured behind the defense that it was fine-tuned behind."""
    named = classifier.tuned_behind
    if named is None:
        return []
    settings = None
    if _is_registered(named):  # a weight file does not choose what code is imported
        settings = DefenseId.of(named, defense_from(named, seed=0), None).settings
    others = [each.name for each in defenses if each.name != named and each.settings != settings]
    return [f"{classifier.name} was fine-tuned behind {named}, not {', '.join(others)}"] if others else []


def attack_ids(texts: Sequence[str], ball: Ball) -> tuple[AttackId, ...]:
    """The attacks as a manifest holds them."""
    return tuple(AttackId(name=text, threats=tuple(map(ThreatId.of, expand(text, ball)))) for text in texts)


ROUNDING = 1e-5
"""How far beyond its budget an attack may come by rounding, in any norm."""


def impossible_class(data: DataId, classes: Sequence[int]) -> str | None:
    """An error for the first of these that is not a class of the data; None where all are."""
    limit = MAX_CLASSES if data.classes is None else data.classes
    for label in classes:
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < limit:
            return f"class {label!r} is none of the classes 0 to {limit - 1}"
    return None


def refuse_twice(name: str, values: Sequence[object]) -> None:
    """Refuse a list that names a thing more than once."""
    for value in values:
        if values.count(value) > 1:
            raise InvalidInputError(f"{name} {value!r} is given twice; give it once")

"""Manifests: the complete settings of the records in a folder, so that two settings never mix.

Every kind of study has a manifest class with the study's fields; what several share is here. The keys are
part of the file format: records of earlier versions are read by them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from vqshield import surrogates
from vqshield.attacks.threats import Threat
from vqshield.core.display_names import NONE
from vqshield.core.entry_points import function_digest
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import parse_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.core.settings import format_value
from vqshield.defenses import Defense, Quantizer, defense_class, is_preprocessor, list_all_defenses
from vqshield.runs.code import CodeId
from vqshield.runs.target import PROBED, ClassifierId, DataId, Target, answers_digest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MANIFEST = "manifest.json"
_OMIT = {"omit": True}
_DIGITS = 16


@dataclass(frozen=True, kw_only=True)
class DefenseId:
    """A defense by its spec string, with all its settings, defaults included; "none" has no settings.

    answers: SHA-256 (16 digits) of the output of a user's own defense for the first images; None for a
    defense of vqshield, and for one that cannot repeat its samples.
    """

    name: str
    settings: Mapping[str, Json] | None = field(default=None, metadata=_OMIT)
    answers: str | None = field(default=None, metadata=_OMIT)

    @classmethod
    def of(cls, text: str, defense: Defense | None, target: Target | None) -> "DefenseId":
        """The defense of that spec string, for the images of a target."""
        if defense is None:
            return cls(name=NONE)
        settings = dict(defense.settings())
        if isinstance(defense, Quantizer):
            settings["backend"] = defense.backend
        source = function_digest(text) if is_preprocessor(text) else None
        if source is not None:  # a Preprocessor has the same in its own settings
            settings["source"] = source[:_DIGITS]
        return cls(name=text, settings=settings, answers=_answers_of(defense, target))


def _answers_of(defense: Defense, target: Target | None) -> str | None:
    if target is None or any(type(defense) is defense_class(name) for name in list_all_defenses()):
        return None
    images = target.part(range(PROBED))[0]
    streams = torch.arange(len(images), device=images.device)
    with torch.no_grad():
        first, again = (answers_digest(defense.to(images.device)(images, streams=streams)) for _ in range(2))
    return first[:_DIGITS] if first == again else None


@dataclass(frozen=True, kw_only=True)
class ThreatId:
    """An attack with all its settings except seeds, as every chunk has its own; "none" has only a name."""

    kind: str | None = field(default=None, metadata=_OMIT)
    name: str
    level: str | None = field(default=None, metadata=_OMIT)
    attack: Json = field(default=None, metadata=_OMIT)
    surrogate: Json = field(default=None, metadata=_OMIT)
    eot: int | None = field(default=None, metadata=_OMIT)
    average: str | None = field(default=None, metadata=_OMIT)
    basis: str | None = field(default=None, metadata=_OMIT)
    precision: str | None = field(default=None, metadata=_OMIT)

    @classmethod
    def of(cls, threat: Threat) -> "ThreatId":
        surrogate = threat.surrogate
        if isinstance(surrogate, str) and surrogate != NONE:
            surrogate = surrogates.get(surrogate)
        return cls(
            kind=type(threat).__name__,
            attack=_described(threat.attack),
            surrogate=_described(surrogate),
            precision=threat.precision if threat.is_fast else None,
            **{name: getattr(threat, name) for name in ("name", "level", "eot", "average", "basis")},
        )

    @property
    def ignores_defense(self) -> bool:
        return self.surrogate == NONE


def _described(value: object) -> Json:
    """A dataclass as a dict with its kind."""
    if not is_dataclass(value):
        return value if isinstance(value, int | float | str | None) else repr(value)
    names = [part.name for part in fields(value) if part.name != "seed"]
    return {"kind": type(value).__name__, **{name: _described(getattr(value, name)) for name in names}}


NO_THREAT = ThreatId(name=NONE)


@dataclass(frozen=True, kw_only=True)
class AttackId:
    """An attack by its spec string: one threat, or the members of a suite."""

    name: str
    threats: tuple[ThreatId, ...]


@dataclass(frozen=True, kw_only=True)
class TargetManifest:
    """What every manifest of a study of a target holds; subclasses add the settings of their study."""

    data: DataId
    classifier: ClassifierId
    machine: Mapping[str, Json]
    code: CodeId | None = field(default=None, metadata=_OMIT)


@dataclass(frozen=True, kw_only=True)
class SourceId:
    """The origin of images: an attack with a budget, or clean images (0)."""

    eps: float
    attack: ThreatId


Shape = TypeVar("Shape", bound="DataclassInstance")


def read_manifest(shape: type[Shape], folder: Path, *, file: str = MANIFEST) -> Shape:
    """The manifest of a folder, which must be of that kind; file: its name there."""
    plain, path = read_plain_manifest(folder, file=file), folder / file
    if isinstance(plain, Mapping):
        for needed in fields(shape):
            if needed.name not in plain and not needed.metadata.get("omit"):
                raise InvalidInputError(
                    f"{path} has no field {needed.name!r}: it belongs to records of another kind"
                )
    return from_plain(shape, plain, str(path), strict=False)


def read_plain_manifest(folder: Path, *, file: str = MANIFEST) -> Json:
    """The content of manifest.json."""
    path = folder / file
    if not path.is_file():
        raise InvalidInputError(f"there is no {file} in {folder}; no run was started there")
    plain: Json = parse_json(path.read_bytes(), path)
    return plain


_HOW = {
    "machine.threads": " (--task-cpus for several processes, else OMP_NUM_THREADS)",
    "code.kernels.0": " (VQSHIELD_CUDA=off runs the Triton kernels alone)",
    "code.sources": " (the vqshield that wrote them, without later edits)",
}


def check_same(folder: Path, before: object, now: object, *, except_for: Sequence[str] = ()) -> None:
    """Refuse to mix the settings of a folder and of this run: the error names the first field that differs.

    except_for: fields that may differ. The commit always may, as code.sources changes with the code.
    """
    old, new = (flat(json.loads(json.dumps(to_plain(manifest)))) for manifest in (before, now))
    for name in [*old, *new]:
        was, is_ = old.get(name, "absent"), new.get(name, "absent")
        if was != is_ and name != "code.commit" and name.partition(".")[0] not in except_for:
            show = format_value if name.rpartition(".")[2] == "eps" else repr
            was, is_ = show(was), show(is_)
            raise InvalidInputError(
                f"{folder} holds records made with {name}={was}, this run has {name}={is_}; "
                f"run it with the old value{_HOW.get(name, '')} to continue, choose another folder, or start "
                "over (--fresh)"
            )


def flat(value: Json, name: str = "") -> dict[str, Json]:
    """A manifest as one dict of values by their paths: {"data.images": 500, "attacks.0.name": …}."""
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        return {name: value}
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    found: dict[str, Json] = {}
    for key, part in pairs:
        found |= flat(part, f"{name}.{key}" if name else str(key))
    return found

"""What an audit finds, as typed results, and audit.json, the file that holds them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from vqshield.auditing.settings import AuditSettings
from vqshield.draws import Draws
from vqshield.errors import FileFormatError
from vqshield.plain import Json, from_plain, to_plain

Outcome = Literal["pass", "fail", "not run"]
PASS: Outcome = "pass"
FAIL: Outcome = "fail"
NOT_RUN: Outcome = "not run"


@dataclass(frozen=True)
class Accuracy:
    """A measured accuracy and its standard error over images."""

    mean: float
    error: float

    @classmethod
    def of(cls, draws: Draws) -> "Accuracy":
        """From repeated evaluation."""
        return cls(draws.mean, draws.standard_error)

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f} %"


@dataclass(frozen=True)
class Estimate:
    """An accuracy among a flag's figures, with the key that audit.json has there."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, accuracy: Accuracy) -> "Estimate":
        """The same figure."""
        return cls(accuracy.mean, accuracy.error)

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.standard_error:.1f} %"


@dataclass(frozen=True)
class Agreement:
    """Correlations of predicted with measured changes of the expected loss, over random directions.

    Attributes:
        pooled: over all images and directions at once.
        median: of the images' own.
        reliability: share of the measured changes' variance that is not sampling noise: a ceiling.
    """

    pooled: float
    median: float
    reliability: float
    images: int
    directions: int
    draws: int
    step: float

    def __str__(self) -> str:
        shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in _held(self)}
        return ", ".join(f"{name} {value}" for name, value in shown.items())


Figure = Estimate | Agreement | int | float | str


@dataclass(frozen=True)
class Flag:
    """One of R1 … R10.

    Attributes:
        name: "R1" and so on.
        title: what ought to hold.
        meaning: what was found, in words.
        figures: what it was decided by.
    """

    name: str
    title: str
    outcome: Outcome
    meaning: str
    figures: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The flags, R1 … R10, and the accuracies they were decided by.

    Attributes:
        passed: whether all of them passed; one that was not run has not.
        n: how many images.
        natural: accuracy without any attack.
        reported: what the attacks given leave, the strongest of each image.
        attacks: what each of them leaves alone, by name.
    """

    passed: bool
    n: int
    natural: Accuracy
    reported: Accuracy
    attacks: Mapping[str, Accuracy]
    flags: tuple[Flag, ...]

    def __post_init__(self) -> None:
        if self.passed != all(flag.outcome == PASS for flag in self.flags):
            raise FileFormatError(f"passed is {self.passed}, but not all flags say the same")


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """An audit, and everything it was made with: what audit.json holds.

    Attributes:
        data, classifier: their names.
        defense: as text, "swrd:size=3".
        given: the attacks that were judged, as text.
        machine: versions and hardware.
        seconds: how long it took.
    """

    what: str = "red flags R1 to R10"
    data: str
    classifier: str
    defense: str
    given: tuple[str, ...]
    norm: str
    eps: float
    settings: AuditSettings
    machine: Mapping[str, Json]
    seconds: float
    audit: Audit

    @property
    def passed(self) -> bool:
        """Whether every flag passed."""
        return self.audit.passed

    @property
    def flags(self) -> tuple[Flag, ...]:
        """The flags, in order."""
        return self.audit.flags

    def plain(self) -> dict[str, Json]:
        """As audit.json has it: the audit's own entries follow the others, at the same level."""
        held = to_plain(self)
        inner = held.pop("audit")
        return {**held, **inner}


def read_audit(path: Path) -> AuditReport:
    """The report that an audit.json holds.

    Raises:
        FileFormatError: where it is not one, with the place in the file.
    """
    try:
        held = json.loads(path.read_bytes())
    except ValueError as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    if not isinstance(held, dict):
        raise FileFormatError(f"{path} should hold a table, not {type(held).__name__}")
    inner = {each.name for each in fields(Audit)}
    outer = {key: value for key, value in held.items() if key not in inner}
    nested = {**outer, "audit": {key: value for key, value in held.items() if key in inner}}
    return from_plain(AuditReport, nested, str(path))


def _held(value: Any) -> list[tuple[str, Any]]:
    return [(each.name, getattr(value, each.name)) for each in fields(value)]

"""What an audit finds, as typed results, and audit.json, the file that holds them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from vqshield.auditing.settings import AuditSettings
from vqshield.core.errors import FileFormatError
from vqshield.core.files import parse_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.models.draws import Draws

Outcome = Literal["pass", "fail", "suspicious", "undecided", "not run", "too few images"]
"""The last is in files of earlier versions alone."""
PASS: Outcome = "pass"
FAIL: Outcome = "fail"
SUSPICIOUS: Outcome = "suspicious"
UNDECIDED: Outcome = "undecided"
NOT_RUN: Outcome = "not run"

_WITHIN_BUDGET = (
    "R2",
    "R4",
    "R6",
    "R7",
    "R8",
    "R13",
)  # their figures are what attacks within the budget leave
_WHOLE = ("natural", "reported")


@dataclass(frozen=True)
class Uncertain:
    """A share, such as an accuracy, and its standard error over images."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, draws: Draws) -> "Uncertain":
        """The accuracy in repeated evaluation."""
        return cls(draws.mean, draws.standard_error)

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.standard_error:.1f} %"


@dataclass(frozen=True)
class Agreement:
    """Correlations of predicted with measured changes of the expected loss, over random directions.

    Attributes:
        pooled: over all images and directions at once.
        median: of the images' own.
        reliability: share of the measured changes' variance that is not sampling noise.
        gradient_reliability: the same of the predicted changes.
        corrected: pooled, less what the sampling noise of both takes from it.
        error: its standard error over images.
        Files of earlier versions have no more than the first three.
    """

    pooled: float
    median: float
    reliability: float
    images: int
    directions: int
    draws: int
    step: float
    gradient_reliability: float | None = field(default=None, metadata={"omit": True})
    corrected: float | None = field(default=None, metadata={"omit": True})
    error: float | None = field(default=None, metadata={"omit": True})

    @property
    def truth(self) -> float:
        """The best estimate of the correlation that endless draws would show."""
        return self.pooled if self.corrected is None else self.corrected

    def __str__(self) -> str:
        shown = [
            (name.replace("_", " "), f"{value:.3g}" if isinstance(value, float) else value)
            for name, value in to_plain(self).items()
        ]
        return ", ".join(f"{name} {value}" for name, value in shown)


Figure = Uncertain | Agreement | int | float | str


@dataclass(frozen=True)
class Flag:
    """One of R1 … R14.

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
    """The flags, R1 … R14, and the accuracies they were decided by.

    Attributes:
        passed: whether all of them passed; one that is suspicious, undecided or not run has not.
        n: how many images.
        natural: accuracy without any attack.
        reported: what the attacks given leave, the strongest of each image.
        attacks: what each of them leaves alone, by name.
    """

    passed: bool
    n: int
    natural: Uncertain
    reported: Uncertain
    attacks: Mapping[str, Uncertain]
    flags: tuple[Flag, ...]

    def __post_init__(self) -> None:
        if self.passed != all(flag.outcome == PASS for flag in self.flags):
            raise FileFormatError(f"passed is {self.passed}, but not all flags say the same")

    @property
    def failed(self) -> bool:
        """Whether a flag failed, or is suspicious."""
        return any(flag.outcome in (FAIL, SUSPICIOUS) for flag in self.flags)

    @property
    def lowest(self) -> Uncertain:
        """The least that any attack of this audit leaves within the budget, those given or a probe."""
        probes = [
            figure
            for flag in self.flags
            if flag.name in _WITHIN_BUDGET
            for figure in flag.figures.values()
            if isinstance(figure, Uncertain)
        ]
        return min([self.reported, *probes], key=lambda each: each.mean)


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """An audit, and everything it was made with: what audit.json holds.

    Attributes:
        data, classifier: their names.
        defense: as text, "swrd:size=3".
        given: the attacks that were judged, as text.
        machine: versions and hardware.
        seconds: how long it took, in all its runs where it was resumed.
    """

    what: str = "red flags R1 to R14"
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
        return _with_accuracies({**held, **inner}, "standard_error", "error")

    @classmethod
    def from_plain(cls, held: Json, where: str) -> "AuditReport":
        """The report of what `plain` gave.

        Raises:
            FileFormatError: it is no report, with the place in it.
        """
        if not isinstance(held, Mapping):
            raise FileFormatError(f"{where} should hold a table, not {type(held).__name__}")
        held = _with_accuracies(held, "error", "standard_error")
        inner = {each.name: held.pop(each.name) for each in fields(Audit) if each.name in held}
        return from_plain(cls, {**held, "audit": inner}, where)


def read_audit(path: Path) -> AuditReport:
    """The report that an audit.json holds.

    Raises:
        FileFormatError: where it is not one, with the place in the file.
    """
    return AuditReport.from_plain(parse_json(path.read_bytes(), path), str(path))


def _with_accuracies(held: Mapping[str, Json], key: str, new: str) -> dict[str, Json]:
    """A report with another key for standard errors: those of whole audits are called "error" in files."""

    def renamed(value: Json) -> Json:
        if not isinstance(value, Mapping):
            return value
        return {new if name == key else name: each for name, each in value.items()}

    attacks = held.get("attacks")
    if isinstance(attacks, Mapping):
        held = {**held, "attacks": {name: renamed(each) for name, each in attacks.items()}}
    return {name: renamed(each) if name in _WHOLE else each for name, each in held.items()}

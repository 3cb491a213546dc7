"""How thorough an audit is, its results, and audit.json, the file that holds both."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from vqshield.core import checks
from vqshield.core.errors import FileFormatError
from vqshield.core.files import parse_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.models.draws import Draws
from vqshield.reports.table import Column, Table, Tabular

Outcome = Literal["pass", "fail", "suspicious", "undecided", "not run", "too few images"]
"""The last is in files of earlier versions alone."""
PASS: Outcome = "pass"
FAIL: Outcome = "fail"
SUSPICIOUS: Outcome = "suspicious"
UNDECIDED: Outcome = "undecided"
NOT_RUN: Outcome = "not run"
Verdict = Literal["passed", "failed", "suspicious", "undecided"]

_WITHIN_BUDGET = ("R2", "R4", "R6", "R7", "R8", "R13")  # their accuracies are under attacks within the budget
_WHOLE = ("natural", "reported")


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How thorough: the defaults suit a GPU; QUICK ends in minutes on a CPU.

    Attributes:
        runs: draws behind every accuracy.
        batch: images per forward pass of an attack.
        probe: the short attack that knows the defense (R8).
        queries: of the black-box attack (R4).
        directions: of the finite differences (R10).
        draws: of the finite differences; a quarter of them serve R9.
        seed: decides every draw.
        rehearsal: True takes fewer images than `LEAST_IMAGES`, too; such an audit cannot pass.
    """

    runs: int = 10
    batch: int = 250
    probe: str = "pgd:steps=20,step=eps/10,eot=5,surrogate=soft,loss=margin,momentum=0.75,schedule=cosine"
    queries: int = 500
    directions: int = 16
    draws: int = 512
    seed: int = 0
    rehearsal: bool | None = field(default=None, metadata={"omit": True})

    def __post_init__(self) -> None:
        for name in ("runs", "batch", "queries", "directions"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("draws", self.draws, least=4)  # R9 takes a quarter of them
        checks.whole("seed", self.seed, least=0, below=2**63)


QUICK = AuditSettings(runs=5, batch=50, queries=100, directions=4, draws=32)


@dataclass(frozen=True)
class Uncertain:
    """A share, such as an accuracy, and its standard error over images."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, draws: Draws) -> "Uncertain":
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
        corrected: pooled, without what the sampling noise of both takes from it.
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

    def estimate(self, errors: float = 0.0) -> float:
        """The correlation that endless draws would show, plus that many standard errors."""
        return (self.pooled if self.corrected is None else self.corrected) + errors * (self.error or 0.0)

    def __str__(self) -> str:
        return ", ".join(
            f"{name.replace('_', ' ')} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in to_plain(self).items()
        )


Figure = Uncertain | Agreement | int | float | str


@dataclass(frozen=True)
class Flag:
    """One of R1 … R14.

    Attributes:
        name: "R1" and so on.
        title: the claim that is checked.
        meaning: what the outcome says about the model.
        figures: the values behind the outcome.
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
        natural: clean accuracy.
        reported: accuracy under the strongest of the judged attacks on each image.
        attacks: accuracy under each of them alone, by name.
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
    def verdict(self) -> Verdict:
        """The most severe outcome of its flags; "undecided" if some are undecided or were not run."""
        outcomes = {flag.outcome for flag in self.flags}
        if FAIL in outcomes or SUSPICIOUS in outcomes:
            return "failed" if FAIL in outcomes else "suspicious"
        return "passed" if self.passed else "undecided"

    @property
    def not_passed(self) -> dict[str, Outcome]:
        """The outcomes of the checks that did not pass, by name."""
        return {flag.name: flag.outcome for flag in self.flags if flag.outcome != PASS}

    @property
    def failed(self) -> bool:
        """Whether a flag failed, or is suspicious."""
        return self.verdict in ("failed", "suspicious")

    @property
    def lowest(self) -> Uncertain:
        """The lowest accuracy under any attack of this audit within the budget, judged or probe."""
        probes = [
            figure
            for flag in self.flags
            if flag.name in _WITHIN_BUDGET
            for figure in flag.figures.values()
            if isinstance(figure, Uncertain)
        ]
        return min([self.reported, *probes], key=lambda accuracy: accuracy.mean)


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What an audit was made with.

    Attributes:
        data, classifier: their names.
        defense, given: the spec strings of the defense and of the judged attacks.
        machine: versions and hardware.
        seconds: how long it took, in all its runs if it was resumed.
        warning: what a reader of the accuracies must know.
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
    warning: str | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class AuditReport(Tabular, Audit, Audited):
    """An audit, and everything it was made with: what audit.json holds."""

    @property
    def audit(self) -> Audit:
        """The audit alone."""
        return Audit(**{each.name: getattr(self, each.name) for each in fields(Audit)})

    @property
    def table(self) -> Table:
        """A row per check, R1 to R14, with the values behind its outcome."""
        return Table(
            title=f"Audit of {self.classifier} behind {self.defense}",
            columns=[Column(name, name) for name in ("check", "claim", "outcome", "meaning", "values")],
            rows=[
                [
                    flag.name, flag.title, flag.outcome, flag.meaning,
                    "; ".join(f"{name}: {value}" for name, value in flag.figures.items()),
                ]
                for flag in self.flags
            ],
            caption=f"{self.n} images of {self.data}; clean accuracy {self.natural}, "
            f"{self.reported} under {', '.join(self.given)}",
        )  # fmt: skip

    def plain(self) -> dict[str, Json]:
        """As audit.json has it."""
        return _with_accuracies(to_plain(self), "standard_error", "error")

    @classmethod
    def from_plain(cls, held: Json, where: str) -> "AuditReport":
        """The report that `plain` wrote out; a FileFormatError names the place of an error."""
        if not isinstance(held, Mapping):
            raise FileFormatError(f"{where} should hold a table, not {type(held).__name__}")
        return from_plain(cls, _with_accuracies(held, "error", "standard_error"), where)


def read_audit(path: Path) -> AuditReport:
    """The report that an audit.json holds; a FileFormatError names the place of an error."""
    return AuditReport.from_plain(parse_json(path.read_bytes(), path), str(path))


def _with_accuracies(held: Mapping[str, Json], key: str, new: str) -> dict[str, Json]:
    """A report with another key for standard errors: those of whole audits are called "error" in files."""

    def renamed(value: Json) -> Json:
        if not isinstance(value, Mapping):
            return value
        return {new if name == key else name: entry for name, entry in value.items()}

    attacks = held.get("attacks")
    if isinstance(attacks, Mapping):
        held = {**held, "attacks": {name: renamed(accuracy) for name, accuracy in attacks.items()}}
    return {name: renamed(value) if name in _WHOLE else value for name, value in held.items()}

"""The worked example of Proposition 1, recomputed: what the paper's own numbers prove, and what it prints."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vqshield import checks
from vqshield.certificates import clopper_pearson, proposition1, truncated_markov
from vqshield.environment import environment
from vqshield.errors import InvalidInputError
from vqshield.runs.records import Key, Line, RecordFolder
from vqshield.runs.study import Report, ResumableWork
from vqshield.runs.target import Subject
from vqshield.studies.specification import NONE

WHAT = "proposition1"
_ROUNDING = 1e-9  # so that 0.3·100/0.1 counts as 300 errors


@dataclass(frozen=True, kw_only=True)
class ExampleSettings:
    """The numbers of the example, with the paper's as defaults.

    draws: m. mean_l1: the mean of ‖f(x) − f(x̂'_i)‖₁. margin: rho(x, y, f).
    deltas: the chances that a bound fails; published: the bounds that the paper prints for them, or none.
    errors: wrong answers among the draws. None, as in the paper: the most that mean_l1 and margin allow,
        m·mean_l1/rho, because each error takes a distance of at least rho.
    """

    draws: int = 100
    mean_l1: float = 0.2
    margin: float = 0.9
    deltas: tuple[float, ...] = (0.05, 0.005)
    published: tuple[float, ...] = (0.40, 0.45)
    errors: int | None = None

    def __post_init__(self) -> None:
        if not self.deltas:
            raise InvalidInputError("deltas holds no number; give at least one, between 0 and 1")
        for delta in self.deltas:  # checks every number
            proposition1(mean_l1=self.mean_l1, margin=self.margin, draws=self.draws, delta=delta)
        if self.published and len(self.published) != len(self.deltas):
            raise InvalidInputError(
                f"published={self.published} should be empty or hold {len(self.deltas)} numbers, one a delta"
            )
        for bound in self.published:
            checks.real("published", bound, most=1.0)
        if self.errors is not None:
            checks.whole("errors", self.errors, least=0, below=self.most_errors + 1)

    @property
    def most_errors(self) -> int:
        """As many errors as the draws can hold at most."""
        if self.margin <= 0:
            return self.draws
        return min(self.draws, int(self.draws * self.mean_l1 / self.margin + _ROUNDING))

    @property
    def counted_errors(self) -> int:
        """The errors that a bound on the error is computed from."""
        return self.most_errors if self.errors is None else self.errors

    @property
    def mean_truncated(self) -> float:
        """No less than the mean of min(1, ‖f(x) − f(x̂'_i)‖₁ / rho), of which the example says no more."""
        return min(1.0, self.mean_l1 / self.margin) if self.margin > 0 else 1.0

    def described(self) -> dict[str, Any]:
        """The settings as JSON can hold them."""
        return {"example": {**asdict(self), "deltas": list(self.deltas), "published": list(self.published)}}


@dataclass(frozen=True, kw_only=True)
class ExampleRecord(Line):
    """The numbers of the example and the bounds they give, one for each delta.

    errors: those that clopper_pearson is computed from; errors_given: whether the example says so many, or
        they are the most there can be.
    Empirical Bernstein is not among the bounds: it takes a variance, which the example does not give.
    """

    draws: int
    mean_l1: float
    margin: float
    errors: int
    errors_given: bool
    deltas: tuple[float, ...]
    published: tuple[float, ...]
    proposition1: tuple[float, ...]
    truncated_markov: tuple[float, ...]
    clopper_pearson: tuple[float, ...]

    @property
    def key(self) -> Key:
        """What it is of: no defense and no image, only numbers."""
        return self.defense, WHAT, 0


@dataclass(frozen=True, kw_only=True)
class ExampleCell:
    """The unit of work: all of it."""

    @property
    def keys(self) -> list[Key]:
        """What its one record is of."""
        return [(NONE, WHAT, 0)]


class Example(ResumableWork[ExampleCell, ExampleRecord]):
    """The example: one cell with one record. It is about no classifier, so that a subject is not used."""

    def __init__(
        self,
        settings: ExampleSettings,
        subject: Subject | None,
        folder: Path,
        report: Report = lambda *_: None,
    ) -> None:
        super().__init__(report)
        self.settings = settings
        self.specification: dict[str, Any] = {**settings.described(), "machine": environment()}
        self.cells: Sequence[ExampleCell] = [ExampleCell()]
        self.records: RecordFolder[ExampleRecord] = RecordFolder(
            folder, [cell.keys for cell in self.cells], ExampleRecord.parse
        )

    def measure(self, cell: ExampleCell) -> list[ExampleRecord]:
        """The bounds on the same numbers."""
        given = self.settings
        mean, errors, draws = given.mean_truncated, given.counted_errors, given.draws
        self._tell(cell, 0)
        record = ExampleRecord(
            defense=NONE,
            draws=draws,
            mean_l1=given.mean_l1,
            margin=given.margin,
            errors=errors,
            errors_given=given.errors is not None,
            deltas=given.deltas,
            published=given.published,
            proposition1=tuple(
                proposition1(mean_l1=given.mean_l1, margin=given.margin, draws=draws, delta=delta)
                for delta in given.deltas
            ),
            truncated_markov=tuple(
                truncated_markov(mean=mean, draws=draws, delta=delta) for delta in given.deltas
            ),
            clopper_pearson=tuple(
                clopper_pearson(errors=errors, draws=draws, delta=delta) for delta in given.deltas
            ),
        )
        return [record]

    def cost(self, cell: ExampleCell) -> int:
        """One cell."""
        return 1

    def title(self, cell: ExampleCell) -> str:
        """What a progress bar says meanwhile."""
        return "the worked example of Proposition 1"


def summarise_example(specification: Mapping[str, Any], records: Iterable[ExampleRecord]) -> dict[str, Any]:
    """A row for each delta: the bounds, what the paper prints, and the difference."""
    found = list(records)
    return {
        "title": "The worked example of Proposition 1",
        "complete": len(found) == 1,
        "rows": [row for record in found for row in _rows(record)],
        "specification": dict(specification),
    }


def _rows(record: ExampleRecord) -> list[dict[str, Any]]:
    rows = []
    for number, delta in enumerate(record.deltas):
        bound = record.proposition1[number]
        published = record.published[number] if record.published else None
        rows.append(
            {
                "delta": delta,
                "published": published,
                "proposition1": bound,
                "difference": None if published is None else bound - published,
                "certified_accuracy": 1 - bound,
                "truncated_markov": record.truncated_markov[number],
                "clopper_pearson": record.clopper_pearson[number],
                "draws": record.draws,
                "errors": record.errors,
                "errors_given": record.errors_given,
            }
        )
    return rows

"""The worked example of Proposition 1, recomputed: what the paper's own numbers prove, and what it prints."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from vqshield.certificates import clopper_pearson, proposition1, truncated_markov
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, Study, no_cell_progress

_WHAT = "proposition1"
_ROUNDING = 1e-9  # so that 0.3·100/0.1 counts as 300 errors


@dataclass(frozen=True, kw_only=True)
class Numbers:
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
        """The largest number of errors that the draws can hold."""
        if self.margin <= 0:
            return self.draws
        return min(self.draws, int(self.draws * self.mean_l1 / self.margin + _ROUNDING))


@dataclass(frozen=True, kw_only=True)
class WorkedExampleManifest:
    """What the one record is of."""

    example: Numbers
    machine: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class WorkedExampleCell:
    """All of it."""

    @property
    def keys(self) -> list[Key]:
        """No defense and no image, only numbers."""
        return [(NONE, _WHAT, 0)]


@dataclass(frozen=True, kw_only=True)
class WorkedExampleRecord(Record):
    """The numbers of the example and the bounds they give, one for each delta.

    errors: those that clopper_pearson is computed from; errors_given: whether the example states them, or
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
        return self.defense, _WHAT, 0


@dataclass(frozen=True, kw_only=True)
class WorkedExample(Study[WorkedExampleManifest, WorkedExampleCell, WorkedExampleRecord]):
    """The bounds on the same numbers: one cell with one record, about no classifier."""

    numbers: Numbers = Numbers()

    manifest_type = WorkedExampleManifest
    record_type = WorkedExampleRecord

    @cached_property
    def manifest(self) -> WorkedExampleManifest:
        return WorkedExampleManifest(example=self.numbers, machine=environment())

    @staticmethod
    def cells_of(manifest: WorkedExampleManifest) -> list[WorkedExampleCell]:
        return [WorkedExampleCell()]

    def measure(
        self, cell: WorkedExampleCell, progress: CellProgress = no_cell_progress
    ) -> list[WorkedExampleRecord]:
        given = self.numbers
        draws, errors = given.draws, given.most_errors if given.errors is None else given.errors
        # At least the mean of min(1, ‖f(x) − f(x̂'_i)‖₁ / rho), which the example does not state.
        mean = min(1.0, given.mean_l1 / given.margin) if given.margin > 0 else 1.0
        record = WorkedExampleRecord(
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

    def cost(self, cell: WorkedExampleCell) -> int:
        return 1

    def title(self, cell: WorkedExampleCell) -> str:
        return "the worked example of Proposition 1"

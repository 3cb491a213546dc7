"""What a reproduction found: frozen dataclasses from the records to the page; JSON only in summary.json.

Summary        one table or plot of the paper
  PartSummary  one data set of it, with its values, their data and their runs
    Column     an attack or another quantity
    Row        a defense, or a result of other authors as published
      Value    one number: the paper's, ours, and how sure ours is
    GalleryRow pictures of one image, where the part is a gallery
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json
from vqshield.images.pictures import GalleryPicture, GalleryRow
from vqshield.runs.target import ClassifierId, DataId

__all__ = [
    "Audited",
    "ClassifierId",
    "Column",
    "DataId",
    "GalleryPicture",
    "GalleryRow",
    "PaperSource",
    "PartSummary",
    "Row",
    "RunMade",
    "Summary",
    "Value",
]

View = Literal["table", "curves", "gallery", "example"]
Status = Literal["complete", "partial", "not run"]
Unit = Literal["%", "nats", ""]
Spread = Literal["std", "standard_error"]

KNOWING = ("ste", "eot", "adaptive")
"""Levels of attacks that take the defense into account; an "ignorant" one attacks the bare classifier."""
SPREADS: dict[Spread, str] = {
    "std": "standard deviation over runs",
    "standard_error": "standard error over images",
}
"""How sure a value may say it is, and what a reader calls that."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One number of a table.

    Attributes:
        paper: as published, a fraction or nats; paper_std: its standard deviation.
        ours: as measured; None where it was not measured. std: over runs; standard_error: over images.
        n: how many images ours is over; runs: how many draws of the defense.
        paired: ours over just the images that the adaptive attacks saw; paired_n: how many those are.
    """

    paper: float | None = field(default=None, metadata={"omit": True})
    paper_std: float | None = field(default=None, metadata={"omit": True})
    ours: float | None = None
    std: float | None = field(default=None, metadata={"omit": True})
    standard_error: float | None = field(default=None, metadata={"omit": True})
    n: int | None = field(default=None, metadata={"omit": True})
    runs: int | None = field(default=None, metadata={"omit": True})
    paired: float | None = field(default=None, metadata={"omit": True})
    paired_n: int | None = field(default=None, metadata={"omit": True})

    def __post_init__(self) -> None:
        for name in ("paper", "paper_std", "ours", "std", "standard_error", "paired"):
            held = getattr(self, name)
            if held is not None and not math.isfinite(held):
                raise InvalidInputError(f"{name}={held} is not a number that a table can show")
            if held is not None and held < 0 and name in ("paper_std", "std", "standard_error"):
                raise InvalidInputError(f"{name}={held} is not a spread; it should be at least 0")

    def spread(self, kind: Spread) -> float | None:
        """The spread of that kind, where it is known."""
        return self.std if kind == "std" else self.standard_error


NO_VALUE = Value()


@dataclass(frozen=True, kw_only=True)
class Column:
    """What is measured: an attack with its level (None: no attack), or a difference of two columns."""

    key: str
    title: str
    level: str | None = None
    difference: bool = field(default=False)

    @property
    def knowing(self) -> bool:
        """Whether it is an attack that takes the defense into account."""
        return self.level in KNOWING


@dataclass(frozen=True, kw_only=True)
class Row:
    """A defense by its text, with its values by the keys of the columns.

    Attributes:
        title: for people. series: the curve it belongs to, x: where on it; None in tables.
        literature: a result of other authors, shown as published.
    """

    defense: str
    title: str
    series: str | None = None
    x: float | None = None
    literature: bool = False
    values: Mapping[str, Value] = field(default_factory=dict)

    def value(self, key: str) -> Value:
        """What it says in a column; NO_VALUE where it says nothing."""
        return self.values.get(key, NO_VALUE)


@dataclass(frozen=True, kw_only=True)
class RunMade:
    """One run of `vqshield reproduce` that had a share in a part: what it was asked for, where, with what.

    Attributes:
        command: the command line, where it is known.
        batch_norm: which statistics batch norms used, where not the checkpoint's.
    """

    limit: int | None = None
    runs: int | None = None
    adaptive: str | None = None
    seed: int | None = None
    version: str | None = None
    commit: str | None = None
    machine: Mapping[str, Json] = field(default_factory=dict)
    command: str | None = field(default=None, metadata={"omit": True})
    batch_norm: str | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What the audit of a defense of a part found, a line a flag."""

    defense: str
    passed: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PartSummary:
    """What was measured of one data set.

    Attributes:
        status: whether it is finished; why: if not, the reason as text.
        stand_in: what is not the paper's, as text.
        made: the runs that had a share in it. audits: of its robust accuracies, where they were run.
        unit: of its values. eps, norm: the attacks' budget, where there is one for all.
        x_title: what the curves are plotted over. tradeoff: plot robust against natural accuracy as well.
        precision: of the classifier, where it was not float32.
    """

    name: str
    title: str
    status: Status
    why: str | None = None
    stand_in: str | None = None
    made: tuple[RunMade, ...] = ()
    data: DataId | None = None
    classifier: ClassifierId | None = None
    seconds: float = 0.0
    audits: tuple[Audited, ...] = ()
    eps: float | None = None
    norm: str | None = None
    unit: Unit = "%"
    x_title: str | None = None
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    gallery: tuple[GalleryRow, ...] = ()
    tradeoff: bool = False
    precision: str | None = None

    def __post_init__(self) -> None:
        if self.unit != "%":
            return
        for row, column, value in self.filled():
            least = -1 if column.difference else 0
            for name in ("paper", "ours", "paired"):
                held = getattr(value, name)
                if held is not None and not least <= held <= 1:
                    raise InvalidInputError(
                        f"{name}={held} of {row.title!r}, {column.key!r} in part {self.name!r} is not a "
                        f"share; valid are fractions in [{least}, 1]"
                    )

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown: fractions are shown in percent."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def only_differences(self) -> bool:
        """Whether every column holds differences of shares: these are points, and may be negative."""
        return bool(self.columns) and all(column.difference for column in self.columns)

    def filled(self) -> Iterator[tuple[Row, Column, Value]]:
        """Every value that there is, with its row and column."""
        for row in self.rows:
            for column in self.columns:
                if column.key in row.values:
                    yield row, column, row.values[column.key]

    def has_values(self, key: str) -> bool:
        """Whether a column has a number at all, the paper's or ours."""
        values = [row.value(key) for row in self.rows]
        return any(value.paper is not None or value.ours is not None for value in values)


@dataclass(frozen=True, kw_only=True)
class PaperSource:
    """Where in the paper: the label in its source, and the caption."""

    label: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One table or plot of the paper, as far as it is measured.

    Attributes:
        view: how it is shown. notes: what in the paper contradicts itself here.
        machine, version, commit, seed: of the latest run.
    """

    id: str
    title: str
    view: View
    paper: PaperSource
    complete: bool
    notes: tuple[str, ...] = ()
    parts: tuple[PartSummary, ...] = ()
    seconds: float = 0.0
    machine: Mapping[str, Json] | None = None
    version: str | None = None
    commit: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise InvalidInputError(f"part name {name!r} occurs twice; give every part a name of its own")

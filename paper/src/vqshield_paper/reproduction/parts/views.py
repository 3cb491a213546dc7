"""Other views of the accuracies of another plot: their gap (F9), their trade-off (F6a). Measured once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vqshield.runs.study import AnyStudy
from vqshield.runs.target import Target
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Value
from vqshield_paper.reproduction.parts.accuracy import ADAPTIVE, AccuracyPart
from vqshield_paper.reproduction.parts.base import Options, Part, paper_value
from vqshield_paper.reproduction.published import PublishedValue

_NATURAL, _ROBUST, _GAP, _ADAPTIVE_GAP = "natural", "autoattack", "gap", "adaptive_gap"


@dataclass(frozen=True, kw_only=True)
class ViewPart(Part):
    """source: the accuracies it is made from; of: the experiment they belong to."""

    of: str
    source: AccuracyPart

    def home(self, out: Path, id: str) -> Path:
        """The folder of the other experiment: its records serve both."""
        return self.source.home(out, self.of)

    def studies(self, options: Options, target: Target) -> Mapping[str, AnyStudy]:
        """Those of the other experiment."""
        return self.source.studies(options, target)


@dataclass(frozen=True, kw_only=True)
class TradeoffPart(ViewPart):
    """Robust against natural accuracy, point by point: the same rows, with the values of this plot."""

    kind = "tradeoff"

    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        found = self.source.summarise(home, published)
        return replace(found, name=self.name, title=self.title, tradeoff=True)


@dataclass(frozen=True, kw_only=True)
class GapPart(ViewPart):
    """Natural less robust accuracy: one value a row."""

    kind = "gap"

    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        found = self.source.summarise(home, ())
        rows = tuple(self._row(row, published) for row in found.rows)
        columns = [Column(key=_GAP, title="natural − AutoAttack", difference=True)]
        if any(_ADAPTIVE_GAP in row.values for row in rows):
            columns.append(Column(key=_ADAPTIVE_GAP, title="natural − adaptive", difference=True))
        return replace(found, name=self.name, title=self.title, columns=tuple(columns), rows=rows)

    def _row(self, row: Row, published: Sequence[PublishedValue]) -> Row:
        paper = paper_value(published, data=self.data, defense=row.defense, measure=_GAP, x=row.x)
        ours = _difference(row, _ROBUST)
        values = {_GAP: replace(ours, paper=paper.paper, paper_std=paper.paper_std)}
        if row.value(ADAPTIVE).ours is not None:
            values[_ADAPTIVE_GAP] = _difference(row, ADAPTIVE)
        return replace(row, values=values)


def _difference(row: Row, key: str) -> Value:
    """Both over the same images: those that the adaptive attacks saw, where it is about them."""
    plain, robust = row.value(_NATURAL), row.value(key)
    for natural, count in ((plain.ours, plain.n), (plain.paired, plain.paired_n)):
        if natural is not None and robust.ours is not None and count == robust.n:
            return Value(ours=natural - robust.ours, n=count, runs=robust.runs)
    return Value()

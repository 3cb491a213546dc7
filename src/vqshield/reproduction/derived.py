"""Other views of the accuracies of another figure: their gap (F9), their trade-off (F6a). Measured once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vqshield.reproduction.accuracy import AccuracyPart
from vqshield.reproduction.part import Options, Part, Row, beside
from vqshield.reproduction.published import Figure
from vqshield.runs.jobs import Job, SubjectRequest

PLAIN, ROBUST, GAP = "natural", "autoattack", "gap"


@dataclass(frozen=True, kw_only=True)
class DerivedPart(Part):
    """source: the accuracies it is made from; of: the experiment they belong to."""

    of: str
    source: AccuracyPart

    def home(self, out: Path, id: str) -> Path:
        """The folder of the other experiment: its records serve both."""
        return self.source.home(out, self.of)

    def jobs(self, options: Options, subject: SubjectRequest) -> dict[str, Job]:
        """Those of the other experiment."""
        return self.source.jobs(options, subject)


@dataclass(frozen=True, kw_only=True)
class TradeoffPart(DerivedPart):
    """Robust against natural accuracy, point by point."""

    kind = "tradeoff"

    def summary(self, home: Path, figures: Sequence[Figure]) -> dict[str, Any]:
        """The same rows, beside what this figure published."""
        return {**self.source.summary(home, figures), "tradeoff": True}


@dataclass(frozen=True, kw_only=True)
class GapPart(DerivedPart):
    """Natural less robust accuracy."""

    kind = "gap"

    def summary(self, home: Path, figures: Sequence[Figure]) -> dict[str, Any]:
        """One figure a row."""
        found = self.source.summary(home, ())
        rows = [self._row(row, figures) for row in found["rows"]]
        columns = [
            {"key": GAP, "title": "natural − AutoAttack", "level": None, "difference": True},
            {"key": "adaptive_gap", "title": "natural − adaptive", "level": None, "difference": True},
        ]
        if not any("adaptive_gap" in row["figures"] for row in rows):
            columns.pop()
        return {**found, "columns": columns, "rows": rows}

    def _row(self, row: Row, figures: Sequence[Figure]) -> Row:
        assert self.data is not None
        published = beside(figures, data=self.data, defense=row["defense"], measure=GAP, x=row["x"])
        shown = {GAP: {**published, **_difference(row, ROBUST)}}
        if row["figures"].get("adaptive", {}).get("ours") is not None:
            shown["adaptive_gap"] = _difference(row, "adaptive")
        return {**row, "figures": shown}


def _difference(row: Row, key: str) -> dict[str, Any]:
    """Both over the same images: those that the adaptive attacks saw, where it is about them."""
    plain, robust = row["figures"][PLAIN], row["figures"].get(key, {"ours": None})
    for natural, count in ((plain["ours"], plain.get("n")), (plain.get("paired"), plain.get("paired_n"))):
        if None not in (natural, robust["ours"]) and count == robust["n"]:
            return {"ours": natural - robust["ours"], "n": count, "runs": robust["runs"]}
    return {"ours": None}

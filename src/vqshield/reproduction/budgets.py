"""Figures against the attack's budget: what certified accuracy (F7) and the KL diagnostic (F8) share."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vqshield import checks
from vqshield.reproduction.part import Part, about, beside, quantity, row_of, series, shown
from vqshield.reproduction.published import Figure
from vqshield.settings import format_value


@dataclass(frozen=True, kw_only=True)
class BudgetPart(Part):
    """eps: the budgets as the paper plots them, in units of `unit`: "1/255", or 1.

    attack: as typed; one that ignores the defense, as the paper's. count: images.
    """

    defenses: tuple[str, ...]
    attack: str
    eps: tuple[float, ...]
    unit: float = 1.0
    count: int
    shown_unit: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "unit", quantity("unit", self.unit))
        checks.whole("count", self.count, least=1)

    @property
    def budgets(self) -> dict[float, float]:
        """Every budget, by where it is plotted."""
        return {x: x * self.unit for x in self.eps}

    def summary(self, home: Path, figures: Sequence[Figure]) -> dict[str, Any]:
        """A row for every defense and budget."""
        found = self.found(home)
        assert self.data is not None
        rows = []
        for defense in self.defenses:
            for x, eps in self.budgets.items():
                cells = self.figures(found, defense, eps)
                published = beside(figures, data=self.data, defense=defense, measure=self.measure, x=x)
                cells[self.measure] = {**published, **cells[self.measure]}
                title = f"{shown(defense)}, ε={format(eps, 'g') if self.unit == 1 else format_value(eps)}"
                rows.append(row_of(defense, title, cells, x=x, of=series(defense)))
        return {
            **next((about(each["specification"]) for each in found.values()), {}),
            "eps": None,
            "norm": "linf",
            "x_title": "ε" if self.unit == 1 else "ε · 255",
            "unit": self.shown_unit,
            "columns": self.columns,
            "rows": rows,
            "precision": next((each["specification"].get("precision") for each in found.values()), None),
            "complete": bool(found) and all(each["complete"] for each in found.values()),
            "seconds": sum(each["seconds"] for each in found.values()),
        }

    measure: ClassVar[str]

    @property
    @abstractmethod
    def columns(self) -> list[dict[str, Any]]:
        """What is shown."""

    @abstractmethod
    def found(self, home: Path) -> dict[str, Any]:
        """The summaries of the jobs that have begun."""

    @abstractmethod
    def figures(self, found: Mapping[str, Any], defense: str, eps: float) -> dict[str, dict[str, Any]]:
        """Ours, by column; the key `measure` always."""

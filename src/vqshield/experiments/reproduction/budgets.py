"""Figures against the attack's budget: certified accuracy (F7) and the KL diagnostic (F8)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from vqshield import checks
from vqshield.certificates import bounds
from vqshield.experiments.certification_settings import CertificationSettings
from vqshield.experiments.certification_summary import summarise_certification_folder
from vqshield.experiments.divergence import DivergenceSettings
from vqshield.experiments.divergence_records import DivergenceRecord, summarise_divergence
from vqshield.experiments.divergence_study import DivergenceStudySettings
from vqshield.experiments.divergence_study import cells as divergence_cells
from vqshield.experiments.jobs import Job, SubjectRequest
from vqshield.experiments.published import Figure
from vqshield.experiments.reproduction.part import (
    Options,
    Part,
    Row,
    about,
    beside,
    given,
    quantity,
    recorded,
    series,
    shown,
)
from vqshield.settings import format_value

BATCH = {True: 8000, False: 500}
"""Draws at once, by whether there is a GPU."""
PRECISION = {True: "bf16", False: "fp32"}
STUDY = "study"
LABELS = {"label_codebooks": 8, "lines": 64}
"""Few: the second term takes most of the time, and the figure leaves it out."""


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
    def images(self) -> int | None:
        """How many images it needs at most."""
        return self.count

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
                rows.append(
                    _row(defense, x, eps, {**cells, self.measure: {**published, **cells[self.measure]}})
                )
        return {
            **next((about(each["specification"]) for each in found.values()), {}),
            "eps": None,
            "norm": "linf",
            "x_title": "ε" if self.unit == 1 else "ε · 255",
            "unit": self.shown_unit,
            "columns": self.columns,
            "rows": rows,
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


@dataclass(frozen=True, kw_only=True)
class CertifiedPart(BudgetPart):
    """draws, delta: m, and the chance that a bound fails."""

    kind = "certified"
    shown_unit = "%"
    measure = "certified"
    draws: int = 1000
    delta: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.defenses:
            self._settings(Options(), text)

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The paper's bound, the others, and what they bound."""
        others = [{"key": name, "title": name, "level": None} for name in bounds() if name != "proposition1"]
        return [
            {"key": "certified", "title": "Proposition 1", "level": None},
            *others,
            {"key": "accuracy", "title": f"measured, {self.attack.partition(':')[0]}", "level": "ignorant"},
        ]

    def jobs(self, options: Options, subject: SubjectRequest) -> dict[str, Job]:
        """One for each defense."""
        limited, shared = replace(subject, limit=options.images(self.count)), options.shared
        return {
            _folder(text): Job(
                kind="certification", settings=self._settings(options, text), subject=limited, shared=shared
            )
            for text in self.defenses
        }

    def found(self, home: Path) -> dict[str, Any]:
        """By defense."""
        return {
            text: summarise_certification_folder(home / _folder(text))
            for text in self.defenses
            if given(home / _folder(text))
        }

    def figures(self, found: Mapping[str, Any], defense: str, eps: float) -> dict[str, dict[str, Any]]:
        """Certified accuracies, mean over the images."""
        for row in found[defense]["draws"] if defense in found else ():
            if row["eps"] == eps:
                counted = {"n": row["images"], "runs": row["draws"]}
                values = {name: figure["certified_accuracy"] for name, figure in row["bounds"].items()}
                values = {"certified": values.pop("proposition1"), **values, "accuracy": row["accuracy"]}
                return {name: {"ours": value, **counted} for name, value in values.items()}
        return {"certified": {"ours": None}}

    def _settings(self, options: Options, defense: str) -> CertificationSettings:
        return CertificationSettings(
            defense=defense,
            certificate="draws",
            attack=self.attack,
            eps=tuple(eps for eps in self.budgets.values() if eps),
            draws=self.draws,
            delta=self.delta,
            seed=options.seed,
            batch=BATCH[options.on_gpu],
            precision=PRECISION[options.on_gpu],
        )


@dataclass(frozen=True, kw_only=True)
class DivergencePart(BudgetPart):
    """codebooks: drawn of every image."""

    kind = "divergence"
    shown_unit = "nats"
    measure = "kl"
    codebooks: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings(Options())

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The estimate means nothing without its floor."""
        titles = {"kl": "KL estimate", "floor": "floor: the same image twice", "excess": "above the floor"}
        return [{"key": key, "title": title, "level": None} for key, title in titles.items()]

    def jobs(self, options: Options, subject: SubjectRequest) -> dict[str, Job]:
        """One study of all defenses."""
        limited = replace(subject, limit=options.images(self.count))
        return {STUDY: Job(kind="divergence", settings=self._settings(options), subject=limited)}

    def found(self, home: Path) -> dict[str, Any]:
        """The one study."""
        if not given(home / STUDY):
            return {}
        folder = home / STUDY
        return {STUDY: recorded(folder, divergence_cells, DivergenceRecord.parse, summarise_divergence)}

    def figures(self, found: Mapping[str, Any], defense: str, eps: float) -> dict[str, dict[str, Any]]:
        """Means over the images; the spread is that between images."""
        for row in found[STUDY]["rows"] if STUDY in found else ():
            if (row["defense"], row["eps"]) == (defense, eps):
                return {
                    name: {
                        "ours": row[name]["mean"],
                        "standard_error": row[name]["standard_error"],
                        "n": row["images"],
                    }
                    for name in ("kl", "floor", "excess")
                }
        return {"kl": {"ours": None}}

    def _settings(self, options: Options) -> DivergenceStudySettings:
        return DivergenceStudySettings(
            defenses=self.defenses,
            eps=tuple(self.budgets.values()),
            attack=self.attack,
            images=options.images(self.count),
            divergence=DivergenceSettings(
                codebooks=self.codebooks,
                label_codebooks=min(LABELS["label_codebooks"], self.codebooks),
                lines=LABELS["lines"],
                seed=options.seed,
            ),
            seed=options.seed,
        )


def _row(defense: str, x: float, eps: float, figures: dict[str, dict[str, Any]]) -> Row:
    return {
        "defense": defense,
        "title": f"{shown(defense)}, ε={format_value(eps)}",
        "series": series(defense),
        "x": x,
        "literature": False,
        "figures": figures,
    }


def _folder(defense: str) -> str:
    return defense.replace(":", "-").replace(",", "-").replace("=", "").replace("/", "of")

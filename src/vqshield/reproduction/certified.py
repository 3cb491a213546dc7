"""Certified accuracy of given images against the attack's budget: every bound beside Proposition 1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vqshield.certificates import list_bounds
from vqshield.reproduction.budgets import BudgetPart
from vqshield.reproduction.part import Options, given
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.studies.certification_settings import CertificationSettings
from vqshield.studies.certification_summary import summarise_certification_folder

BATCH = {True: 8000, False: 500}
"""Draws at once, by whether there is a GPU."""
PRECISION = {True: "bf16", False: "fp32"}
TITLES = {
    "truncated_markov": "truncated Markov",
    "empirical_bernstein": "empirical Bernstein",
    "clopper_pearson": "Clopper–Pearson",
}


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
        others = [
            {"key": name, "title": TITLES.get(name, name), "level": None}
            for name in list_bounds()
            if name != "proposition1"
        ]
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
            draws=options.runs or self.draws,
            delta=self.delta,
            seed=options.seed,
            batch=BATCH[options.on_gpu],
            precision=PRECISION[options.on_gpu],
        )


def _folder(defense: str) -> str:
    return defense.replace(":", "-").replace(",", "-").replace("=", "").replace("/", "of")

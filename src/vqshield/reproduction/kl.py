"""The KL diagnostic against the attack's budget, with its floor."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vqshield.diagnostics.measurement import DivergenceSettings
from vqshield.reproduction.budgets import BudgetPart
from vqshield.reproduction.part import Options, given, recorded
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.studies.kl import DivergenceStudySettings, cells
from vqshield.studies.kl_records import FIGURES, DivergenceRecord, summarise_divergence

STUDY = "study"
LABEL_IMAGES = 10
LABELS = {"label_codebooks": 8, "lines": 64}
"""Few: the second term takes most of the time, and the figure leaves it out."""
BATCH = {True: 10_000, False: 1000}
"""Codebooks at a time, on a GPU and elsewhere."""


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
        job = Job(kind="divergence", settings=self._settings(options), subject=limited, shared=options.shared)
        return {STUDY: job}

    def found(self, home: Path) -> dict[str, Any]:
        """The one study."""
        if not given(home / STUDY):
            return {}
        folder = home / STUDY
        return {STUDY: recorded(folder, cells, DivergenceRecord.parse, summarise_divergence)}

    def figures(self, found: Mapping[str, Any], defense: str, eps: float) -> dict[str, dict[str, Any]]:
        """Means over the images; the spread is that between images. No column shows the second term."""
        for row in found[STUDY]["rows"] if STUDY in found else ():
            if (row["defense"], row["eps"]) == (defense, eps):
                counts = {**dict.fromkeys(FIGURES, row["images"]), "second": row["second_images"]}
                return {
                    name: {
                        "ours": row[name]["mean"],
                        "standard_error": row[name]["standard_error"],
                        "n": count,
                    }
                    for name, count in counts.items()
                    if count
                }
        return {"kl": {"ours": None}}

    def _settings(self, options: Options) -> DivergenceStudySettings:
        return DivergenceStudySettings(
            defenses=self.defenses,
            eps=tuple(self.budgets.values()),
            attack=self.attack,
            images=options.images(self.count),
            label_images=LABEL_IMAGES,
            divergence=DivergenceSettings(
                codebooks=self.codebooks,
                label_codebooks=min(LABELS["label_codebooks"], self.codebooks),
                lines=LABELS["lines"],
                batch=BATCH[options.on_gpu],
                seed=options.seed,
            ),
            seed=options.seed,
        )

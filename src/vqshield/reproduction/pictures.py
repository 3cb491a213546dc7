"""Galleries (F1, F10) and the worked example (E1): parts without a grid."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vqshield.reproduction.part import Options, Part, about, given, quantity, recorded, row_of
from vqshield.reproduction.published import Figure
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.studies.gallery import GallerySettings
from vqshield.studies.gallery import cells as gallery_cells
from vqshield.studies.gallery_records import PictureRecord, summarise_gallery
from vqshield.studies.worked_example import ExampleCell, ExampleRecord, ExampleSettings, summarise_example

GALLERY, EXAMPLE = "gallery", "example"


@dataclass(frozen=True, kw_only=True)
class GalleryPart(Part):
    """shown: the places of the images in the data set."""

    kind = "gallery"
    defenses: tuple[str, ...]
    attack: str
    eps: float
    shown: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", quantity("eps", self.eps))
        self._settings(Options())

    def jobs(self, options: Options, subject: SubjectRequest) -> dict[str, Job]:
        """One gallery."""
        settings = self._settings(options)
        limited = replace(subject, limit=max(settings.images) + 1)
        return {GALLERY: Job(kind="gallery", settings=settings, subject=limited)}

    def summary(self, home: Path, figures: Sequence[Figure]) -> dict[str, Any]:
        """The pictures."""
        found = None
        if given(home / GALLERY):
            found = recorded(home / GALLERY, gallery_cells, PictureRecord.parse, summarise_gallery)
        return {
            **(about(found["specification"]) if found else {}),
            "eps": self.eps,
            "norm": "linf",
            "x_title": None,
            "unit": "%",
            "columns": [],
            "rows": [],
            "gallery": found["gallery"] if found else [],
            "complete": bool(found and found["complete"]),
            "seconds": found["seconds"] if found else 0.0,
        }

    def _settings(self, options: Options) -> GallerySettings:
        return GallerySettings(
            defenses=self.defenses,
            attack=self.attack,
            eps=self.eps,
            images=self.shown[: options.images(len(self.shown))],
            seed=options.seed,
        )


@dataclass(frozen=True, kw_only=True)
class ExamplePart(Part):
    """Numbers alone."""

    kind = "example"
    needs_data = False

    def jobs(self, options: Options, subject: SubjectRequest) -> dict[str, Job]:
        """One computation."""
        return {EXAMPLE: Job(kind="example", settings=ExampleSettings(), subject=subject)}

    def summary(self, home: Path, figures: Sequence[Figure]) -> dict[str, Any]:
        """A row for every delta."""
        titles = {
            "proposition1": "Proposition 1",
            "truncated_markov": "truncated Markov",
            "clopper_pearson": "Clopper–Pearson",
        }
        rows = []
        for row in self._found(home):
            bounds = {key: {"ours": row[key], "runs": row["draws"]} for key in titles}
            bounds["proposition1"]["paper"] = row["published"]
            delta = f"{row['delta']:g}"
            rows.append(row_of(f"delta={delta}", f"error bound, δ = {delta}", bounds))
        return {
            "eps": None,
            "norm": "",
            "x_title": None,
            "unit": "",
            "columns": [{"key": key, "title": title, "level": None} for key, title in titles.items()],
            "rows": rows,
            "complete": bool(rows),
        }

    def _found(self, home: Path) -> list[dict[str, Any]]:
        folder = home / EXAMPLE
        if not given(folder):
            return []
        found = recorded(folder, lambda _: [ExampleCell()], ExampleRecord.parse, summarise_example)
        rows: list[dict[str, Any]] = found["rows"]
        return rows

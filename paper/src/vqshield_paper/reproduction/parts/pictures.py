"""Galleries (F1, F10) and the worked example (E1): parts without a grid of defenses and attacks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vqshield.core.display_names import BOUND_NAMES
from vqshield.runs.target import Target
from vqshield_paper.gallery import Gallery, GallerySummary
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Value
from vqshield_paper.reproduction.parts.base import Options, Part, is_begun, quantity
from vqshield_paper.reproduction.published import PublishedValue
from vqshield_paper.worked_example import WorkedExample, WorkedExampleRecord

_GALLERY, _EXAMPLE = "gallery", "example"
_BOUNDS = ("proposition1", "truncated_markov", "clopper_pearson")


@dataclass(frozen=True, kw_only=True)
class GalleryPart(Part):
    """shown: the places of the images in the data set."""

    kind = "gallery"
    defenses: tuple[str, ...]
    attack: str
    eps: float | str
    shown: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", quantity("eps", self.eps))
        self.studies(Options(), Target())

    def studies(self, options: Options, target: Target) -> dict[str, Gallery]:
        """One gallery."""
        shown = self.shown[: options.images(len(self.shown))]
        study = Gallery(
            target=replace(target, limit=max(shown, default=0) + 1),
            defenses=self.defenses,
            attack=self.attack,
            eps=float(self.eps),
            images=shown,
            seed=options.seed,
        )
        return {_GALLERY: study}

    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        folder = home / _GALLERY
        found = GallerySummary.of(Gallery.read(folder)) if is_begun(folder) else None
        return PartSummary(
            name=self.name,
            title=self.title,
            status="complete" if found and found.complete else "partial",
            data=found.manifest.data if found else None,
            classifier=found.manifest.classifier if found else None,
            eps=float(self.eps),
            norm="linf",
            gallery=found.rows if found else (),
            seconds=found.seconds if found else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class ExamplePart(Part):
    """Numbers alone: a row for every delta."""

    kind = "example"
    needs_data = False

    def studies(self, options: Options, target: Target) -> dict[str, WorkedExample]:
        """One computation."""
        return {_EXAMPLE: WorkedExample()}

    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        folder = home / _EXAMPLE
        records = WorkedExample.read(folder).records if is_begun(folder) else ()
        return PartSummary(
            name=self.name,
            title=self.title,
            status="complete" if records else "partial",
            norm="",
            unit="",
            columns=tuple(Column(key=key, title=BOUND_NAMES[key]) for key in _BOUNDS),
            rows=tuple(row for record in records for row in _rows(record)),
        )


def _rows(record: WorkedExampleRecord) -> list[Row]:
    rows = []
    for number, delta in enumerate(record.deltas):
        values = {key: Value(ours=getattr(record, key)[number], runs=record.draws) for key in _BOUNDS}
        if record.published:
            values["proposition1"] = replace(values["proposition1"], paper=record.published[number])
        title = f"error bound, δ = {delta:g}"
        rows.append(Row(defense=f"delta={delta:g}", title=title, values=values))
    return rows

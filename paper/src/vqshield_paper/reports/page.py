"""A reproduced experiment as a page that needs no network, no script and no other file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vqshield.core.errors import InvalidInputError
from vqshield.reports.html import page
from vqshield.reports.plots import Plot
from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.grid import screen_table
from vqshield_paper.reports.notices import part_audits, part_warnings, unfinished
from vqshield_paper.reports.pages import PICTURES, TEMPLATES
from vqshield_paper.reports.provenance import Facts, part_facts, section_title, summary_facts
from vqshield_paper.reproduction.model import GalleryRow, PartSummary, Summary


@dataclass(frozen=True, kw_only=True)
class _Section:
    """What the template shows of a part."""

    title: str
    warnings: list[str]
    table: str
    rows: int
    plots: Sequence[Plot]
    gallery: tuple[GalleryRow, ...]
    facts: Facts
    audits: list[tuple[str, tuple[str, ...]]]


def render_html(summary: Summary, plots: Mapping[str, Sequence[Plot]]) -> str:
    """The page; plots gives the plots of a part by the part's name."""
    return page(
        "reproduction.html",
        folder=TEMPLATES,
        title=f"{summary.id}: {summary.title}",
        warnings=unfinished(summary),
        sentence=headline(summary),
        parts=[_section(part, plots.get(part.name, ())) for part in summary.parts],
        notes=summary.notes,
        facts=summary_facts(summary),
    )


def _section(part: PartSummary, plots: Sequence[Plot]) -> _Section:
    _refuse_pictures_from_elsewhere(part)
    return _Section(
        title=section_title(part),
        warnings=part_warnings(part),
        table=screen_table(part).html() if part.rows else "",
        rows=len(part.rows),
        plots=plots,
        gallery=part.gallery,
        facts=part_facts(part),
        audits=part_audits(part),
    )


def _refuse_pictures_from_elsewhere(part: PartSummary) -> None:
    """They would be fetched when the page is read."""
    for row in part.gallery:
        for picture in row.pictures:
            if not picture.image.startswith(PICTURES):
                raise InvalidInputError(
                    f"image={picture.image[:60]!r} of {row.label!r} is not inside the summary; "
                    f"valid are addresses that begin with {' or '.join(PICTURES)}"
                )

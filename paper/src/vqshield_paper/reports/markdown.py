"""A reproduced experiment as GitHub shows Markdown."""

from collections.abc import Iterable, Mapping, Sequence

from vqshield.reports.text import escape_markdown
from vqshield_paper.reports.comparison import headline
from vqshield_paper.reports.grid import document_table
from vqshield_paper.reports.notices import part_audits, part_warnings, unfinished
from vqshield_paper.reports.provenance import part_facts, section_title, summary_facts
from vqshield_paper.reproduction.model import GalleryPicture, GalleryRow, Summary


def render_markdown(summary: Summary, plots: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The report; plots gives by a part's name its pictures: (file, text)."""
    blocks = [f"# {escape_markdown(summary.id)}: {escape_markdown(summary.title)}"]
    blocks += [_strong(line) for line in unfinished(summary)]
    if sentence := headline(summary):
        blocks.append(f"> {escape_markdown(sentence)}")
    for part in summary.parts:
        blocks.append(f"## {escape_markdown(section_title(part))}")
        blocks += [_strong(line) for line in part_warnings(part)]
        blocks += [f"![{escape_markdown(text)}]({file})" for file, text in plots.get(part.name, ())]
        if part.rows:
            table = document_table(part)
            blocks += filter(None, [table.markdown(notes=True, low="**"), escape_markdown(table.caption)])
        elif not part.gallery:
            blocks.append("No values.")
        if part.gallery:
            blocks += [_list(map(_gallery_row, part.gallery)), "The pictures are in report.html."]
        if facts := part_facts(part):
            blocks.append(_list(map(_pair, facts)))
        for heading, lines in part_audits(part):
            blocks += [_strong(heading), *([_list(map(escape_markdown, lines))] if lines else [])]
    if summary.notes:
        blocks += ["## Notes on the paper", _list(map(escape_markdown, summary.notes))]
    blocks += ["## How this was made", _list(map(_pair, summary_facts(summary)))]
    return "\n\n".join(blocks) + "\n"


def _gallery_row(row: GalleryRow) -> str:
    shown = "; ".join(
        picture.caption + (f": {_verdict(picture)}" if picture.verdict is not None else "")
        for picture in row.pictures
    )
    return _pair((row.label, shown))


def _verdict(picture: GalleryPicture) -> str:
    """What the classifier takes a picture for, and whether that is right."""
    return {True: "✓ ", False: "✗ ", None: ""}[picture.correct] + str(picture.verdict)


def _pair(pair: tuple[str, str]) -> str:
    name, text = pair
    return f"{escape_markdown(name)}: {escape_markdown(text)}"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _strong(line: str) -> str:
    return f"**{escape_markdown(line)}**"

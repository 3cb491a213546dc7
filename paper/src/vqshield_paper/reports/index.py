"""One page over all reproduced experiments of a folder, with links to their reports."""

import base64
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.core.serialization import from_plain
from vqshield.images.files import pillow
from vqshield.images.pictures import png_uri
from vqshield.reports.html import page
from vqshield.reports.text import duration
from vqshield_paper.reports.comparison import RULE, VERDICTS, Verdict, distances, headline, verdict
from vqshield_paper.reports.pages import PICTURES, TEMPLATES
from vqshield_paper.reports.plots import part_plots
from vqshield_paper.reports.provenance import section_title
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.model import Summary

INDEX = "index.html"
_TITLE = "The paper's results, measured again"
_SIDE = 480  # pixels of a thumbnail's width, twice what a page shows
_MARKS: dict[Verdict, str] = {
    "agrees": "pass",
    "contradicted": "fail",
    "differs": "",
    "not compared": "quiet",
}
_COUNTED: dict[Verdict, str] = {
    "agrees": "agree", "differs": "differ", "contradicted": "contradicted", "not compared": "not compared",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """An experiment on the page.

    Attributes:
        href: its report, where there is one. pictures: data URIs, and what they show.
        distances: of each data set from the paper, first the one that decides. undone: not measured yet.
    """

    id: str
    title: str
    href: str | None
    pictures: list[tuple[str, str]]
    pixels: bool
    verdict: Verdict
    mark: str
    distances: list[str]
    sentence: str | None
    undone: list[str]
    time: str


def write_index(folder: str | Path) -> Path:
    """Write index.html: whether each experiment below the folder agrees with the paper, and a picture.

    Args:
        folder: OUT of `vqshield reproduce`, which holds a folder for every experiment.

    Raises:
        InvalidInputError: none of its folders has a summary.json.
        FileFormatError: a summary.json cannot be read.
    """
    found = {path.parent: read_summary(path) for path in Path(folder).glob("*/summary.json")}
    if not found:
        raise InvalidInputError(
            f"found no summary.json in any folder of {folder}; give OUT of vqshield reproduce"
        )
    order = published.ids()
    ranked = sorted(
        (order.index(summary.id) if summary.id in order else len(order), summary.id, where)
        for where, summary in found.items()
    )
    entries = [_entry(where, found[where]) for *_, where in ranked]
    counts = Counter(each.verdict for each in entries)
    text = page(
        "index.html",
        folder=TEMPLATES,
        title=_TITLE,
        entries=entries,
        counts=[(_MARKS[each], f"{_COUNTED[each]}: {counts[each]}") for each in VERDICTS if counts[each]],
        rule=RULE,
    )
    write_atomically(Path(folder) / INDEX, text.encode())
    return Path(folder) / INDEX


def read_summary(path: Path) -> Summary:
    """What a summary.json holds; unknown keys are ignored."""
    try:
        plain = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    return from_plain(Summary, plain, str(path), strict=False)


def _entry(folder: Path, summary: Summary) -> _Entry:
    result, gallery = verdict(summary), _gallery(summary)
    return _Entry(
        id=summary.id,
        title=summary.title,
        href=f"{folder.name}/report.html" if (folder / "report.html").is_file() else None,
        pictures=gallery or _plot(folder, summary),
        pixels=bool(gallery),
        verdict=result,
        mark=_MARKS[result],
        distances=[
            f"{section_title(part)}: {far.text}{', other data than the paper' if part.stand_in else ''}"
            for part, far in distances(summary)
        ],
        sentence=headline(summary),
        undone=[
            f"{section_title(part)}: {part.status}" for part in summary.parts if part.status != "complete"
        ],
        time=duration(summary.seconds),
    )


def _gallery(summary: Summary) -> list[tuple[str, str]]:
    """The first pictures of a gallery, and what they show."""
    rows = [row for part in summary.parts for row in part.gallery][:1]
    return [
        (each.image, f"{row.label}, {each.caption}: classified as {each.verdict}")
        for row in rows
        for each in row.pictures[:3]
        if each.image.startswith(PICTURES)
    ]


def _plot(folder: Path, summary: Summary) -> list[tuple[str, str]]:
    """The first plot in the folder, small, and what it shows."""
    plots = [plot for part in summary.parts for plot in part_plots(part, summary.view)]
    return [(_small(path), plot.text) for plot in plots if (path := folder / f"{plot.name}.png").is_file()][
        :1
    ]


def _small(path: Path) -> str:
    with pillow().open(path) as image:
        image.thumbnail((_SIDE, _SIDE))
        stream = io.BytesIO()
        # An octree keeps colors that few pixels have: those of dots and curves.
        image.convert("RGB").quantize(64, method=pillow().Quantize.FASTOCTREE).save(stream, "PNG")
    return png_uri(base64.b64encode(stream.getvalue()).decode("ascii"))

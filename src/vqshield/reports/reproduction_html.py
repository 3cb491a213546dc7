"""A reproduced experiment as a page that needs no network, no script and no other file."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from vqshield.errors import InvalidInputError
from vqshield.reports.html import page
from vqshield.reports.reproduction_facts import (
    headline,
    part_audit,
    part_facts,
    part_warnings,
    summary_facts,
    warnings,
)
from vqshield.reports.reproduction_figures import grid
from vqshield.reports.reproduction_plots import Plot

_LONG = 12  # a longer table stands folded under its curves
_PICTURES = ("data:image/png;base64,", "data:image/jpeg;base64,", "data:image/svg+xml;base64,")


def render_html(summary: Mapping[str, Any], plots: Mapping[str, Sequence[Plot]]) -> str:
    """The page; plots gives the plots of a part by the part's name."""
    return page(
        "reproduction.html",
        title=f"{summary['id']}: {summary['title']}",
        warnings=warnings(summary),
        sentence=headline(summary),
        parts=[_part(part, plots.get(part["name"], ())) for part in summary["parts"]],
        notes=summary.get("notes") or [],
        facts=summary_facts(summary),
    )


def _part(part: Mapping[str, Any], plots: Sequence[Plot]) -> dict[str, Any]:
    table = grid(part) if part["rows"] else None
    return {
        "title": part["title"],
        "warnings": part_warnings(part),
        "grid": table,
        "legend": table.legend("red") if table else "",
        "difference_unit": {"%": " points", "nats": " nats"}.get(part["unit"], ""),
        "folded": bool(plots) and len(part["rows"]) > _LONG,
        "plots": [
            {"light": _inline(plot.svg), "dark": _inline(plot.dark_svg), "text": plot.text} for plot in plots
        ],
        "gallery": [_strip(entry) for entry in part.get("gallery") or ()],
        "facts": part_facts(part),
        "audit": part_audit(part),
    }


def _strip(entry: Mapping[str, Any]) -> dict[str, Any]:
    """One image's pictures; a picture from anywhere else would be fetched when the page is read."""
    for picture in entry["pictures"]:
        if not str(picture["image"]).startswith(_PICTURES):
            raise InvalidInputError(
                f"image={str(picture['image'])[:60]!r} of {entry['label']!r} is not inside the summary; "
                f"valid are addresses that begin with {' or '.join(_PICTURES)}"
            )
    pictures = [{"verdict": None, "correct": None, **picture} for picture in entry["pictures"]]
    return {"label": entry["label"], "pictures": pictures}


def _inline(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"

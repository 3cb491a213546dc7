"""HTML pages that need no network, no script and no other file; the demo's figures and pictures as one."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vqshield.errors import MissingExtraError
from vqshield.images import encode_png
from vqshield.reports.pivot import THREATS, Pivot, percent, pivot
from vqshield.settings import format_value

TEMPLATES = Path(__file__).parent / "templates"


def render_demo(summary: Mapping[str, Any], gallery: Sequence[Mapping[str, Any]]) -> str:
    """The page of a demo: pivoted table, the sentences on what it means, gallery, and what it was made with.

    `summary` is what summary.json holds; `gallery` is a list of {"label", "pictures": [{"caption", "image"
    (uint8 HxWx3), "verdict", "correct"}]}, one entry per image with the columns in the order given.
    """
    figures = pivot(summary["rows"])
    return page(
        "demo.html",
        title=summary.get("title", "What the shield is worth"),
        figures=figures,
        threat_titles=THREATS,
        attacks=_attacks_by_threat(figures),
        sentences=summary.get("sentences", []),
        gallery=[{"label": entry["label"], "pictures": _inline(entry["pictures"])} for entry in gallery],
        epsilon=_text(summary["epsilon"]) if summary.get("epsilon") is not None else None,
        facts=_facts(summary),
    )


def page(template: str, **values: Any) -> str:
    """A page of the package's templates, filled in."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError("jinja2", "cli") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,  # labels and captions may be file names, and those may be anything
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template(template).render(**values)


def _attacks_by_threat(figures: Pivot) -> dict[str, str]:
    """The attacks behind each column, as a note under its heading."""
    names = {
        threat: {line.cells[threat].attack: None for line in figures.lines if threat in line.cells}
        for threat in figures.threats
        if threat != "none"
    }
    return {threat: ", ".join(filter(None, attacks)) for threat, attacks in names.items()}


def _inline(pictures: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    inlined = []
    for picture in pictures:
        encoded = base64.b64encode(encode_png(picture["image"])).decode("ascii")
        inlined.append({**picture, "image": f"data:image/png;base64,{encoded}"})
    return inlined


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader needs to run the demo again, as pairs of name and text."""
    facts = [("Budget ε (L∞)", summary.get("epsilon")), ("Seeds", summary.get("seeds"))]
    for group in ("versions", "machine"):
        value = summary.get(group) or {}
        facts += value.items() if isinstance(value, Mapping) else [(group.capitalize(), value)]
    seconds = summary.get("seconds")
    facts.append(("Time", None if seconds is None else f"{seconds:.0f} s"))
    return [(str(name), _text(value)) for name, value in facts if value is not None]


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return format_value(value)

"""HTML pages that need no network, no script and no other file."""

import base64
from pathlib import Path
from typing import Any

from vqshield.core.entry_points import require

TEMPLATES = Path(__file__).parent / "templates"


def page(template: str, *, folder: Path = TEMPLATES, **values: Any) -> str:
    """Fill in a template of a folder; the package's own are at hand for it to extend and include."""
    jinja2 = require("jinja2", "cli")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,  # labels and captions may be file names, and those may be anything
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline_svg"] = inline_svg
    html: str = environment.get_template(template).render(**values)
    return html


def inline_svg(svg: bytes) -> str:
    """A picture as an address that needs no other file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"

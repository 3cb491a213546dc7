"""HTML pages that need no network, no script and no other file."""

import base64
from pathlib import Path
from typing import Any

from vqshield.core.errors import MissingExtraError

TEMPLATES = Path(__file__).parent / "templates"


def page(template: str, *, folder: Path = TEMPLATES, **values: Any) -> str:
    """Fill in a template of a folder; the package's own are at hand for it to extend and include."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError("jinja2", "cli") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,  # labels and captions may be file names, and those may be anything
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline_svg"] = inline_svg
    return environment.get_template(template).render(**values)


def inline_svg(svg: bytes) -> str:
    """A picture as an address that needs no other file."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"

"""HTML pages that need no network, no script and no other file."""

from pathlib import Path
from typing import Any

from vqshield.errors import MissingExtraError
from vqshield.reports.numbers import percent

TEMPLATES = Path(__file__).parent / "templates"


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

"""What commands print: tables and prose, or JSON."""

import json
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from vqshield.core.serialization import to_plain

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def show(*parts: RenderableType, err: bool = False) -> None:
    """Print tables and prose. On a terminal prose wraps at words; elsewhere a paragraph stays one line."""
    console = Console(stderr=err)
    for part in parts:
        if isinstance(part, str):
            part = Text(part, style="bold red" if part.startswith("WARNING") else "")
        if isinstance(part, Text):
            line = not console.is_terminal
            console.print(part, soft_wrap=line, no_wrap=part.no_wrap, overflow=part.overflow)
        else:
            console.print(part)


def show_json(value: object) -> None:
    """Print a result as JSON."""
    typer.echo(json.dumps(to_plain(value), indent=1))

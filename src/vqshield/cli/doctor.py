"""`vqshield doctor`: what is installed and what works, to paste into an issue."""

import json
from typing import Annotated

import typer

from vqshield.core.serialization import to_plain
from vqshield.doctor import Checkup
from vqshield.doctor import checkup as look


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show versions, backends and why one is missing, the device, the cache folder: for bug reports."""
    found = look()
    typer.echo(json.dumps(to_plain(found), indent=2) if as_json else _text(found))


def _text(found: Checkup) -> str:
    lines = {
        "vqshield": f"{found.version}, commit {found.commit or 'unknown'}",
        "python": f"{found.python}, {found.system}",
        "processor": f"{found.processor}, {found.threads} threads",
        "packages": ", ".join(f"{name} {version or 'missing'}" for name, version in found.packages.items()),
        "device": f"{found.device}, quantizing with {found.kernel}",
        **{f"backend {name}": said for name, said in found.backends.items()},
        "cache": f"{found.cache} ({', '.join(found.cached) or 'empty'})",
    }
    if found.extras is None:
        lines["extras"] = "unknown: vqshield is not installed, it runs from its source"
    else:
        for extra, absent in found.extras.items():
            lines[f"extra {extra}"] = f"lacks {', '.join(absent)}" if absent else "complete"
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {said}" for name, said in lines.items())

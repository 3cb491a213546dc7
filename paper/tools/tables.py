"""Pieces of Markdown that the tables of README.md and docs/ share."""

from collections.abc import Iterable, Mapping, Sequence

from recorded import Machine
from vqshield.core.display_names import display_name
from vqshield.core.serialization import Json
from vqshield.reports.text import markdown_table


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *notes: str) -> str:
    """A table of cells that are Markdown already, and paragraphs below it."""
    return "\n\n".join([markdown_table(heads, rows), *notes])


def percent(share: float) -> str:
    """0.123 as 12.3."""
    return f"{100 * share:.1f}"


def accuracy(mean: float, error: float, digits: int = 1) -> str:
    """12.3 ± 0.4, both in percent."""
    return f"{100 * mean:.{digits}f} ± {100 * error:.{digits}f}"


def percent_or_dash(share: float | None) -> str:
    """In percent; a dash where a number is missing."""
    return "–" if share is None else percent(share)


def signed(value: float, digits: int = 1) -> str:
    """+1.2, −3.4."""
    return f"{value:+.{digits}f}".replace("-", "−")


def listed(names: Iterable[str]) -> str:
    """a, b and c."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last


def unmeasured(script: str) -> str:
    """The placeholder of a table whose script, with its options, has not been run yet."""
    return f"Not measured yet: `python {script}` writes what belongs here."


def machine(found: Machine) -> str:
    """What it ran on."""
    return f"{found['device']}, torch {found['torch']}"


def named(text: str, settings: Mapping[str, Json]) -> str:
    """swRD (s=3, k=25); the size and the number of centres may be those that the text leaves open."""
    symbols = (("s", "size"), ("k", "codes"))
    shown = ", ".join(f"{symbol}={settings[key]}" for symbol, key in symbols if key in settings)
    return f"{display_name(text)} ({shown})"

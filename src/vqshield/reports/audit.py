"""An audit as a table in the terminal and as a page."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vqshield.errors import MissingExtraError
from vqshield.reports.html import page

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"pass": "green", "fail": "bold red", "not run": "yellow"}


def audit_table(record: Mapping[str, Any]) -> "Table":
    """A line per flag: outcome, what ought to hold, what was found, and what that means."""
    try:
        from rich import box
        from rich.table import Table
        from rich.text import Text
    except ImportError as error:
        raise MissingExtraError("rich", "cli") from error
    table = Table(title=Text(headline(record)), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("flag", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("what ought to hold", overflow="fold", ratio=2)
    table.add_column("found", overflow="fold", ratio=2)
    table.add_column("meaning", overflow="fold", ratio=3)
    for flag in record["flags"]:
        table.add_row(
            flag["name"],
            Text(flag["outcome"], style=_STYLES[flag["outcome"]]),
            flag["title"],
            Text("\n".join(shown_figures(flag["figures"]))),
            Text(flag["meaning"]),
        )
    return table


def render_audit(record: Mapping[str, Any]) -> str:
    """One page that needs no network, no script and no other file."""
    flags = [{**flag, "shown": list(shown_figures(flag["figures"]))} for flag in record["flags"]]
    return page("audit.html", title=headline(record), flags=flags, record=record, facts=_facts(record))


def headline(record: Mapping[str, Any]) -> str:
    """The verdict with its figure: never the one without the other."""
    counts = [flag["outcome"] for flag in record["flags"]]
    verdict = "all ten checks passed" if record["passed"] else (
        f"{counts.count('pass')} checks passed, {counts.count('fail')} failed, "
        f"{counts.count('not run')} not run"
    )  # fmt: skip
    return f"{record['defense']}: {_percent(record['reported'])} under attack; {verdict}"


def shown_figures(figures: Mapping[str, Any]) -> Iterator[str]:
    """Each figure as a line of text."""
    for name, value in figures.items():
        if isinstance(value, Mapping) and "standard_error" in value:
            yield f"{name}: {100 * value['mean']:.1f} ± {100 * value['standard_error']:.1f} %"
        elif isinstance(value, Mapping):
            inner = ", ".join(
                f"{key} {each:.3g}" if isinstance(each, float) else f"{key} {each}"
                for key, each in value.items()
            )
            yield f"{name}: {inner}"
        else:
            yield f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}"


def _percent(accuracy: Mapping[str, float]) -> str:
    return f"{100 * accuracy['mean']:.1f} ± {100 * accuracy['error']:.1f} %"


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    budget = f"{record['norm']}, eps {record['eps']:.5g}"
    attacks = "; ".join(f"{name} {_percent(each)}" for name, each in record["attacks"].items())
    return [
        ("Natural accuracy", _percent(record["natural"])),
        ("Attacks given", attacks),
        ("Budget", budget),
        ("Images", f"{record['n']} of {record['data']}"),
        ("Classifier", record["classifier"]),
        ("Seed", str(record["settings"]["seed"])),
        *((name, str(value)) for name, value in record["machine"].items()),
        ("Time", f"{record['seconds']:.0f} s"),
    ]

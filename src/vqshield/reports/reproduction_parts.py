"""Reading a part of a summary: its figures one by one, and whether they can be shown honestly."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from vqshield.errors import InvalidInputError

KNOWING = ("ste", "eot", "adaptive")
"""Levels of attacks that take the defense into account; an "ignorant" one attacks the bare classifier."""
SPREADS = {"std": "standard deviation over runs", "standard_error": "standard error over images"}
"""What a figure may say about its own exactness, and how a reader calls it."""


def figure(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What a row says in a column; an empty dict where it says nothing."""
    return row["figures"].get(key) or {}


def figures(
    part: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]:
    """Every row, column and figure that a part has."""
    for row in part["rows"]:
        for column in part["columns"]:
            if found := figure(row, column["key"]):
                yield row, column, found


def has_figures(part: Mapping[str, Any], key: str) -> bool:
    """Whether a column has a figure at all, the paper's or ours."""
    return any(figure(row, key).get(name) is not None for row in part["rows"] for name in ("paper", "ours"))


def scale(part: Mapping[str, Any]) -> float:
    """What a value is multiplied by to be shown: fractions are shown in percent."""
    return 100.0 if part["unit"] == "%" else 1.0


def only_differences(part: Mapping[str, Any]) -> bool:
    """Whether every column holds differences of shares: these are points, and may be negative."""
    return bool(part["columns"]) and all(column.get("difference") for column in part["columns"])


def drawn_spread(found: Mapping[str, Any]) -> str | None:
    """Which spread a plot draws of our figure: over images, else over runs; None where neither is known."""
    if found.get("ours") is None:
        return None
    return next((name for name in reversed(SPREADS) if found.get(name) is not None), None)


def drawn_spread_words(part: Mapping[str, Any]) -> str | None:
    """What the bars and bands of a plot are, in lines short enough for its legend; None without any."""
    drawn = {drawn_spread(found) for *_, found in figures(part)}
    words = [text for name, text in reversed(SPREADS.items()) if name in drawn]
    return "± " + ",\nelse ".join(words) if words else None


def check(part: Mapping[str, Any]) -> None:
    """Refuse what no format could show honestly."""
    where = f"part {part['name']!r}"
    if part["unit"] not in ("%", "nats", ""):
        raise InvalidInputError(f"unit={part['unit']!r} of {where} is unknown; valid are '%', 'nats' and ''")
    for row in part["rows"]:
        if row.get("x") is not None and not _is_number(row["x"]):
            raise InvalidInputError(
                f"x={row['x']!r} of {row['title']!r} in {where} is neither a number nor None"
            )
    for row, column, found in figures(part):
        place = f"of {row['title']!r}, {column['key']!r} in {where}"
        for name in ("paper", "paper_std", "ours", "paired", *SPREADS):
            value = found.get(name)
            if value is None:
                continue
            if not _is_number(value):
                raise InvalidInputError(f"{name}={value!r} {place} is no figure; valid are numbers and None")
            if value < 0 and name in ("paper_std", *SPREADS):
                raise InvalidInputError(f"{name}={value!r} {place} is no spread; valid are numbers from 0")
            least = -1 if column.get("difference") and name in ("paper", "ours", "paired") else 0
            if part["unit"] == "%" and not least <= value <= 1:
                kind = "difference of shares" if least else "share"
                raise InvalidInputError(
                    f"{name}={value!r} {place} is no {kind}; valid are fractions in [{least}, 1]"
                )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""From rows, one per defense and threat, to a table: one line per defense, one column per threat."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vqshield.errors import InvalidInputError
from vqshield.settings import format_settings

# The columns in reading order, from the weakest attacker to the strongest.
THREATS = {
    "none": "Natural accuracy",
    "ignorant": "Attack that ignores the shield",
    "ste": "Attack through the shield (STE)",
    "eot": "Attack through the shield and its noise (STE + EOT)",
    "adaptive": "Attack made for the shield",
}


@dataclass(frozen=True)
class Cell:
    """One accuracy as a fraction, its standard deviation over runs (None: unknown), the number of images."""

    mean: float
    std: float | None
    n: int
    attack: str
    collapsed: bool
    """Less than half of the natural accuracy is left."""


@dataclass(frozen=True)
class Line:
    """One defense with its settings; a threat that was not run has no cell."""

    defense: str
    settings: str
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Pivot:
    """The table: the threats that occur, in reading order, and the defenses in order of appearance."""

    threats: tuple[str, ...]
    lines: tuple[Line, ...]


def pivot(rows: Iterable[Mapping[str, Any]]) -> Pivot:
    """Arrange the rows; of several attacks under one threat the strongest counts, as for an attacker."""
    lines: dict[tuple[str, str], dict[str, Cell]] = {}
    for row in rows:
        cells = lines.setdefault((str(row["defense"]), settings_text(row.get("settings"))), {})
        threat, natural = str(row["threat"]), _fraction(row, "natural")
        if threat not in THREATS:
            raise InvalidInputError(f"threat={threat!r} is unknown; valid are {', '.join(THREATS)}")
        if threat == "none":
            cells["none"] = _cell(row, natural, natural)
            continue
        # A row of an attack knows the natural accuracy too, but its deviation is that of the attacked one.
        cells.setdefault("none", _cell({**row, "std": None, "attack": None}, natural, natural))
        under = _cell(row, _fraction(row, "robust"), natural)
        if threat not in cells or under.mean < cells[threat].mean:
            cells[threat] = under
    occurring = {threat for cells in lines.values() for threat in cells}
    return Pivot(
        threats=tuple(threat for threat in THREATS if threat in occurring),
        lines=tuple(Line(defense, settings, cells) for (defense, settings), cells in lines.items()),
    )


def settings_text(settings: object) -> str:
    """Settings of a row, a dict or ready text, as one line."""
    if not settings:
        return ""
    return format_settings(settings) if isinstance(settings, Mapping) else str(settings)


def percent(fraction: float) -> str:
    """0.6734 as 67.3, the way tables of accuracies show it."""
    return f"{100 * fraction:.1f}"


def _cell(row: Mapping[str, Any], mean: float, natural: float) -> Cell:
    std = row.get("std")
    return Cell(
        mean=mean,
        std=None if std is None else float(std),
        n=int(row["n"]),
        attack=str(row.get("attack") or ""),
        collapsed=mean < natural / 2,
    )


def _fraction(row: Mapping[str, Any], key: str) -> float:
    value = row[key]
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidInputError(
            f"{key}={value!r} of {row['defense']!r} is no accuracy; valid are fractions in [0, 1]"
        )
    return float(value)

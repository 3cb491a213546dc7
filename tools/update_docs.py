"""Write the tables of README.md and docs/ from the files in results/: figures are measured, never typed.

    python tools/update_docs.py

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. A test fails where one is out of date.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agreement_table import agreement
from attack_tables import ATTACK_TABLES
from certificate_tables import CERTIFICATE_TABLES
from radius_tables import RADIUS_TABLES
from reproduction_tables import REPRODUCTION_TABLES
from speed_tables import SPEED_TABLES
from trained_table import trained

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md", "docs/attacks.md", "docs/certificates.md", "docs/reproduction.md", "docs/results.md",
    "docs/speed.md",
)  # fmt: skip
SHOWN = {"none": "no defense", "randdisc": "RandDisc", "prd": "pRD", "swrd": "swRD"}
# Table 2 of the paper, natural accuracy in percent, by defense and number of centres.
PAPER_NATURAL = {
    ("randdisc", 25): "89.58",
    ("prd", 25): "79.43",
    ("swrd", 25): "83.42",
    ("swrd", 70): "88.37",
}


def read(name: str) -> dict[str, Any]:
    """One file of results/."""
    content: dict[str, Any] = json.loads((ROOT / "results" / name).read_text())
    return content


def demo_table() -> str:
    """The demo's table."""
    summary = read("demo.json")
    rows: dict[str, dict[str, Any]] = {}
    for row in summary["rows"]:
        rows.setdefault(row["defense"], {})[row["threat"]] = row
    attack = rows["swRD"]["adaptive"]["attack"].replace("pgd", "PGD").replace("eot", "EOT")
    lines = [
        f"| accuracy in % | natural | attack that ignores the shield | attack through it ({attack}) |",
        "|---|---|---|---|",
    ]
    for name, threats in rows.items():
        cells = [
            _figure(threats[threat]["robust"], threats[threat]["std"])
            for threat in ("none", "ignorant", "adaptive")
        ]
        lines.append(f"| {SHOWN.get(name, name)} | {' | '.join(cells)} |")
    machine, first = summary["machine"], summary["rows"][-1]
    lines.append(
        f"\n{first['n']} CIFAR-10 test images, ε = {round(summary['epsilon'] * 255)}/255 (L∞), bundled small "
        f"classifier; mean ± standard deviation of {first['runs']} runs, seed {summary['seeds']['defense']}; "
        f"{summary['seconds']:.0f} s on {machine['threads']} cores ({machine['processor']}), "
        f"torch {machine['torch']}."
    )
    return "\n".join(lines)


def _short(settings: dict[str, Any]) -> str:
    symbols = (("s", "size"), ("k", "codes"))
    return ", ".join(f"{symbol}={settings[key]}" for symbol, key in symbols if key in settings)


def natural_table() -> str:
    """Natural accuracy on the whole CIFAR-10 test set."""
    record = read("natural-cifar10-resnet18.json")
    lines = ["| defense | natural accuracy, % | the paper | N | runs |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        settings, name = row["settings"], SHOWN[row["defense"]]
        short = _short(settings)
        paper = PAPER_NATURAL.get((row["defense"], settings.get("codes")), "95.16")
        lines.append(
            f"| {name}{f' ({short})' if short else ''} | {_figure(row['natural'], row['std'], 2)} | {paper} "
            f"| {row['n']:,} | {row['runs']} |"
        )
    machine = record["environment"]
    lines.append(
        f"\n{record['classifier']}, seed {record['seed']}, {machine['device']}, torch {machine['torch']}."
    )
    return "\n".join(lines)


def classifier_table() -> str:
    """The bundled classifier beside the other shapes that were trained."""
    lines = [
        "| widths | blocks | unshuffle | parameters | bytes | test accuracy, % | |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = read("small-networks.json")["rows"]
    for row in rows:
        shape = row["options"]
        lines.append(
            f"| {', '.join(map(str, shape['widths']))} | {', '.join(map(str, shape['blocks']))} "
            f"| {shape['unshuffle']} | {row['parameters']:,} | {row['bytes']:,} "
            f"| {100 * row['test_accuracy']:.2f} | {'bundled' if row['bundled'] else ''} |"
        )
    first = rows[0]
    lines.append(
        f"\n{first['epochs']} epochs, {first['test_images']:,} test images, seed {first['seed']}, "
        f"{first['device']}, torch {first['torch']}."
    )
    return "\n".join(lines)


def _figure(mean: float, std: float, digits: int = 1) -> str:
    return f"{100 * mean:.{digits}f} ± {100 * std:.{digits}f}"


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo_table,
    "natural": natural_table,
    "classifier": classifier_table,
    "agreement": agreement,
    "trained": trained,
    **ATTACK_TABLES,
    **CERTIFICATE_TABLES,
    **RADIUS_TABLES,
    **REPRODUCTION_TABLES,
    **SPEED_TABLES,
}


def updated(text: str) -> str:
    """The page with every table anew."""
    for name, table in TABLES.items():
        pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.S)
        text = pattern.sub(lambda found, make=table: f"{found[1]}{make()}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(updated(path.read_text()))

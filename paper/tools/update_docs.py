"""Write the tables and plots of README.md and docs/ from paper/results/: numbers are measured, never typed.

    python paper/tools/update_docs.py

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. A test fails where one is out of date.
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile

import recorded
from agreement_table import agreement
from app_table import APP_TABLES
from attack_tables import ATTACK_TABLES
from batch_norm_table import BATCH_NORM_TABLES
from beta_tables import BETA_TABLES
from certificate_tables import CERTIFICATE_TABLES
from classifier_tables import CLASSIFIER_TABLES
from doc_plots import DOC_PLOTS
from fast_attack_table import FAST_TABLES, whole_suite
from gate_table import gate_power
from growth_tables import GROWTH_TABLES
from integration_tables import INTEGRATION_TABLES
from l1_tables import L1_TABLES
from ladder_table import ladder, ladder_short
from leaderboard_table import leaderboard
from palette_tables import PALETTE_TABLES
from protocol_tables import PROTOCOL_TABLES
from radius_tables import RADIUS_TABLES
from remote_table import remote
from reproduction_curves import CURVE_TEXTS
from reproduction_tables import REPRODUCTION_TABLES
from reproduction_whole import WHOLE_TABLES
from sampled_tables import SAMPLED_TABLES
from serving_table import serving
from speed_tables import SPEED_TABLES
from stage_table import STAGE_TABLES
from surrogate_tables import SURROGATE_TABLES
from tables import accuracy, machine, named, table
from threat_tables import THREAT_TABLES
from trained_table import trained
from vqshield.core.display_names import NONE, display_name
from vqshield.core.serialization import Json
from vqshield.demo.study import DemoRow, DemoSummary
from wheel_tables import WHEEL_TABLES

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    *(
        f"docs/{page.name}"
        for page in sorted((ROOT / "docs").glob("*.md"))
        if "<!-- begin" in page.read_text()
    ),
)
"""The pages with generated tables."""
# Table 2 of the paper, natural accuracy in percent, by defense and number of centres.
PAPER_NATURAL: dict[tuple[str, Json], str] = {
    ("randdisc", 25): "89.58",
    ("prd", 25): "79.43",
    ("swrd", 25): "83.42",
    ("swrd", 70): "88.37",
}


def demo_table() -> str:
    """The demo's table."""
    summary = recorded.read(DemoSummary, "demo.json")
    rows: dict[str, dict[str, DemoRow]] = {}
    for row in summary.rows:
        rows.setdefault(row.defense, {})[row.threat] = row
    attack = rows["swRD"]["adaptive"].attack.replace("pgd", "PGD").replace("eot", "EOT")
    score = rows["swRD"]["score"].attack.capitalize()
    heads = ["accuracy in %", "clean", "transfer attack", "defense-unaware attack"]
    heads += [f"score-based query attack ({score})", f"quick adaptive attack ({attack})"]
    lines = [
        [
            display_name(name) if name == NONE else name,
            *(
                accuracy(threats[threat].robust, threats[threat].standard_error)
                for threat in (NONE, "transfer", "ignorant", "score", "adaptive")
            ),
        ]
        for name, threats in rows.items()
    ]
    used, last = summary.machine, summary.rows[-1]
    return table(
        heads,
        lines,
        f"{last.n} CIFAR-10 test images in every column, ε = {round(summary.epsilon * 255)}/255 (L∞), "
        f"bundled small classifier; mean of {last.runs} runs ± standard error over images, seed "
        f"{summary.seeds['defense']}; {summary.seconds:.0f} s on {used['threads']} cores "
        f"({used['processor']}), torch {used['torch']}. The last column is a quick attack: "
        f"{whole_suite('the tuned classifier')}.",
    )


def natural_table() -> str:
    """Clean accuracy on the full CIFAR-10 test set."""
    record = recorded.load("natural-cifar10-resnet18.json")
    lines = [
        [
            named(row.defense, row.settings) if row.settings else display_name(row.defense),
            accuracy(row.natural, math.sqrt(row.natural * (1 - row.natural) / row.n), 2),
            PAPER_NATURAL.get((row.defense, row.settings.get("codes")), "95.16"),
            f"{row.n:,}",
            str(row.runs),
        ]
        for row in record.rows
    ]
    return table(
        ["defense", "clean accuracy, %", "the paper", "N", "runs"],
        lines,
        f"{record.classifier}, mean of the runs ± standard error over images (of several runs, at most "
        f"this much), seed {record.seed}, {machine(record.environment)}.",
    )


def classifier_table() -> str:
    """The bundled classifier and the other shapes that were trained."""
    rows = recorded.load("small-networks.json").rows
    heads = ["widths", "blocks", "unshuffle", "parameters", "bytes", "test accuracy, %"]
    lines = [f"| {' | '.join(heads)} | |", "|---" * 7 + "|"]
    for row in rows:
        shape = row.options
        lines.append(
            f"| {', '.join(map(str, shape.widths))} | {', '.join(map(str, shape.blocks))} "
            f"| {shape.unshuffle} | {row.parameters:,} | {row.bytes:,} "
            f"| {100 * row.test_accuracy:.2f} | {'bundled' if row.bundled else ''} |"
        )
    first = rows[0]
    lines.append(
        f"\n{first.epochs} epochs, {first.test_images:,} test images, seed {first.seed}, "
        f"{first.device}, torch {first.torch}."
    )
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo_table,
    "natural": natural_table,
    "classifier": classifier_table,
    "agreement": agreement,
    "trained": trained,
    "serving": serving,
    "gate-power": gate_power,
    "remote": remote,
    **ATTACK_TABLES,
    **CERTIFICATE_TABLES,
    **RADIUS_TABLES,
    **WHOLE_TABLES,
    **BATCH_NORM_TABLES,
    **BETA_TABLES,
    **CLASSIFIER_TABLES,
    **PROTOCOL_TABLES,
    **REPRODUCTION_TABLES,
    **CURVE_TEXTS,
    **SPEED_TABLES,
    **STAGE_TABLES,
    **SURROGATE_TABLES,
    **SAMPLED_TABLES,
    **FAST_TABLES,
    **L1_TABLES,
    "ladder": ladder,
    "ladder-short": ladder_short,
    "leaderboard": leaderboard,
    **PALETTE_TABLES,
    **INTEGRATION_TABLES,
    **APP_TABLES,
    **WHEEL_TABLES,
    **THREAT_TABLES,
    **GROWTH_TABLES,
    **{name: plot.markdown for name, plot in DOC_PLOTS.items()},
}


FOLDED = (
    "threats", "threats-frontier", "threats-corruptions", "leaderboard", "ladder", "attack-members",
    "attack-explored", "attack-suite-members", "attack-audits", "attack-fakes", "trained",
    "reproduction-whole",
)  # fmt: skip
"""Long tables: a plot or a text says what is in them."""


def _folded(text: str) -> str:
    """The tables of a text behind a line that opens them, with their number of rows."""

    def fold(found: re.Match[str]) -> str:
        rows = found[0].count("\n") - 2
        return f"<details>\n<summary>All numbers: {rows} rows</summary>\n\n{found[0]}\n</details>\n"

    return re.sub(r"(?m)(^\|.*\n)+", fold, f"{text}\n").rstrip("\n")


def updated(text: str) -> str:
    """The page with every table as paper/results/ has it now."""

    def made(found: re.Match[str]) -> str:
        table = TABLES.get(found["name"])
        if table is None:
            return found[0]
        text = _folded(table()) if found["name"] in FOLDED else table()
        return f"{found['begin']}{text}\n{found['end']}"

    return re.sub(
        r"(?P<begin><!-- begin (?P<name>\S+) -->\n).*?(?P<end><!-- end (?P=name) -->)", made, text, flags=re.S
    )


if __name__ == "__main__":
    copyfile(
        ROOT / "paper" / "results" / "demo.json",
        ROOT / "app" / "src" / "vqshield_app" / "assets" / "demo.json",
    )
    for plot in DOC_PLOTS.values():
        plot.write()
    for page in PAGES:
        path = ROOT / page
        path.write_text(updated(path.read_text()))

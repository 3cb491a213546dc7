"""The tables of docs/attacks.md and of README.md about attacks, from the records in results/."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vqshield.studies.summary import summarise

from vqshield.runs.records import Record
from vqshield.settings import parse_spec

RESULTS = Path(__file__).resolve().parents[1] / "results"
MEASURED, EXPLORED = "attacks-cifar10-resnet18", "explored-attacks-cifar10-resnet18"
SUITE = "adaptive-v1"
NAMES = {"randdisc": "RandDisc", "prd": "pRD", "swrd": "swRD"}

Row = dict[str, Any]


def read(folder: str) -> dict[str, Any]:
    """A summary that `vqshield evaluate` wrote."""
    summary: dict[str, Any] = json.loads((RESULTS / folder / "summary.json").read_text())
    return summary


def shown(defense: str) -> str:
    """swRD (s=3, k=25)."""
    name, settings = parse_spec(defense)
    symbols = (("s", "size"), ("k", "codes"))
    return f"{NAMES[name]} ({', '.join(f'{s}={settings[key]}' for s, key in symbols if key in settings)})"


def figure(row: Row) -> str:
    """Mean ± standard deviation between runs, in percent."""
    return f"{100 * row['mean']:.1f} ± {100 * row['std']:.1f}"


def footnote(summary: dict[str, Any]) -> str:
    """What the figures were measured with."""
    spec, rows = summary["specification"], summary["rows"]
    machine = spec["machine"]
    return (
        f"\nFirst {spec['data']['images']} CIFAR-10 test images, ε = {round(spec['eps'] * 255)}/255 (L∞), "
        f"{spec['classifier']['name'].removesuffix('.safetensors')}; mean ± standard deviation of "
        f"{rows[-1]['runs']} runs, seed {spec['seed']}; {machine['device']}, torch {machine['torch']}."
    )


def informed() -> str:
    """README: one line a defense, from no attack to the strongest."""
    summary = read(MEASURED)
    plain, stronger = (entry["name"] for entry in summary["specification"]["attacks"][:2])
    columns = {"none": "natural", plain: "ignorant (PGD-20)", stronger: "PGD-100 + STE + EOT-10",
               SUITE: f"`{SUITE}`"}  # fmt: skip
    lines = [f"| accuracy in % | {' | '.join(columns.values())} |", "|---" * (len(columns) + 1) + "|"]
    for defense in _defenses(summary):
        cells = [figure(_row(summary, defense, attack)) for attack in columns]
        lines.append(f"| {shown(defense)} | {' | '.join(cells)} |")
    lines.append(f"{footnote(summary)} Audit: see [the audit](docs/attacks.md#the-audit).")
    return "\n".join(lines)


def members() -> str:
    """Every attack of the run against every defense."""
    return _attacks_by_defense(read(MEASURED))


def explored() -> str:
    """What else was tried."""
    return _attacks_by_defense(read(EXPLORED))


def without() -> str:
    """What the suite leaves when one of its members is taken away."""
    summary = read(MEASURED)
    lines = gzip.decompress((RESULTS / MEASURED / "records.jsonl.gz").read_bytes()).splitlines()
    records = [Record.parse(line) for line in lines]
    whole = summary["specification"]
    suite = next(entry for entry in whole["attacks"] if entry["name"] == SUITE)
    table = [f"| {SUITE} without | {' | '.join(map(shown, _defenses(summary)))} |"]
    table.append("|---" * (len(_defenses(summary)) + 1) + "|")
    for left_out in [None, *(threat["name"] for threat in suite["threats"])]:
        changed = copy.deepcopy(whole)
        kept = [threat for threat in suite["threats"] if threat["name"] != left_out]
        changed["attacks"] = [{"name": SUITE, "threats": kept}]
        names = {"none", *(threat["name"] for threat in kept)}
        found = summarise(changed, [record for record in records if record.attack in names])
        cells = [f"{100 * _row(found, defense, SUITE)['mean']:.2f}" for defense in _defenses(summary)]
        table.append(f"| {(left_out or 'nothing').removeprefix(f'{SUITE}/')} | {' | '.join(cells)} |")
    return "\n".join(table)


def audits() -> str:
    """The recorded audits side by side."""
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("audit-*.json"))]
    heads = [
        f"{shown(record['defense'])}, {record['classifier'].removesuffix('.safetensors')}, N = {record['n']}"
        for record in records
    ]
    lines = [f"| | | {' | '.join(heads)} |", "|---" * (2 + len(records)) + "|"]
    for flags in zip(*(record["flags"] for record in records), strict=True):
        cells = [f"**{flag['outcome']}**: {'; '.join(_figures(flag['figures']))}" for flag in flags]
        lines.append(f"| {flags[0]['name']} | {flags[0]['title']} | {' | '.join(cells)} |")
    for record in records:
        machine = record["machine"]
        lines.append(
            f"\n{record['classifier']}: attacks {', '.join(record['given'])}, {record['norm']} "
            f"ε = {round(record['eps'] * 255)}/255, seed {record['settings']['seed']}, "
            f"{record['seconds']:.0f} s on {machine['device']} ({machine['processor']}), "
            f"torch {machine['torch']}."
        )
    return "\n".join(lines)


def _figures(figures: dict[str, Any]) -> list[str]:
    texts = []
    for name, value in figures.items():
        if isinstance(value, dict) and "pooled" in value:
            texts.append(f"{name} {value['pooled']:.2f} over {value['images']} images")
        elif isinstance(value, dict):
            texts.append(f"{name} {100 * value['mean']:.1f} ± {100 * value['standard_error']:.1f}")
        else:
            texts.append(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}")
    return texts


def _attacks_by_defense(summary: dict[str, Any]) -> str:
    defenses = _defenses(summary)
    lines = [
        f"| attack | level | {' | '.join(map(shown, defenses))} | s |",
        "|---" * (len(defenses) + 3) + "|",
    ]
    attacks = dict.fromkeys(row["attack"] for row in summary["rows"] if row["defense"] in defenses)
    for attack in attacks:
        rows = [_row(summary, defense, attack) for defense in defenses]
        seconds = sum(row["seconds"] for row in rows) / len(rows)
        name = {"none": "none (natural)", "adaptive": "minimum over all of these"}.get(attack, f"`{attack}`")
        level = rows[0]["level"] if attack != "none" else ""
        lines.append(f"| {name} | {level} | {' | '.join(map(figure, rows))} | {seconds:.0f} |")
    lines.append(f"{footnote(summary)} s: seconds a defense.")
    return "\n".join(lines)


def _defenses(summary: dict[str, Any]) -> list[str]:
    return [entry["name"] for entry in summary["specification"]["defenses"]]


def _row(summary: dict[str, Any], defense: str, attack: str) -> Row:
    return next(r for r in summary["rows"] if (r["defense"], r["attack"]) == (defense, attack))


ATTACK_TABLES: dict[str, Callable[[], str]] = {
    "informed": informed,
    "attack-members": members,
    "attack-explored": explored,
    "attack-without": without,
    "attack-audits": audits,
}

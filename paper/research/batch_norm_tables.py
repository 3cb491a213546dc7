"""Which batch-norm statistics were the paper's tables measured with? T1 to T5 in every mode, by the command.

    python paper/research/batch_norm_tables.py --work FOLDER --device cuda T1 T2 \\
        --data-dir mnist=DIR --classifier mnist=FILE --data-dir cifar10=DIR2 --classifier cifar10=FILE2

Options are those of `vqshield reproduce`. Every mode is a folder of --work, where the same command
continues. --modes names them by number; T5X is T5 with the gradient at x, for an attack that ignores the
defense. Writes paper/results/batch-norm-tables.json, and prints a table last.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

from common import ending
from vqshield.core.display_names import NONE
from vqshield.core.environment import pick_device
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield_paper.reproduction.experiments import experiment
from vqshield_paper.reproduction.model import Summary
from vqshield_paper.reproduction.parts.base import Options
from vqshield_paper.reproduction.published import DATA
from vqshield_paper.reproduction.runner import Reproduction
from vqshield_paper.reproduction.targets import TargetChoices

MODES = (
    "running",
    "batch:size=100",
    "batch:size=32",
    "batch:size=256",
    "batch:size=100,attack=running",
    "batch:size=32,attack=running",
    "calibrated",
)
AT_X = "T5X"
"""T5 with the gradient at x, which no defense changes: the attack on the bare classifier."""


def experiment_file(name: str, work: Path) -> str:
    """What `vqshield reproduce` is given for it."""
    if name != AT_X:
        return name
    from importlib import resources

    text = (resources.files("vqshield_paper.reproduction") / "paper" / "T5.toml").read_text("utf-8")
    for attack in ("autoattack", "pgd:steps=20", "pgd:steps=20,eot=10"):
        bare = attack.partition(",eot")[0]
        text = text.replace(f'"{attack}"', f'"{bare}{"," if ":" in bare else ":"}surrogate=none"')
    lines = [line for line in text.splitlines() if not line.startswith("eot_")]
    work.mkdir(parents=True, exist_ok=True)
    path = work / f"{AT_X}.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def rows_of(summary: dict[str, Json]) -> list[dict[str, Json]]:
    """Every number of a summary that has the paper's next to it or is measured."""
    rows = []
    for part in summary["parts"]:
        classifier = (part["classifier"] or {}).get("name")
        for row in part["rows"]:
            for measure, value in row["values"].items():
                if value.get("ours") is not None:
                    kept = {key: value.get(key) for key in ("paper", "ours", "standard_error", "n", "runs")}
                    rows.append(
                        {"part": part["name"], "classifier": classifier, "defense": row["defense"],
                         "measure": measure, **kept}
                    )  # fmt: skip
    return rows


def shown(table: str, mode: str, rows: list[dict[str, Json]]) -> list[str]:
    """The rows of a table in one mode, and the mean distance from the paper for each measure."""
    lines, measures = [f"\n{table}, {mode}"], list(dict.fromkeys(row["measure"] for row in rows))
    lines.append("  " + " | ".join(["part, defense", *map(str, measures)]))
    for part, defense in dict.fromkeys((row["part"], row["defense"]) for row in rows):
        cells = {row["measure"]: row for row in rows if (row["part"], row["defense"]) == (part, defense)}
        texts = []
        for measure in measures:
            cell = cells.get(measure)
            paper = "" if cell is None or cell["paper"] is None else f" ({100 * cell['paper']:.1f})"
            texts.append("-" if cell is None else f"{100 * cell['ours']:.1f}{paper}")
        lines.append("  " + " | ".join([f"{part}, {defense}", *texts]))
    for measure in measures:
        far = [
            abs(row["ours"] - row["paper"]) for row in rows
            if row["measure"] == measure and row["paper"] is not None and row["defense"] != "none"
        ]  # fmt: skip
        if far:
            lines.append(f"  mean distance, {measure}: {100 * statistics.fmean(far):.1f}")
    return lines


def reproduced(table: str, mode: str, args: argparse.Namespace) -> Summary:
    """A table in a mode, continued where it was stopped."""
    wanted = experiment(experiment_file(table, args.work))
    wanted = replace(wanted, parts=tuple(part for part in wanted.parts if part.data in (args.only or DATA)))
    needed = list(dict.fromkeys(part.data for part in wanted.parts))
    where = {
        kind: [each for each in getattr(args, kind) if each.partition("=")[0] in needed]
        for kind in ("data", "data_dir", "classifier")
    }
    plan = Reproduction(
        wanted,
        options=Options(limit=args.limit, runs=args.runs, adaptive=NONE, batch_norm=mode, on_gpu=args.on_gpu),
        targets=TargetChoices.from_options(**where, needed=needed, device=args.device),
        out=args.work / "".join(each if each.isalnum() else "-" for each in mode) / table,
    )
    return plan.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("paper/results/batch-norm-tables.json"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", action="append", help="mnist, cifar10, …: parts of these data alone")
    for kind in ("--data", "--data-dir", "--classifier"):
        parser.add_argument(kind, action="append", default=[], help="NAME=…, as of vqshield reproduce")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--modes", type=int, nargs="+", default=list(range(len(MODES))))
    parser.add_argument("--calibrate", help="settings of the mode calibrated, as in data=npz,data_dir=FILE")
    parser.add_argument("tables", nargs="+")
    args = parser.parse_args()
    args.on_gpu = pick_device(args.device).type == "cuda"
    modes = [MODES[number] for number in args.modes]
    modes = [
        f"{mode}:{args.calibrate}" if mode == "calibrated" and args.calibrate else mode for mode in modes
    ]
    rows: list[dict[str, Json]] = []
    began, pages = time.perf_counter(), []
    for mode in modes:
        for table in args.tables:
            started = time.perf_counter()
            summary = to_plain(reproduced(table, mode, args))
            print(f"{table}, {mode}: {time.perf_counter() - started:.0f} s", flush=True)
            found = rows_of(summary)
            rows += [{"table": table, "mode": mode, **row} for row in found]
            pages += shown(table, mode, found)
            content: dict[str, Json] = {"what": "T1 to T5 by batch-norm statistics", "rows": rows}
            write_json(args.out, content | ending(began, args.device))
    print("\n".join(pages))


if __name__ == "__main__":
    main()

"""Which batch-norm statistics were the paper's tables measured with? T1 to T5 in every mode, by the command.

    python research/batch_norm_tables.py --work FOLDER --device cuda T1 T2 -- \\
        --data-dir mnist=DIR --classifier mnist=FILE --data-dir cifar10=DIR2 --classifier cifar10=FILE2

What follows the dashes goes to `vqshield reproduce`. Every mode is a folder of --work, where the same command
continues. --modes names them by number; T5X is T5 with the gradient at x, for an attack that ignores the
defense. Writes results/batch-norm-tables.json, and prints a table last.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import ending, make_parser

from vqshield.files import write_json
from vqshield.plain import Json

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

    text = (resources.files("vqshield.reproduction") / "paper" / "T5.toml").read_text("utf-8")
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


def main() -> None:
    parser = make_parser(__doc__, "results/batch-norm-tables.json")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--modes", type=int, nargs="+", default=list(range(len(MODES))))
    parser.add_argument("--calibrate", help="settings of the mode calibrated, as in data=npz,data_dir=FILE")
    parser.add_argument("tables", nargs="+")
    ours = sys.argv[1:]
    given = ours[ours.index("--") + 1 :] if "--" in ours else []
    args = parser.parse_args(ours[: ours.index("--")] if "--" in ours else ours)
    modes = [MODES[number] for number in args.modes]
    modes = [
        f"{mode}:{args.calibrate}" if mode == "calibrated" and args.calibrate else mode for mode in modes
    ]
    rows: list[dict[str, Json]] = []
    began, pages = time.perf_counter(), []
    for mode in modes:
        folder = args.work / "".join(each if each.isalnum() else "-" for each in mode)
        for table in args.tables:
            started = time.perf_counter()
            command = [
                sys.executable, "-m", "vqshield", "reproduce", experiment_file(table, args.work),
                "--batch-norm", mode, "--adaptive", "none", "--device", args.device,
                "--out", str(folder / table), "--json", *given,
            ]  # fmt: skip
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            print(
                f"{table}, {mode}: {time.perf_counter() - started:.0f} s, exit {done.returncode}", flush=True
            )
            if done.returncode:
                continue
            (summary,) = json.loads(done.stdout)
            found = rows_of(summary)
            rows += [{"table": table, "mode": mode, **row} for row in found]
            pages += shown(table, mode, found)
            content: dict[str, Json] = {"what": "T1 to T5 by batch-norm statistics", "rows": rows}
            write_json(args.out, content | ending(began, args.device))
    print("\n".join(pages))


if __name__ == "__main__":
    main()

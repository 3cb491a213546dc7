"""Measure everything there is to measure about speed, on one machine, in one run.

python benchmarks/speed.py --device cpu
python benchmarks/speed.py --device cuda --deadline 540

Writes benchmarks/results/speed-DEVICE.json and docs/images/speed-DEVICE.png; tools/update_docs.py makes the
tables of docs/speed.md from the former. Nothing else should run meanwhile.
"""

import argparse
import json
import sys
from pathlib import Path

from vqshield.bench import Bench, BenchSettings
from vqshield.bench.bench import OUT_OF_TIME
from vqshield.files import write_json

ROOT = Path(__file__).resolve().parents[1]
OURS, OTHERS, MARKED = "#1b6ca8", "#b8c4cc", "#d9a05b"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workload", nargs="*", default=[])
    parser.add_argument("--implementation", nargs="*", default=[])
    parser.add_argument("--threads", type=int, nargs="*", default=[])
    parser.add_argument("--budget", type=float, help="seconds for each figure")
    parser.add_argument("--passes", type=int, default=1, help="run the comparison so often, the best counts")
    parser.add_argument("--deadline", type=float, help="begin nothing after so many seconds")
    parser.add_argument("--only", default="", help="begin only jobs named so, and add them to the record")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--plot-only", action="store_true", help="draw the kept results anew")
    options = parser.parse_args()

    settings = BenchSettings(
        quick=options.quick,
        device=options.device,
        workloads=tuple(options.workload),
        implementations=tuple(options.implementation),
        threads=tuple(options.threads),
        budget=options.budget,
        passes=options.passes,
        deadline=options.deadline,
        only=options.only,
    )
    target = options.results / f"speed-{settings.place.type}.json"
    if not options.plot_only:
        bench = Bench(settings, lambda job: print(job, file=sys.stderr, flush=True))
        print(f"{bench.work} jobs", file=sys.stderr)
        try:
            bench.run()
        finally:  # what is finished is kept, on Ctrl-C too
            record = bench.record()
            if options.only:
                record = added(json.loads(target.read_text()), record, options.only)
            write_json(target, record)
    record = json.loads(target.read_text())
    options.images.mkdir(parents=True, exist_ok=True)
    draw(record, options.images / f"speed-{settings.place.type}.png")


def added(record: dict, more: dict, only: str) -> dict:
    """The record there is, with what the same machine measured now in place of what it had skipped."""
    if record["machine"] != more["machine"]:
        raise SystemExit("the record is another machine's: measure it anew as a whole")
    skipped = [entry for entry in record["skipped"] if not entry["name"].startswith(only)]
    fresh = [entry for entry in more["skipped"] if entry["name"].startswith(only)]
    whole = not any(entry["reason"] == OUT_OF_TIME for entry in skipped + fresh)
    parts = ("peak", "classifier", "growth", "memory")
    measured = {part: more[part] for part in parts if more[part]}
    return {**record, **measured, "skipped": skipped + fresh, "complete": whole}


def draw(record: dict, target: Path) -> None:
    """One panel a workload and step, one bar an implementation, at the largest number of threads."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    steps = ("kmeans", "defense")
    figure, axes = plt.subplots(
        len(record["workloads"]), 2, figsize=(11, 2.6 * len(record["workloads"])), squeeze=False
    )
    for line, workload in zip(axes, record["workloads"], strict=True):
        for panel, step in zip(line, steps, strict=True):
            rows = bars(record, workload, step)
            ours = record["implementations"]
            colours = [
                MARKED if row["note"] else OURS if ours[row["implementation"]]["ours"] else OTHERS
                for row in rows
            ]
            rates = [row["images_per_second"] for row in rows]
            drawn = panel.barh([row["implementation"] for row in rows], rates, color=colours)
            panel.bar_label(drawn, [f" {rate:,.0f}" for rate in rates], fontsize=8)
            panel.set_xlim(0, 1.2 * max(rates, default=1))
            panel.set_title(f"{workload}, {'k-means' if step == 'kmeans' else 'whole defense'}", fontsize=10)
            panel.tick_params(labelsize=8)
            panel.spines[["top", "right"]].set_visible(False)
    machine = record["machine"]
    place = machine["device"] if machine["device"] != "cpu" else machine["processor"]
    figure.suptitle(f"Images a second on {place}, {record['iterations']} iterations", fontsize=12)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(target, dpi=110, metadata={"Software": None})


def bars(record: dict, workload: str, step: str) -> list[dict]:
    """The rows of a panel, the fastest on top."""
    rows = [
        row
        for row in record["rows"]
        if (row["workload"], row["step"], row["settings"]) == (workload, step, "ten")
    ]
    most = max((row["threads"] for row in rows), default=0)
    chosen = [row for row in rows if row["threads"] == most]
    return sorted(chosen, key=lambda row: row["images_per_second"])


if __name__ == "__main__":
    main()

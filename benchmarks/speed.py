"""Measure everything there is to measure about speed, on one machine, in one run.

python benchmarks/speed.py --device cpu
python benchmarks/speed.py --device cuda --deadline 540

Writes benchmarks/results/speed-DEVICE.json and docs/images/speed-DEVICE.png; paper/tools/update_docs.py
makes the tables of docs/speed.md from the former. Nothing else should run meanwhile.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from vqshield.core.environment import device_name
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield_paper.speed import Bench, BenchRecord, BenchRow, BenchSettings, read_record
from vqshield_paper.speed.run import OUT_OF_TIME

ROOT = Path(__file__).resolve().parents[1]
OURS, OTHERS, MARKED = "#1b6ca8", "#b8c4cc", "#d9a05b"
TITLES = {"kmeans": "k-means", "defense": "whole defense"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workload", nargs="*", default=[])
    parser.add_argument("--implementation", nargs="*", default=[])
    parser.add_argument("--threads", type=int, nargs="*", default=[])
    parser.add_argument("--budget", type=float, help="seconds for each row")
    parser.add_argument("--passes", type=int, default=1, help="how often to compare; the fastest counts")
    parser.add_argument("--deadline", type=float, help="seconds after which nothing more is begun")
    parser.add_argument(
        "--only",
        default="",
        help="measure only what has a name that begins with this, and add it to the record",
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--plot-only", action="store_true", help="draw the plot of the kept record")
    options = parser.parse_args()

    options.images.mkdir(parents=True, exist_ok=True)
    if options.plot_only:
        redraw(options.results, options.images, torch.device(device_name(options.device)).type)
        return
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
    bench = Bench(settings, lambda name: print(name, file=sys.stderr, flush=True))
    print(f"{bench.count} measurements", file=sys.stderr)
    try:
        bench.run()
    finally:  # what is finished is kept, on Ctrl-C too
        record = bench.record()
        if options.only:
            record = added(read_record(BenchRecord, target), record, options.only)
        write_json(target, to_plain(record))
    redraw(options.results, options.images, settings.place.type)


def redraw(results: Path, images: Path, kind: str) -> None:
    """The plot of a kept record, which can be drawn where its device is not."""
    draw(read_record(BenchRecord, results / f"speed-{kind}.json"), images / f"speed-{kind}.png")


def added(record: BenchRecord, more: BenchRecord, only: str) -> BenchRecord:
    """The kept record, with what the same machine has measured now: more rows, and what it had skipped."""
    if record.machine != more.machine:
        raise SystemExit(
            "the record was measured on another machine: measure all of it again, without --only"
        )
    skipped = (
        *(each for each in record.skipped if not each.name.startswith(only)),
        *(each for each in more.skipped if each.name.startswith(only)),
    )
    # A record that lacks something but skipped nothing was interrupted: nobody knows what it lacks.
    known = record.complete or any(each.reason == OUT_OF_TIME for each in record.skipped)
    late = any(each.reason == OUT_OF_TIME for each in skipped)
    return replace(
        record,
        rows=tuple({row.key: row for row in (*record.rows, *more.rows)}.values()),
        implementations={**record.implementations, **more.implementations},
        peak=more.peak or record.peak,
        classifier=more.classifier or record.classifier,
        memory=more.memory or record.memory,
        skipped=skipped,
        complete=known and more.complete and not late,
    )


def draw(record: BenchRecord, target: Path) -> None:
    """One panel a workload and step, one bar an implementation, at the largest number of threads."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    count = len(record.workloads)
    figure, axes = plt.subplots(count, 2, figsize=(11, 2.6 * count), squeeze=False)
    for line, workload in zip(axes, record.workloads, strict=True):
        for panel, step in zip(line, TITLES, strict=True):
            rows = bars(record, workload, step)
            rates = [row.images_per_second for row in rows]
            drawn = panel.barh(
                [row.implementation for row in rows], rates, color=[colour(record, row) for row in rows]
            )
            panel.bar_label(drawn, [f" {rate:,.0f}" for rate in rates], fontsize=8)
            panel.set_xlim(0, 1.2 * max(rates, default=1))
            panel.set_title(f"{workload}, {TITLES[step]}", fontsize=10)
            panel.tick_params(labelsize=8)
            panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Images a second on {record.machine.place}, {record.iterations} iterations", fontsize=12)
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(target, dpi=110, metadata={"Software": None})


def colour(record: BenchRecord, row: BenchRow) -> str:
    if row.note:
        return MARKED
    return OURS if row.implementation in record.ours else OTHERS


def bars(record: BenchRecord, workload: str, step: str) -> list[BenchRow]:
    """The rows of a panel, the fastest on top."""
    wanted = workload, step, "ten"
    rows = [row for row in record.rows if (row.workload, row.step, row.settings) == wanted]
    most = max((row.threads for row in rows), default=0)
    return sorted((row for row in rows if row.threads == most), key=lambda row: row.images_per_second)


if __name__ == "__main__":
    main()

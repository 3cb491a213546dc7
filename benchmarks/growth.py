"""How do speed and memory grow with the batch, the image, s, k, the iterations and the threads?

    python benchmarks/growth.py [--device cpu] [--budget 1.5]
    python benchmarks/growth.py --kinds

The whole defense from k-means++, ten iterations unless labels settle before; one setting (axis) changes, the
others are those of swRD(3,25) on 32×32 images. Time is the least of the calls that fit into the budget: what
the machine does when nothing disturbs it. Memory is how far a call grows a process above what it held before
(on a GPU: what it allocates), output included. An exponent p says that time or memory grow as the setting to
the power p, fitted to all points, or to the last two: fixed costs make small settings look cheap. Under two
minutes on a CPU; nothing else should run meanwhile. Writes benchmarks/results/growth-DEVICE.json and
docs/images/growth-DEVICE.png. --kinds measures bytes and halves beside float32 instead, by one thread, and
writes benchmarks/results/kinds-DEVICE.json.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vqshield.core.environment import device_name, environment, pick_device
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.defenses import create
from vqshield.quantization.pixels import narrowed
from vqshield_paper.speed import read_record
from vqshield_paper.speed.timing import limited_threads, measure
from vqshield_paper.speed.workloads import SEED, Workload, pictures, streams

ROOT = Path(__file__).resolve().parents[1]
BASE = Workload(name="swrd-3-25")
ITERATIONS = 10
AXES = {
    "batch": "images in a call", "side": "side of the image", "size": "s", "codes": "k",
    "iterations": "iterations", "threads": "threads",
}  # fmt: skip
BATCHES = {"cpu": (1, 4, 16, 64, 256), "cuda": (1, 16, 256, 4096, 16384)}
SIDES = (16, 32, 64, 128, 256, 512)
SIZES = (1, 2, 3, 4, 5, 6)
CODES = (2, 5, 10, 25, 50, 100, 256)
ROUNDS = (1, 2, 5, 10, 20, 40)
USUAL = {"cpu": 64, "cuda": 4096}
KINDS = ("uint8", "float16", "bfloat16", "float32")
KINDS_OF = ((1024, 32), (16, 224))  # images in a call, and their side


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting changed from the base."""

    axis: str
    value: int
    workload: Workload
    batch: int
    threads: int
    iterations: int = ITERATIONS
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class GrowthPoint:
    """What was measured there."""

    axis: str
    value: int
    batch: int
    threads: int
    seconds_a_call: float
    images_per_second: float
    peak_bytes: int
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class Exponents:
    """Powers of the setting on an axis: of an image's time (a call's, where the batch grows); of memory."""

    axis: str
    time: float
    time_at_the_end: float
    memory: float | None
    memory_at_the_end: float | None


@dataclass(frozen=True, kw_only=True)
class GrowthRecord:
    """One run."""

    what: str = "the whole defense's speed and memory as one setting changes"
    device: str
    budget: float
    seconds: float
    load: float
    machine: dict[str, Json]
    points: tuple[GrowthPoint, ...]
    exponents: tuple[Exponents, ...]


def points(device: torch.device) -> Iterator[Point]:
    """All points, axis by axis."""
    kind, most = device.type, torch.get_num_threads()
    usual = USUAL[kind]
    for batch in BATCHES[kind]:
        yield Point(axis="batch", value=batch, workload=BASE, batch=batch, threads=most)
    for side in SIDES:  # about as many pixels in all
        batch = max(1, usual * BASE.side**2 // side**2)
        yield Point(axis="side", value=side, workload=replace(BASE, side=side), batch=batch, threads=most)
    for size in SIZES:
        yield Point(axis="size", value=size, workload=replace(BASE, size=size), batch=usual, threads=most)
    for codes in CODES:
        yield Point(axis="codes", value=codes, workload=replace(BASE, codes=codes), batch=usual, threads=most)
    for rounds in ROUNDS:
        yield Point(
            axis="iterations", value=rounds, workload=BASE, batch=usual, threads=most, iterations=rounds
        )
    for threads in range(1, most + 1) if kind == "cpu" else ():
        yield Point(axis="threads", value=threads, workload=BASE, batch=usual, threads=threads)


def kinds() -> Iterator[Point]:
    """Images of every dtype, of two sides: no setting that anything would grow with."""
    for batch, side in KINDS_OF:
        for dtype in KINDS:
            workload = replace(BASE, side=side)
            yield Point(axis="dtype", value=side, workload=workload, batch=batch, threads=1, dtype=dtype)


def calls(point: Point, device: torch.device) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The call that is measured, and one with a single image that loads libraries and compiles kernels."""
    images = narrowed(pictures(point.workload, point.batch, device), getattr(torch, point.dtype))
    numbers = streams(point.batch, device)
    shield = create(
        point.workload.defense,
        size=point.workload.size,
        codes=point.workload.codes,
        iterations=point.iterations,
        tolerance=0.0,
        seed=SEED,
    )
    return lambda: shield(images, streams=numbers), lambda: shield(images[:1], streams=numbers[:1])


def measured(point: Point, device: torch.device, budget: float, peak: int) -> GrowthPoint:
    """The least time of a call."""
    with limited_threads(point.threads):
        _, timing = measure(calls(point, device)[0], device=device, budget=budget)
    return GrowthPoint(
        axis=point.axis,
        value=point.value,
        batch=point.batch,
        threads=point.threads,
        seconds_a_call=timing.best,
        images_per_second=point.batch / timing.best,
        peak_bytes=peak,
        dtype=point.dtype,
    )


def peaks(chosen: list[Point], device: torch.device, *, arguments: list[str]) -> list[int]:
    """How much more than before a call holds at most, at every point: on a CPU in a process of its own, whose
    memory goes back to the system as soon as it is freed, or it would be used again unseen.
    """
    if device.type == "cuda":
        return [peak_bytes(point, device) for point in chosen]
    command = [sys.executable, __file__, *arguments, "--peaks"]
    returned = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **returned}
    )
    return [int(each) for each in done.stdout.split()]


def peak_bytes(point: Point, device: torch.device) -> int:
    """In this process."""
    call, one = calls(point, device)
    with limited_threads(point.threads):
        one()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            call()
            torch.cuda.synchronize(device)
            return torch.cuda.max_memory_allocated(device) - before
        return max(_grown(call) for _ in range(3))  # the system counts pages in lots, and so too few at times


def _grown(call: Callable[[], Tensor]) -> int:
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins at what is held now
    held = _held("VmRSS")
    call()
    return _held("VmHWM") - held


def _held(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def exponents(axis: str, rows: list[GrowthPoint]) -> Exponents:
    """Of the points of one axis."""
    values = [row.value for row in rows]
    seconds = [row.seconds_a_call if axis == "batch" else 1 / row.images_per_second for row in rows]
    memory = [float(row.peak_bytes) for row in rows]
    grows = min(memory) > 0 and axis not in ("iterations", "threads")  # no size that memory depends on
    return Exponents(
        axis=axis,
        time=slope(values, seconds),
        time_at_the_end=slope(values[-2:], seconds[-2:]),
        memory=slope(values, memory) if grows else None,
        memory_at_the_end=slope(values[-2:], memory[-2:]) if grows else None,
    )


def slope(values: list[int], found: list[float]) -> float:
    """p of the power law nearest to the logarithms."""
    x, y = ([math.log(each) for each in side] for side in (values, found))
    middle = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - middle[0]) * (b - middle[1]) for a, b in zip(x, y, strict=True))
    return round(across / sum((a - middle[0]) ** 2 for a in x), 2)


def draw(record: GrowthRecord, target: Path) -> None:
    """Time and memory of an image over each axis, both scales logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

    figure, panels = plt.subplots(2, 3, figsize=(11, 6))
    for panel, each in zip(panels.flat, record.exponents, strict=False):
        rows = [row for row in record.points if row.axis == each.axis]
        beside = panel.twinx()
        values = [row.value for row in rows]
        milliseconds = [1000 / row.images_per_second for row in rows]
        megabytes = [max(row.peak_bytes, 4096) / 1e6 for row in rows]
        for part, found, style, colour, name in (
            (panel, milliseconds, "o-", "#1b6ca8", "ms an image"),
            (beside, megabytes, "s--", "#d9a05b", "MB a call"),
        ):
            part.loglog(values, found, style, color=colour, markersize=4)
            part.set_ylim(min(found) / 2, max(found) * 2)
            part.set_ylabel(name, fontsize=8, color=colour)
            part.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            part.xaxis.set_major_locator(FixedLocator(values))
            for axis in (part.xaxis, part.yaxis):
                axis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axis.set_minor_locator(NullLocator())
            part.tick_params(labelsize=8)
            part.spines["top"].set_visible(False)
        panel.set_title(AXES[each.axis], fontsize=10)
    for panel in panels.flat[len(record.exponents) :]:
        panel.set_visible(False)
    place = record.machine["processor" if record.device == "cpu" else "device"]
    figure.suptitle(f"The whole defense on {place}, {ITERATIONS} iterations", fontsize=12)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(target, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=float, default=1.5, help="seconds for each point")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--kinds", action="store_true", help="bytes and halves beside float32, nothing else")
    parser.add_argument("--plot-only", action="store_true", help="draw the plot of the kept record")
    parser.add_argument("--peaks", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # A kept record can be drawn where its device is not.
    device = torch.device(device_name(options.device)) if options.plot_only else pick_device(options.device)
    chosen = list(kinds() if options.kinds else points(device))
    if options.peaks:
        print(*(peak_bytes(point, device) for point in chosen))
        return
    target = options.results / f"{'kinds' if options.kinds else 'growth'}-{device.type}.json"
    if not options.plot_only:
        began, rows = time.perf_counter(), []
        for point, peak in zip(chosen, peaks(chosen, device, arguments=sys.argv[1:]), strict=True):
            rows.append(measured(point, device, options.budget, peak))
            print(rows[-1], flush=True)
        record = GrowthRecord(
            device=device.type,
            budget=options.budget,
            seconds=round(time.perf_counter() - began, 1),
            load=os.getloadavg()[0],
            machine=dict(environment(device)),
            points=tuple(rows),
            exponents=tuple(
                exponents(axis, found)
                for axis in AXES
                if len(found := [row for row in rows if row.axis == axis]) > 1
            ),
        )
        write_json(target, to_plain(record))
    if options.kinds:
        return
    draw(read_record(GrowthRecord, target), options.images / f"growth-{device.type}.png")


if __name__ == "__main__":
    main()

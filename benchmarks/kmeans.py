"""How many small k-means problems a second does `vq.kmeans` solve, and do a CPU and a GPU agree?

    python benchmarks/kmeans.py [--device cuda]

Beside it scikit-learn, problem by problem, where it is installed: equal starts (k-means++, one), rounds and
tolerance; on one thread, by CPU time. On a GPU `vq.kmeans` is timed by the clock, and its labels and the
indices of examples/palette.py, dithered and not, are compared with the CPU's. Writes
benchmarks/results/kmeans-cpu.json or kmeans-cuda.json.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any library reads it

import torch
from torch import Tensor

import vqshield as vq
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from palette import palette

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 20
SHAPES = ((4096, 256, 8, 8), (256, 4096, 16, 32), (64, 2048, 64, 16))  # problems, points, values, centres


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size of problem."""

    problems: int
    points: int
    values: int
    centres: int
    problems_per_second: float
    scikit_learn_per_second: float | None
    inertia_beside_scikit_learn: float | None  # ours divided by theirs, the mean


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The share of labels or indices that are the same on a CPU and on the GPU."""

    what: str
    same: float


def seconds(work: Callable[[], object], device: torch.device, least: float) -> float:
    """Of one call, the mean over as many as take that long."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    work()
    began, rounds = clock(), 0
    while rounds == 0 or clock() - began < least:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        rounds += 1
    return (clock() - began) / rounds


def problems(count: int, points: int, values: int) -> Tensor:
    return torch.randn(count, points, values, generator=torch.Generator().manual_seed(0))


def measure(shape: tuple[int, int, int, int], device: torch.device, least: float, peers: int) -> Row:
    count, size, values, codes = shape
    points = problems(count, size, values)
    there = points.to(device)
    taken = seconds(lambda: vq.kmeans(there, codes, iterations=ROUNDS), device, least)
    theirs = ratio = None
    try:
        library = import_module("sklearn.cluster")
    except ImportError:
        pass
    else:
        ours = vq.kmeans(there[:peers], codes, iterations=ROUNDS).inertia.cpu()
        began = time.process_time()
        fitted = [
            library.KMeans(codes, n_init=1, max_iter=ROUNDS, tol=0, random_state=0).fit(each.numpy())
            for each in points[:peers]
        ]
        theirs = round(len(fitted) / (time.process_time() - began), 2)
        found = torch.tensor([float(each.inertia_) for each in fitted], dtype=torch.float64)
        ratio = round(float((ours / found).mean()), 4)
    return Row(
        problems=count,
        points=size,
        values=values,
        centres=codes,
        problems_per_second=round(count / taken, 1),
        scikit_learn_per_second=theirs,
        inertia_beside_scikit_learn=ratio,
    )


def agreements(device: torch.device) -> list[Agreement]:
    rows = []
    for count, size, values, codes in SHAPES:
        points = problems(min(count, 32), size, values)
        here, there = (vq.kmeans(points.to(place), codes).labels.cpu() for place in ("cpu", device))
        rows.append(Agreement(what=f"kmeans, d={values}, k={codes}", same=_same(here, there)))
    images = torch.rand(4, 3, 96, 80, generator=torch.Generator().manual_seed(0))
    for dither in (False, True):
        here, there = (palette(images.to(each), 16, dither=dither).indices.cpu() for each in ("cpu", device))
        rows.append(Agreement(what=f"palette, dither={dither}", same=_same(here, there)))
    return rows


def _same(here: Tensor, there: Tensor) -> float:
    return float((here == there).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--peers", type=int, default=32, help="problems that scikit-learn solves")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(options.device)
    rows = []
    for shape in SHAPES:
        rows.append(measure(shape, device, options.seconds, options.peers))
        print(rows[-1], flush=True)
    agreed = agreements(device)
    for each in agreed:
        print(each)
    record = {
        "what": "small k-means problems a second", "rounds": ROUNDS, "environment": environment(device),
        "rows": to_plain(rows), "agreement_with_cpu": to_plain(agreed),
    }  # fmt: skip
    write_json(options.results / f"kmeans-{device.type}.json", record)


if __name__ == "__main__":
    main()

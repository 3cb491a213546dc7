"""What does a gradient through the soft surrogate cost: its formula in torch, and the native kernel?

    python benchmarks/surrogates.py [--repeats 7]
    PYTHONPATH=src python3 benchmarks/surrogates.py --device cuda [--quick] [--only epochs,idle] [--out FILE]

The second is surrogates_cuda.py, the first what follows.

Counted is CPU time on one thread, of the forward and the backward pass of the surrogate alone: the codebook
is found before. Both take turns, so that a busy machine slows them alike; the median is kept. Memory is how
far a process of its own grows above what it held before, and the distance is the largest from the formula's
gradient in float64, as a share of that gradient's largest value. Writes
benchmarks/results/surrogates-cpu.json.
"""

import argparse
import ctypes
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it

import torch
from torch import Tensor
from torch.nn import functional as F

import vqshield as vq
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.data import sample
from vqshield.surrogates import Shielding, Soft

ROOT = Path(__file__).resolve().parents[1]
SHAPES = ((32, 64), (224, 4), (328, 4))  # side, batch
DEFENSES = ("swrd:size=3,codes=25", "swrd:size=3,codes=256", "prd:size=2,codes=25", "randdisc:codes=25")
SOFT = Soft()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One implementation on one batch: CPU seconds of both passes, MB that they need, how exact they are."""

    defense: str
    side: int
    batch: int
    implementation: str
    forward: float
    backward: float
    peak_mb: float
    distance: float


def smooth(shielding: Shielding) -> Tensor:
    """The formula, in torch."""
    return SOFT._smooth(shielding)


IMPLEMENTATIONS: dict[str, Callable[[Shielding], Tensor]] = {"torch": smooth, "native": SOFT.attach}


def draw(defense: str, side: int, batch: int) -> tuple[Shielding, Tensor]:
    """One draw of enlarged photographs, and slopes of it."""
    name, _, settings = defense.partition(":")
    chosen = {key: int(value) for key, value in (each.split("=") for each in settings.split(","))}
    quantizer = vq.defenses.create(name, **chosen, iterations=5, seed=0)
    assert isinstance(quantizer, vq.Quantizer)
    images = F.interpolate(sample(batch).floats(), (side, side), mode="bilinear").clamp(0, 1)
    streams = torch.arange(batch)
    centres = quantizer.codebook(images, streams=streams)
    quantized = quantizer.quantize(images, centres, streams=streams)
    slopes = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return Shielding(images.requires_grad_(), quantized, quantizer, streams, centres), slopes


def gradient(implementation: str, shielding: Shielding, slopes: Tensor) -> tuple[float, float, Tensor]:
    """CPU seconds of the forward and the backward pass, and what came out."""
    began = time.process_time()
    found = IMPLEMENTATIONS[implementation](shielding)
    between = time.process_time()
    (pulled,) = torch.autograd.grad(found, shielding.images, slopes)
    return between - began, time.process_time() - between, pulled


def exact(shielding: Shielding, slopes: Tensor) -> Tensor:
    """The formula's gradient in float64, image by image: its tensors are large."""
    parts = []
    for number in range(min(4, len(slopes))):
        one = slice(number, number + 1)
        assert shielding.centres is not None
        points = shielding.images[one].detach().double().requires_grad_()
        part = Shielding(
            points, shielding.quantized[one].double(), shielding.defense, shielding.streams[one],
            shielding.centres[one].double(),
        )  # fmt: skip
        parts.append(torch.autograd.grad(smooth(part), points, slopes[one].double())[0])
    return torch.cat(parts)


def peak_mb(defense: str, side: int, batch: int, implementation: str) -> float:
    """Measured in a process of its own, where nothing else was larger before."""
    command = [sys.executable, __file__, "--peak", defense, str(side), str(batch), implementation]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(defense: str, side: int, batch: int, implementation: str) -> None:
    shielding, slopes = draw(defense, side, batch)
    gradient(implementation, *draw(defense, 32, 1))  # libraries are loaded, buffers of their own made
    ctypes.CDLL(None).malloc_trim(
        0
    )  # what was freed goes back to the system, or it would be used again unseen
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins at what is held now
    before = _kilobytes("VmRSS")
    gradient(implementation, shielding, slopes)
    print((_kilobytes("VmHWM") - before) / 1000)


def _kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="on a GPU: in less than a minute")
    parser.add_argument("--out", type=Path, help="on a GPU: the file to write")
    parser.add_argument("--only", help="on a GPU: some of its groups, as in epochs,idle")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda":
        import surrogates_cuda

        if options.warm:
            surrogates_cuda.warm(options.warm)
        else:
            out = options.out or options.results / "surrogates-cuda.json"
            only = tuple(options.only.split(",")) if options.only else surrogates_cuda.GROUPS
            surrogates_cuda.measure(quick=options.quick, out=out, only=only)
        return
    torch.set_num_threads(1)
    if options.peak:
        defense, side, batch, implementation = options.peak
        print_peak(defense, int(side), int(batch), implementation)
        return
    rows = []
    for side, batch in SHAPES:
        for defense in DEFENSES:
            shielding, slopes = draw(defense, side, batch)
            expected = exact(shielding, slopes)
            taken: dict[str, list[tuple[float, float, Tensor]]] = {name: [] for name in IMPLEMENTATIONS}
            for _ in range(options.repeats):
                for name, done in taken.items():
                    done.append(gradient(name, shielding, slopes))
            for name, done in taken.items():
                forward, backward = (statistics.median(each[which] for each in done) for which in (0, 1))
                difference = (done[-1][2][: len(expected)] - expected).abs().max()
                rows.append(
                    Row(
                        defense=defense,
                        side=side,
                        batch=batch,
                        implementation=name,
                        forward=round(forward, 5),
                        backward=round(backward, 5),
                        peak_mb=round(peak_mb(defense, side, batch, name), 1),
                        distance=float(f"{float(difference / expected.abs().max()):.2g}"),
                    )
                )
                print(rows[-1])
    record = {
        "what": "CPU seconds of the soft surrogate's gradient, one thread, median",
        "repeats": options.repeats,
        "load": os.getloadavg()[0],
        "machine": environment(),
        "rows": to_plain(tuple(rows)),
    }
    write_json(options.results / "surrogates-cpu.json", record)


if __name__ == "__main__":
    main()

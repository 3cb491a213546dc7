"""Where does the time of a default swRD go on a GPU, stage by stage?

    PYTHONPATH=src python3 benchmarks/stages.py [--repeats 15]

Small images pass through one kernel, so its stages are told apart by what is asked for: a codebook, labels
and rebuild from a given one, or both. A large image's are kernels of their own, whose times the profiler
tells. A whole call, which stands beside them, also checks the images and makes its workspace. By the GPU's
own clock: the median of all repeats, or what the profiler found on average. Writes
benchmarks/results/stages-cuda.json.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from surrogates_cuda import seconds
from torch import Tensor

import vqshield as vq
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.quantization.kernels.cuda.resident import Resident
from vqshield.quantization.noise import Draw
from vqshield_paper.speed.workloads import Workload, pictures

ROOT = Path(__file__).resolve().parents[1]
KERNELS = {
    "noisy patches": ("patches_kernel",),
    "k-means++": ("near_kernel", "pick_kernel"),
    "rounds": ("prepare_kernel", "round_kernel", "update_kernel"),
    "labels": ("label_kernel",),
    "rebuild": ("rebuild_kernel",),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stage, or the whole; microseconds an image."""

    images: int
    side: int
    codes: int
    stage: str
    microseconds: float


def of_small(defense: vq.Quantizer, images: Tensor, repeats: int) -> dict[str, float]:
    """Seconds of what the one kernel can be asked for."""
    draw = Draw(0, torch.arange(len(images), device=images.device))
    resident = Resident.of(images, defense.recipe(), defense.codes)
    if resident is None:
        raise SystemExit("the kernel of small images does not serve this GPU")
    centres = resident.run("centres", images, None, draw)
    asked: dict[str, Callable[[], object]] = {
        "codebook": lambda: resident.run("centres", images, None, draw),
        "labels and rebuild": lambda: resident.run("images", images, centres, draw),
        "both": lambda: resident.run("images", images, None, draw),
    }
    return {stage: seconds(call, repeats) for stage, call in asked.items()}


def of_large(defense: vq.Quantizer, images: Tensor, repeats: int) -> dict[str, float]:
    """Seconds of the kernels of a call."""
    streams = torch.arange(len(images), device=images.device)
    defense(images, streams=streams)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repeats):
            defense(images, streams=streams)
        torch.cuda.synchronize()
    taken = {event.key: event.device_time_total / 1e6 / repeats for event in profile.key_averages()}
    return {stage: sum(taken[name] for name in names) for stage, names in KERNELS.items()}


def measured(count: int, side: int, codes: int, repeats: int) -> list[Row]:
    """The rows of one size of images."""
    place = torch.device("cuda")
    defense = vq.SWRD(size=3, codes=codes, seed=0, backend="gpu")
    images = pictures(Workload(name="stages", side=side), count, place)
    streams = torch.arange(count, device=place)
    found = (of_small if side <= 64 else of_large)(defense, images, repeats)
    found["whole call"] = seconds(lambda: defense(images, streams=streams), repeats)
    return [
        Row(images=count, side=side, codes=codes, stage=stage, microseconds=round(1e6 * taken / count, 4))
        for stage, taken in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "stages-cuda.json")
    options = parser.parse_args()
    cases = (6144, 32, 25), (64, 328, 30)  # images, side, codes
    rows = [row for case in cases for row in measured(*case, options.repeats)]
    for row in rows:
        print(f"{row.side:4d} {row.stage:20s} {row.microseconds:10.3f} µs an image")
    write_json(options.out, to_plain({"machine": environment(torch.device("cuda")), "rows": rows}))


if __name__ == "__main__":
    main()

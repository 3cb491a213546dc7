"""Where does the time of a default swRD go on a GPU, stage by stage?

    PYTHONPATH=src python3 benchmarks/stages.py [--repeats 15]

The stages of one call, each launched again and again on what the ones before it left (of large images a
stage is many kernels). A whole call, which stands beside them, also checks the images and makes its
workspace. The median of all repeats, by the GPU's own clock. Writes benchmarks/results/stages-cuda.json.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from surrogates_cuda import seconds

import vqshield as vq
from vqshield.bench.workloads import Workload, pictures
from vqshield.clustering.triton.launch import Launch
from vqshield.clustering.triton.workspace import Sizes, Workspace
from vqshield.environment import environment
from vqshield.files import write_json
from vqshield.noise import Stage
from vqshield.plain import to_plain

ROOT = Path(__file__).resolve().parents[1]
CASES = ((6144, 32, 25), (64, 328, 30))  # images, side, codes


@dataclass(frozen=True, kw_only=True)
class Row:
    """One stage, or the whole; microseconds an image."""

    images: int
    side: int
    codes: int
    stage: str
    microseconds: float


def measured(count: int, side: int, codes: int, repeats: int) -> list[Row]:
    """The rows of one size of images."""
    place = torch.device("cuda")
    defense = vq.SWRD(size=3, codes=codes, seed=0, backend="triton")
    images = pictures(Workload(name="stages", side=side), count, place)
    streams, key = torch.arange(count, device=place), torch.zeros(1, dtype=torch.int64, device=place)
    n, dimensions = (side - 2) ** 2, 27
    space = Workspace.make(count, Sizes.of(n, codes, dimensions), place)
    run, output = Launch(images, streams, key, defense.recipe(), codes, space), torch.empty_like(images)
    run._patches(Stage.CODEBOOK, run.recipe.sigma)
    run._start()
    first = space.centres.clone()

    def rounds() -> None:
        space.centres.copy_(first)
        run._rounds()

    stages: dict[str, Callable[[], object]] = {
        "noisy patches": lambda: run._patches(Stage.CODEBOOK, run.recipe.sigma),
        "k-means++": run._start,
        "rounds": rounds,
        "labels": run._label,
        "rebuild": lambda: run._rebuild(output),
        "whole call": lambda: defense(images, streams=streams),
    }
    return [
        Row(
            images=count, side=side, codes=codes, stage=name,
            microseconds=round(1e6 * seconds(call, repeats) / count, 4),
        )
        for name, call in stages.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "stages-cuda.json")
    options = parser.parse_args()
    rows = [row for case in CASES for row in measured(*case, options.repeats)]
    for row in rows:
        print(f"{row.side:4d} {row.stage:20s} {row.microseconds:10.3f} µs an image")
    write_json(options.out, to_plain({"machine": environment(torch.device("cuda")), "rows": rows}))


if __name__ == "__main__":
    main()

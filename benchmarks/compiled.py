"""Do all Triton kernels compile for a GPU that is not here, and to code without a known fault?

    python benchmarks/compiled.py [--capability 90] [--quick]

Every launch of the quantizers and of the soft surrogate's gradient, over kinds of defense, patch sizes, codes
and images, is compiled by the Triton that is installed, and not run. Triton 3.6 packs two 32-bit shifts of
some kernels into one 64-bit register, and bits of the lower one run into the upper: an address is wrong, or a
value. In PTX that is half of an or of wide products or shifts. Of 14 forms of one kernel on an H200, the six
that have it stopped with a misaligned address, and the others ran. Writes
benchmarks/results/compiled-TRITON.json; about half an hour, less with Triton's cache.
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import vqshield as vq
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.defenses import create
from vqshield.quantization.kernels.gpu import Gpu
from vqshield.quantization.kernels.triton import soft
from vqshield.quantization.noise import Draw

ROOT = Path(__file__).resolve().parents[1]
DRAW = Draw(1, torch.arange(2))
CODES = (5, 10, 25, 35, 64, 70, 90, 128, 200, 256)
IMAGES = {(3, 32): CODES, (1, 28): (5, 25, 90), (3, 100): (25, 35, 90, 256)}
"""Codes, by channels and side: CIFAR's images, MNIST's, and some that are cut into strips."""
KINDS = (
    *(("swrd", {"size": size}) for size in (1, 2, 3, 4, 5)), *(("prd", {"size": size}) for size in (2, 3, 4)),
    ("randdisc", {}),
)  # fmt: skip
QUICK = {(3, 32): (25, 35)}
_SOFT = ((True, 0, True), (False, 0, False), (False, 2, False), (False, 2, True))
"""Of the soft gradient: whether centres move as means, rounds of soft k-means, whether noise is drawn."""
_SHIFTED = re.compile(r"(?:mul\.wide\.u32|shl\.b64)\s+(%rd\d+), %\w+, \S+;")
_JOINED = re.compile(r"or\.b64\s+(%rd\d+), (%\w+), (\S+);")
_HALVED = re.compile(r"mov\.b64\s+\{\S+, \S+\}, (%rd\d+);")


class Absent:
    """What Triton asks of a driver before it compiles, answered for a GPU that is not there."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Compiled:
    """Takes the place of JITFunction.run, and counts."""

    def __init__(self) -> None:
        self.kernels: dict[int, tuple[str, Any]] = {}
        self.faults: list[str] = []
        self.launch = ""
        self._run = JITFunction.run

    def __get__(self, function: JITFunction, owner: type) -> Any:
        def run(*arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            kernel = self._run(function, *arguments, grid=grid, warmup=True, **options)
            if id(kernel) not in self.kernels:
                self.kernels[id(kernel)] = function.__name__, kernel
                if runs_over(kernel.asm["ptx"]):
                    self.faults.append(f"{function.__name__}, {self.launch}")
                    print(self.faults[-1], flush=True)
            return kernel

        return run


def runs_over(ptx: str) -> bool:
    """Whether a register is cut into halves that is the or of two shifts, one of which may be too wide."""
    shifted = set(_SHIFTED.findall(ptx))
    joined = {made for made, *parts in _JOINED.findall(ptx) if shifted & set(parts)}
    return not joined.isdisjoint(_HALVED.findall(ptx))


def launches(*, quick: bool) -> Iterator[tuple[Tensor, vq.Quantizer]]:
    """Images, and a quantizer for them."""
    for (channels, side), all_codes in (QUICK if quick else IMAGES).items():
        images = torch.rand(2, channels, side, side)
        for (name, settings), codes, start in product(KINDS, all_codes, ("kmeans++", "random")):
            defense = create(name, **settings, codes=codes, init=start, seed=1)
            assert isinstance(defense, vq.Quantizer)
            if defense.grid.count(side, side) >= codes:
                yield images, defense


def launch(images: Tensor, defense: vq.Quantizer) -> None:
    """All kernels of a call and of its gradient."""
    recipe, padded = defense.recipe(), defense.grid.pad(images)
    Gpu()._run("images", padded, None, recipe, DRAW)  # what it calls would refuse a GPU that is not here
    channels, codes = images.shape[1], defense.codes
    if recipe.init == "random" or not soft.serves(recipe.grid, channels, codes):
        return
    centres = torch.rand(len(images), codes, channels * recipe.grid.size**2)
    for means, rounds, drawn in _SOFT:
        soft.soft_gradient(
            padded, padded, centres, torch.rand_like(padded), recipe if drawn else replace(recipe, tau=0.0),
            DRAW, temperature=0.03, means=means, rounds=rounds,
        )  # fmt: skip


def main() -> None:
    os.environ["VQSHIELD_CUDA"] = "off"  # Triton's kernels are in question, where others serve too
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capability", type=int, default=90, help="of the GPU, as in 80 or 90")
    parser.add_argument("--quick", action="store_true", help="some settings: a minute or two")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()

    driver.set_active(Absent(options.capability))
    compiled = Compiled()
    JITFunction.run = compiled  # type: ignore[method-assign, assignment]
    count = 0
    for images, defense in launches(quick=options.quick):
        compiled.launch = f"{defense} on {tuple(images.shape[1:])}"
        launch(images, defense)
        count += 1
    record = {
        "what": "Triton's kernels, compiled and not run",
        "triton": triton.__version__,
        "capability": options.capability,
        "quick": options.quick,
        "launches": count,
        "kernels": dict(Counter(name for name, _ in compiled.kernels.values()).most_common()),
        "faults": compiled.faults,
        "machine": environment("cpu"),
    }
    write_json(options.results / f"compiled-{triton.__version__}.json", record)
    print(f"{len(compiled.kernels)} kernels of {count} launches, {len(compiled.faults)} with the fault")


if __name__ == "__main__":
    main()

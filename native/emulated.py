"""Runs the kernel of the aarch64 wheel under an emulator, beside this machine's.

    apt install qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross libstdc++6-arm64-cross
    python native/emulated.py dist/vqshield-…-aarch64.whl [--record FILE]

Shields and codebooks of bundled images and plain k-means, by both kernels: the random bits are equal, so
results differ by roundings at most. Ends with an error where they differ by more. The record says by how
much, and with what it was measured.
"""

import argparse
import ctypes
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.core.settings import parse_spec
from vqshield.data import sample
from vqshield.defenses import Quantizer, create_any
from vqshield.quantization.kernels import Recipe
from vqshield.quantization.kernels.native import Native, _check, available
from vqshield.quantization.noise import Draw
from vqshield_paper.speed.lloyd import lloyd

FOLDER = Path(__file__).resolve().parent
LIBRARIES = "/usr/aarch64-linux-gnu"  # where Debian's cross packages put the C library
CASES = (
    "randdisc:codes=8", "prd:codes=25", "prd:codes=25,sigma=0,tau=0", "swrd:size=3,codes=25",
    "swrd:size=2,codes=15,weights_from=noisy,init=random",
)  # fmt: skip
IMAGES = 8
NEAR = 1e-5


class Emulated(Native):
    """The kernel of another processor: every call is a process of the emulator."""

    def __init__(self, caller: list[str], kernel: Path) -> None:
        super().__init__()
        self._caller, self._kernel = caller, kernel

    def _call(self, name: str, job: Any, work: float, memory: Mapping[str, Tensor]) -> None:
        job.threads = 1
        pointers = [field for field, kind, *_ in job._fields_ if kind is ctypes.c_void_p and field != "stop"]
        arrays = [memory.get(field) for field in pointers]
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder) / "job"
            whole.write_bytes(bytes(job))
            paths = [None if each is None else Path(folder) / f"{i}" for i, each in enumerate(arrays)]
            for values, path in zip(arrays, paths, strict=True):
                if values is not None and path is not None:
                    path.write_bytes(values.numpy().tobytes())
            named = ["-" if path is None else str(path) for path in paths]
            done = subprocess.run(
                [*self._caller, str(self._kernel), name, str(whole), *named], check=False, capture_output=True
            )
            if done.stderr:
                raise OSError(done.stderr.decode(errors="replace").strip())
            _check(done.returncode, type(job).from_buffer_copy(whole.read_bytes()).message)
            for values, path in zip(arrays, paths, strict=True):
                if values is not None and path is not None:
                    ctypes.memmove(values.data_ptr(), path.read_bytes(), values.nbytes)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What both kernels give for the same images, seed and streams."""

    case: str
    what: str
    beside: str  # this machine's build
    values: int
    equal: float  # the share of values that are equal bit for bit
    near: float  # the share that differs by less than 1e-5: a rounding can move a patch to another centre
    furthest: float


def compare(case: str, what: str, beside: str, theirs: Tensor, ours: Tensor) -> Row:
    """How far apart two results are."""
    apart = (theirs - ours).abs()
    return Row(
        case=case,
        what=what,
        beside=beside,
        values=ours.numel(),
        equal=float((apart == 0).double().mean()),
        near=float((apart < NEAR).double().mean()),
        furthest=float(apart.max()),
    )


def padded_images(defense: Quantizer) -> tuple[Tensor, Recipe, Draw]:
    """What a backend is given."""
    images = sample(IMAGES).floats()
    recipe = defense.recipe()
    return recipe.grid.pad(images), recipe, Draw(defense.seed, torch.arange(len(images)))


def measure(emulated: Emulated) -> list[Row]:
    """Every case, beside every build that this processor runs."""
    rows = []
    for isa in available():
        native = Native(isa)
        for case in CASES:
            name, settings = parse_spec(case)
            defense = create_any(name, seed=3, **settings)
            assert isinstance(defense, Quantizer)
            given = padded_images(defense)
            for what in ("codebook", "shield"):
                theirs, ours = (getattr(each, what)(*given) for each in (emulated, native))
                rows.append(compare(case, what, isa, theirs, ours))
        points = torch.randn(4, 300, 5, generator=torch.Generator().manual_seed(0))
        theirs, ours = (
            lloyd(each, points, points[:, :7].clone(), iterations=20) for each in (emulated, native)
        )
        rows.append(compare("4 problems of 300 points, 7 centres", "lloyd", isa, theirs, ours))
    return rows


def main() -> int:
    """Compile the caller, take the kernel out of the wheel, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path, help="the wheel for aarch64")
    parser.add_argument("--compiler", default="aarch64-linux-gnu-gcc", help="that makes programs for it")
    parser.add_argument("--emulator", default="qemu-aarch64", help="that runs them")
    parser.add_argument("--record", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    for tool in (options.compiler, options.emulator):
        if shutil.which(tool) is None:
            parser.error(f"{tool} is not installed")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(options.wheel) as wheel:
            kernel = Path(wheel.extract("vqshield/quantization/kernels/_native_generic.so", folder))
        caller = folder / "emulated"
        subprocess.run(
            [options.compiler, "-O1", "-Wall", "-Wextra", FOLDER / "emulated.c", "-o", caller, "-ldl"],
            check=True,
        )
        rows = measure(Emulated([options.emulator, "-L", LIBRARIES, str(caller)], kernel))
    for row in rows:
        print(row)
    good = all(row.near > 0.99 for row in rows)
    if options.record is not None:
        version = subprocess.run([options.emulator, "--version"], check=True, capture_output=True, text=True)
        record = {
            "what": "the kernel of the aarch64 wheel under an emulator, beside this machine's kernels",
            "wheel": options.wheel.name,
            "emulator": version.stdout.splitlines()[0],
            "images": IMAGES,
            "environment": environment(),
            "rows": to_plain(rows),
        }
        write_json(options.record, record)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

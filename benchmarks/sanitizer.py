"""Do the GPU's kernels touch memory that is not theirs, read what nobody wrote, or race?

    PYTHONPATH=src python3 benchmarks/sanitizer.py

Runs a few images through every kind of kernel under each tool of NVIDIA's compute-sanitizer, which is part
of the CUDA toolkit; less than two minutes. Writes benchmarks/results/sanitizer-cuda.json, and ends with an
error where a tool found something.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import torch

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.defenses import Quantizer, from_text
from vqshield.quantization.kernels.cuda.resident import Resident
from vqshield.quantization.kernels.cuda.strips import Strips
from vqshield_paper.speed.record import SanitizerRecord

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
CASES: dict[str, tuple[str, int]] = {  # by which kernels: a defense, and the side of its images
    "resident, kmeans++": ("swrd:size=3,codes=25,iterations=4", 32),
    "resident, random start": ("randdisc:codes=7,iterations=3,init=random", 20),
    "strips, kmeans++": ("swrd:size=3,codes=30,iterations=4", 72),
    "strips, random start": ("swrd:size=2,codes=9,iterations=3,init=random", 96),
    "strips, many products": ("swrd:size=5,codes=25,iterations=3", 32),
    "triton": ("swrd:size=3,codes=110,iterations=3", 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    found = {tool: findings(tool) for tool in TOOLS}
    record = SanitizerRecord(cases=tuple(CASES), machine=environment("cuda"), findings=found)
    write_json(options.results / "sanitizer-cuda.json", to_plain(record))
    raise SystemExit(1 if any(found.values()) else 0)


def findings(tool: str) -> int:
    """How many the tool reports."""
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, sys.executable, __file__, "--work"],
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},  # each tensor's end is an end
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    summary = re.search(r"SUMMARY: (\d+) (?:error|hazard)", done.stdout)
    if done.returncode != 0 or summary is None:
        raise SystemExit(f"{tool} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    if int(summary[1]):
        print(done.stdout[-4000:])
    print(f"{tool}: {summary[1]} findings", flush=True)
    return int(summary[1])


def work() -> None:
    """A codebook, labels and a rebuild of two images, by the kernels that the case is named after."""
    for name, (text, side) in CASES.items():
        defense = from_text(text, seed=0)
        assert isinstance(defense, Quantizer)
        images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0)).cuda()
        recipe, streams = defense.recipe(), torch.arange(2, device=images.device)
        kernels = {
            "resident": Resident.of(images, recipe, defense.codes),
            "strips": Strips.of(images, recipe, defense.codes),
        }
        serving = next((kind for kind, serves in kernels.items() if serves is not None), "triton")
        assert serving == name.partition(",")[0], f"{name} is served by {serving}"
        shielded = defense(images, streams=streams)
        centres = defense.codebook(images, streams=streams)
        assert torch.equal(shielded, defense.quantize(images, centres, streams=streams))


if __name__ == "__main__":
    main()

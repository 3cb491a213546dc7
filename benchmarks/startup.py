"""How long until vqshield answers? Importing it, and commands that do no work, beside importing torch alone.

python benchmarks/startup.py [--beside OTHER/src] [--repeats 5]

Writes benchmarks/results/startup-cpu.json. --beside measures another checkout in the same run, turn by turn.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from vqshield.core.environment import environment
from vqshield.core.files import write_json

ROOT = Path(__file__).resolve().parents[1]
VQSHIELD = [sys.executable, "-m", "vqshield"]
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import vqshield": [sys.executable, "-c", "import vqshield"],
    "vqshield --help": [*VQSHIELD, "--help"],
    "vqshield list": [*VQSHIELD, "list"],
    "vqshield evalute (no such command)": [*VQSHIELD, "evalute"],
    "vqshield evaluate --nope (no such option)": [*VQSHIELD, "evaluate", "--nope"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()

    sources = {"here": ROOT / "src", **({"beside": options.beside} if options.beside else {})}
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.repeats):
        for name, command in COMMANDS.items():
            for which, source in sources.items():
                taken.setdefault(name, {}).setdefault(which, []).append(seconds(command, source))
    rows = [
        {"what": name, **{which: round(statistics.median(all_), 3) for which, all_ in found.items()}}
        for name, found in taken.items()
    ]
    for row in rows:
        print(row)
    record = {
        "what": "seconds until it answers, median", "repeats": options.repeats, "load": os.getloadavg()[0],
        "machine": environment(), "rows": rows,
    }  # fmt: skip
    write_json(options.results / "startup-cpu.json", record)


def seconds(command: list[str], source: Path) -> float:
    """Wall clock of one run, files being in the system's cache after the first."""
    began = time.perf_counter()
    subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(source)}, capture_output=True, check=False, cwd=ROOT
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

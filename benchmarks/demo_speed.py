"""How much CPU time does the demo's measuring part take, here and in another checkout?

    python benchmarks/demo_speed.py --before OTHER/src [--repeats 2] [--images 100]

`Demo.run` with the command's default settings and one thread, each run in a process of its own; the two
checkouts take turns, so that a busy machine slows them alike. Counted is the process's CPU time, of the
measuring part alone, and as good as without the attack by queries, which earlier versions lack. Also kept: by
how much accuracies moved, which rounding can do to single images, and leaving lost images alone.
Writes benchmarks/results/demo-speed.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain

ROOT = Path(__file__).resolve().parents[1]
MEASURED = """
import json, sys, time, torch
from vqshield.demo.study import Demo, DemoSettings
torch.set_num_threads(1)
known = DemoSettings.__dataclass_fields__
fewest = {name: value for name, value in {"queried": 1, "calls": 12}.items() if name in known}
count = {"limit" if "limit" in known else "images": int(sys.argv[1])}
demo = Demo(DemoSettings(**count, **fewest), lambda *told: None)
began = time.process_time()
demo.run()
spent = time.process_time() - began
rows = {f"{row.defense}, {row.threat}": row.robust for row in demo.rows}
print(json.dumps({"seconds": spent, "rows": rows}))
"""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """An accuracy that is another now."""

    row: str
    before: float
    after: float


def measured(source: Path, images: int) -> tuple[float, dict[str, float]]:
    """CPU seconds, and the accuracies that were found."""
    environ = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURED, str(images)]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return float(found["seconds"]), dict(found["rows"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    sources = {"before": options.before.resolve(), "after": ROOT / "src"}
    seconds: dict[str, list[float]] = {name: [] for name in sources}
    rows: dict[str, dict[str, float]] = {}
    for _ in range(options.repeats):
        for name, source in sources.items():
            spent, rows[name] = measured(source, options.images)
            seconds[name].append(round(spent, 1))
            print(name, seconds[name][-1], flush=True)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    moved = [
        Moved(row=name, before=accuracy, after=rows["after"][name])
        for name, accuracy in rows["before"].items()
        if accuracy != rows["after"][name]
    ]
    record = {
        "what": "CPU seconds of the demo's measuring part, one thread, runs in turn",
        "images": options.images,
        "repeats": options.repeats,
        "before": seconds["before"],
        "after": seconds["after"],
        "ratio": round(medians["before"] / medians["after"], 2),
        "moved": to_plain(tuple(moved)),
        "load": os.getloadavg()[0],
        "machine": environment(),
    }
    print("ratio", record["ratio"], moved)
    write_json(options.results / "demo-speed.json", record)


if __name__ == "__main__":
    main()

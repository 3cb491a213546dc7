"""What does `vqshield app` bear? Ten sessions at once for a minute.

python benchmarks/app_load.py --sessions 10 --seconds 60

Starts the app as a process of its own on 127.0.0.1. Every session makes one call after the other, without a
pause: one of them attacks, the others shield bundled pictures and an upload, with changing defenses and
settings. Writes benchmarks/results/app-load.json. Server and sessions share the machine: its load averages
before and after are in the file.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gradio_client import Client, handle_file
from PIL import Image
from serve_load import Latency, free_port, latency

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.data import sample
from vqshield_app.choices import SETTINGS, list_choices, usual
from vqshield_app.experiments import ATTACKS, EPSILON
from vqshield_app.subjects import OFFERED

ROOT = Path(__file__).resolve().parents[1]
ATTACKERS = 1  # sessions
UPLOAD_EVERY = 5  # calls
UPLOAD_SIDE = 224
SAMPLES = 10  # of the memory, besides the first
WARM_UP = 90.0  # seconds of load before memory and calls count: allocators take that long to settle


@dataclass(frozen=True, kw_only=True)
class AppLoad:
    """What is written; latencies in milliseconds, as a session sees them."""

    what: str
    environment: Mapping[str, Json]
    packages: Mapping[str, str]
    sessions: int
    seconds: float
    load_average_before: tuple[float, ...]
    load_average_after: tuple[float, ...]
    calls_per_second: float
    server_cpu_seconds: float  # that the server used meanwhile, of those that the cores have
    shield: Latency
    attack: Latency
    errors: Mapping[str, int]
    rss_mib: tuple[float, ...]  # of the server: at the start, then ten times in equal steps
    peak_rss_mib: float
    stored_mib: tuple[float, float]  # pictures that the server keeps for an hour: at the start, at the end


class Sessions:
    """Visitors who never rest."""

    def __init__(self, address: str, count: int, upload: Path) -> None:
        self._address, self._upload = address, upload
        self._over, self._lock = threading.Event(), threading.Lock()
        self.shield: list[float] = []
        self.attack: list[float] = []
        self.errors: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._visit, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def forget(self) -> None:
        """What was seen so far."""
        with self._lock:
            self.shield, self.attack, self.errors = [], [], Counter()

    def stop(self) -> None:
        """Each ends after the call that it has under way."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _visit(self, number: int) -> None:
        client = Client(self._address, verbose=False, download_files=False, analytics_enabled=False)
        attacks, kinds = number < ATTACKERS, itertools.cycle(ATTACKS)
        for values in self._controls(number):
            if self._over.is_set():
                return
            began = time.perf_counter()
            try:
                if attacks:
                    found = client.predict(next(kinds), EPSILON, *values, api_name="/attack")
                else:
                    found = client.predict(*values, api_name="/shield")
                problem = "alert" if 'role="alert"' in str(found) else None
            except Exception as error:  # whatever a session meets is counted
                problem = type(error).__name__
            took = time.perf_counter() - began
            with self._lock:
                (self.attack if attacks else self.shield).append(took)
                if problem is not None:
                    self.errors[problem] += 1

    def _controls(self, number: int) -> Iterator[list[object]]:
        for call in itertools.count(number):
            defense = list_choices()[call % len(list_choices())]
            settings = {name: getattr(usual(defense), name) for name in SETTINGS}
            settings["codes"] = 10 + 7 * call % 60
            uploads = call % UPLOAD_EVERY == 0
            yield [
                call % OFFERED, handle_file(str(self._upload)) if uploads else None, defense,
                *settings.values(),
            ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    record = measure(options.sessions, options.seconds)
    write_json(options.results / "app-load.json", to_plain(record))
    print(record)


def measure(sessions: int, seconds: float) -> AppLoad:
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        stored, upload = Path(folder, "stored"), Path(folder, "upload.png")
        stored.mkdir()
        image = sample(1).images[0].permute(1, 2, 0).numpy()
        Image.fromarray(image).resize((UPLOAD_SIDE, UPLOAD_SIDE)).save(upload)
        command = [sys.executable, "-m", "vqshield", "app", "--no-browser", "--port", str(free_port())]
        environ = {**os.environ, "GRADIO_TEMP_DIR": str(stored)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
            try:
                return _under_load(server, sessions, seconds, upload, stored, before)
            finally:
                server.terminate()


def _under_load(
    server: "subprocess.Popen[str]",
    sessions: int,
    seconds: float,
    upload: Path,
    stored: Path,
    before: tuple[float, ...],
) -> AppLoad:
    assert server.stdout is not None
    said = server.stdout.readline()
    address = re.search(r"http://\S+", said)
    if address is None:
        raise SystemExit(f"the app did not start: {said!r}")
    visitors = Sessions(address[0], sessions, upload)
    try:
        time.sleep(WARM_UP)
        visitors.forget()
        began, memory, kept = time.perf_counter(), [_memory(server)], _size(stored)
        used = _cpu_seconds(server)
        for step in range(1, SAMPLES + 1):
            time.sleep(max(0.0, began + step * seconds / SAMPLES - time.perf_counter()))
            memory.append(_memory(server))
        took, used = time.perf_counter() - began, _cpu_seconds(server) - used
    finally:
        visitors.stop()
    calls = len(visitors.shield) + len(visitors.attack)
    return AppLoad(
        what=f"vqshield app: {sessions} sessions at once, no pause between calls; {ATTACKERS} attacks, the "
        f"others shield, one call in {UPLOAD_EVERY} a picture of {UPLOAD_SIDE}×{UPLOAD_SIDE} that they bring",
        environment={**environment(), "threads": 1},
        packages={name: version(name) for name in ("gradio", "gradio_client", "pillow", "torch")},
        sessions=sessions,
        seconds=round(took, 2),
        load_average_before=before,
        load_average_after=os.getloadavg(),
        calls_per_second=round(calls / took, 1),
        server_cpu_seconds=round(used, 1),
        shield=latency(visitors.shield),
        attack=latency(visitors.attack),
        errors=dict(visitors.errors),
        rss_mib=tuple(memory),
        peak_rss_mib=_memory(server, "VmHWM"),
        stored_mib=(kept, _size(stored)),
    )


def _memory(server: "subprocess.Popen[str]", kind: str = "VmRSS") -> float:
    """Of the process, in MiB; VmHWM is the most it ever had."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return round(int(found[1]) / 1024, 1)


def _cpu_seconds(server: "subprocess.Popen[str]") -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _size(folder: Path) -> float:
    return round(sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) / 2**20, 1)


if __name__ == "__main__":
    main()

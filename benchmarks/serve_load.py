"""What does `vqshield serve` bear? Full load with 1 and with 20 votes, a kill, stops, hostile requests.

python benchmarks/serve_load.py --connections 32 --seconds 60 -- --threads 2

Starts servers as processes of their own and sends them the bundled images over 127.0.0.1, each connection one
request after the other. What follows "--" goes to the servers. Writes benchmarks/results/serving-cpu.json.
Server and load generator share the machine: its load averages before and after are in the file.
"""

import argparse
import asyncio
import io
import itertools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import hostile_requests
import torch
from PIL import Image
from torch.nn import functional as F

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.data import sample
from vqshield_deploy.serving.clients import KEYS
from vqshield_deploy.serving.deployment import Deployment

ROOT = Path(__file__).resolve().parents[1]
IMAGES = 100
WARM_UP = 5.0  # seconds at full load before memory and requests count
BACK_OFF = 0.2  # seconds until a connection that failed is tried again
SHORT = 5.0  # seconds of load on either side of a stop or a kill
VOTES, SEED = 20, 7
HOSTILE_OPTIONS = ("--receive-s", "2", "--max-bytes", "200000")
SHIELDS = tuple((name, side) for side in (32, 224) for name in ("prd", "swrd"))


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Of many requests, in milliseconds."""

    requests: int
    p50: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True, kw_only=True)
class FullLoad:
    """Every connection always has a request under way."""

    votes: int
    seconds: float
    requests_per_second: float
    latency: Latency
    statuses: Mapping[str, int]
    lost: int
    batches: int
    images_per_batch: float
    batches_by_size: Mapping[str, int]
    rss_mib: tuple[float, ...]  # about ten times, from the end of the warm-up on
    peak_rss_mib: float


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """A signal to the server under load."""

    signal: str
    in_flight: int  # requests that were sent and not answered at that moment
    in_flight_lost: int
    later_lost: int  # sent after it, on connections that the server was closing or had no time to close
    exit_code: int
    seconds_to_exit: float


@dataclass(frozen=True, kw_only=True)
class Restart:
    """The same connections, after the server was killed and started again."""

    seconds_to_ready: float
    answered: int
    statuses: Mapping[str, int]
    lost: int
    connections_that_serve: int


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Served answers next to those of `vq.Voting` with the same settings and seed.

    Equal is an image with the same class or abstention, votes, bound and radius.
    """

    images: int
    votes: int
    seed: int
    equal: int
    abstained: int


@dataclass(frozen=True, kw_only=True)
class HostileLoad:
    """Requests of benchmarks/hostile_requests.py: what came back by kind, and what should not have."""

    requests: int
    seconds: float
    statuses: Mapping[str, Mapping[str, int]]
    wrong: tuple[str, ...]  # failures of the server, connections that hang, paths and tracebacks
    honest_status_afterwards: str
    peak_rss_mib: float


@dataclass(frozen=True, kw_only=True)
class ShieldLatency:
    """One image through the shield alone, without classifier and server; the median."""

    defense: str
    side: int
    milliseconds: float


@dataclass(frozen=True, kw_only=True)
class ServingRecord:
    """What is written."""

    what: str
    environment: Mapping[str, Json]
    packages: Mapping[str, str]
    connections: int
    images: int
    server_options: tuple[str, ...]
    server: Mapping[str, Json]  # what /healthz says, of one vote
    load_average_before: tuple[float, ...]
    load_average_after: tuple[float, ...]
    seconds_to_ready: float
    shields: tuple[ShieldLatency, ...]
    one_connection: Latency
    full_load: tuple[FullLoad, ...]  # with 1 vote, and with several
    kill: Interruption
    restart: Restart
    stop: Interruption
    stop_voting: Interruption
    agreement: Agreement
    hostile: HostileLoad


@dataclass
class Seen:
    """What the connections have seen since the last time somebody looked."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    lost: set[int] = field(default_factory=set)  # numbers of requests
    serving: set[int] = field(default_factory=set)  # numbers of connections


class Load:
    """Connections that each send one request after the other until told to stop."""

    def __init__(self, port: int, connections: int, requests: Sequence[bytes]) -> None:
        self._port, self._requests = port, requests
        self.seen, self.in_flight, self._over = Seen(), set[int](), False
        self._numbers = itertools.count()
        self._tasks = [asyncio.create_task(self._connection(number)) for number in range(connections)]

    def look(self) -> Seen:
        """What was seen since the last look."""
        seen, self.seen = self.seen, Seen()
        return seen

    async def stop(self) -> None:
        """Every connection ends after the request that it has under way."""
        self._over = True
        await asyncio.gather(*self._tasks)

    async def _connection(self, connection: int) -> None:
        while not self._over:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:  # nobody listens: no request was sent, so none is lost
                await asyncio.sleep(BACK_OFF)
                continue
            while not self._over and not reader.at_eof():
                number = next(self._numbers)
                began = time.perf_counter()
                self.in_flight.add(number)
                try:
                    writer.write(self._requests[number % len(self._requests)])
                    status, _, last = await _response(reader)
                except (OSError, asyncio.IncompleteReadError):
                    self.seen.lost.add(number)
                    await asyncio.sleep(BACK_OFF)
                    break
                finally:
                    self.in_flight.discard(number)
                self.seen.seconds.append(time.perf_counter() - began)
                self.seen.statuses[status] += 1
                self.seen.serving.add(connection)
                if last:
                    break
                await asyncio.sleep(0)  # lets the end of the connection arrive, if it came with the answer
            writer.close()


async def _response(reader: asyncio.StreamReader) -> tuple[str, bytes, bool]:
    """Read one: its status, its content, and whether it is the connection's last."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    content = await reader.readexactly(int(length[1]))
    return head.split(b" ", 2)[1].decode(), content, b"connection: close" in head.lower()


class Server:
    """`vqshield serve` as a process."""

    def __init__(self, port: int, *options: str, key: str = "") -> None:
        self._address = f"http://127.0.0.1:{port}"
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vqshield", "serve", "--port", str(port), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, KEYS: key},
        )

    async def ready(self) -> float:
        """Wait until it is; the seconds since its start."""
        while self.process.poll() is None:
            try:
                await asyncio.to_thread(self.page, "/readyz")
                return time.perf_counter() - self.began
            except (urllib.error.URLError, OSError):
                await asyncio.sleep(0.05)
        raise SystemExit(f"the server ended with exit code {self.process.returncode} before it was ready")

    def end(self) -> None:
        """Kill it, if it runs."""
        self.process.kill()
        self.process.wait()

    def page(self, path: str) -> str:
        """A page as text."""
        with urllib.request.urlopen(self._address + path, timeout=30) as answer:
            return str(answer.read().decode())

    def memory(self, kind: str = "VmRSS") -> float:
        """Of the process, in MiB; VmHWM is the most it ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{kind}:\s+(\d+) kB", status)
        assert found is not None
        return round(int(found[1]) / 1024, 1)

    def batches(self) -> dict[str, float]:
        """The samples of the histogram of batch sizes."""
        return {
            name: float(value)
            for name, value in re.findall(r"^vqshield_batch_size_(\S+) (\S+)$", self.page("/metrics"), re.M)
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("server", nargs="*")
    options = parser.parse_args()
    record = asyncio.run(measure(options.connections, options.seconds, options.server))
    write_json(options.results / "serving-cpu.json", to_plain(record))
    for load in record.full_load:
        print(f"{load.votes} votes: {load.requests_per_second:.0f} requests/s, {load.latency}")
    print(record.kill, record.restart, record.stop, record.stop_voting, record.agreement, sep="\n")
    print(record.hostile)


async def measure(connections: int, seconds: float, options: Sequence[str]) -> ServingRecord:
    before = os.getloadavg()
    shields = tuple(
        ShieldLatency(defense=name, side=side, milliseconds=shield(name, side)) for name, side in SHIELDS
    )
    port, requests = free_port(), uploads()
    server = Server(port, *options)
    try:
        to_ready = await server.ready()
        server_says = server.page("/healthz")
        one = await alone(port, requests)
        load = Load(port, connections, requests)
        full = await full_load(server, load, seconds, votes=1)
        kill = await interrupted(server, load, signal.SIGKILL)
        server = Server(port, *options)
        restart_to_ready = await server.ready()
        lost_while_down = len(load.look().lost)
        await asyncio.sleep(SHORT)
        after = load.look()
        restart = Restart(
            seconds_to_ready=round(restart_to_ready, 2),
            answered=len(after.seconds),
            statuses=dict(after.statuses),
            lost=lost_while_down + len(after.lost),
            connections_that_serve=len(after.serving),
        )
        stop = await interrupted(server, load, signal.SIGTERM)
        await load.stop()
        server = Server(port, "--votes", str(VOTES), *options)
        await server.ready()
        load = Load(port, connections, requests)
        full_voting = await full_load(server, load, seconds, votes=VOTES)
        stop_voting = await interrupted(server, load, signal.SIGTERM)
        await load.stop()
        server = Server(port, "--votes", str(VOTES), "--seed", str(SEED), *options)
        await server.ready()
        agreed = await agreement(port, requests)
        server.end()
        server = Server(port, *options, *HOSTILE_OPTIONS, key=hostile_requests.KEY)
        await server.ready()
        hostile = await asyncio.to_thread(hostile_load, server, port)
    finally:
        server.end()
    return ServingRecord(
        what="vqshield serve under full load on 127.0.0.1, killed, stopped, and sent hostile requests",
        environment=environment(),
        packages={
            name: version(name) for name in ("fastapi", "starlette", "uvicorn", "prometheus-client", "pillow")
        },
        connections=connections,
        images=IMAGES,
        server_options=tuple(options),
        server=json.loads(server_says),
        load_average_before=before,
        load_average_after=os.getloadavg(),
        seconds_to_ready=round(to_ready, 2),
        shields=shields,
        one_connection=one,
        full_load=(full, full_voting),
        kill=kill,
        restart=restart,
        stop=stop,
        stop_voting=stop_voting,
        agreement=agreed,
        hostile=hostile,
    )


async def alone(port: int, requests: Sequence[bytes]) -> Latency:
    """One connection: nothing to wait for but the server's own pause for a batch."""
    load = Load(port, 1, requests)
    await asyncio.sleep(1)
    load.look()
    await asyncio.sleep(SHORT)
    seen = load.look()
    await load.stop()
    return latency(seen.seconds)


async def full_load(server: Server, load: Load, seconds: float, *, votes: int) -> FullLoad:
    await asyncio.sleep(WARM_UP)
    batches = await asyncio.to_thread(server.batches)
    load.look()
    began, memory = time.perf_counter(), [server.memory()]
    for step in range(1, 11):
        await asyncio.sleep(began + step * seconds / 10 - time.perf_counter())
        memory.append(server.memory())
    took, seen = time.perf_counter() - began, load.look()
    made = {name: value - batches[name] for name, value in (await asyncio.to_thread(server.batches)).items()}
    up_to = [(name[11:-2], int(count)) for name, count in made.items() if name.startswith("bucket")]
    return FullLoad(
        votes=votes,
        seconds=round(took, 2),
        requests_per_second=round(len(seen.seconds) / took, 1),
        latency=latency(seen.seconds),
        statuses=dict(seen.statuses),
        lost=len(seen.lost),
        batches=int(made["count"]),
        images_per_batch=round(made["sum"] / made["count"], 2),
        batches_by_size={
            f"<= {bound.removesuffix('.0')}".replace("<= +Inf", "more"): count - before
            for (bound, count), (_, before) in zip(up_to, [("", 0), *up_to], strict=False)
        },
        rss_mib=tuple(memory),
        peak_rss_mib=server.memory("VmHWM"),
    )


async def interrupted(server: Server, load: Load, which: signal.Signals) -> Interruption:
    """The server after a signal, with everything that the connections lost by it."""
    await asyncio.sleep(SHORT)
    load.look()
    in_flight, began = set(load.in_flight), time.perf_counter()
    server.process.send_signal(which)
    code = await asyncio.to_thread(server.process.wait)
    took = time.perf_counter() - began
    while load.in_flight:  # the sockets may still hold answers
        await asyncio.sleep(0.01)
    lost = load.look().lost
    return Interruption(
        signal=which.name,
        in_flight=len(in_flight),
        in_flight_lost=len(lost & in_flight),
        later_lost=len(lost - in_flight),
        exit_code=code,
        seconds_to_exit=round(took, 2),
    )


async def agreement(port: int, requests: Sequence[bytes]) -> Agreement:
    """Every image once, several at a time, so that batches have any size."""

    async def answer(request: bytes) -> dict[str, Json]:
        async with at_once:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            found = json.loads((await _response(reader))[1])
            writer.close()
            return found

    at_once = asyncio.Semaphore(8)
    answers = await asyncio.gather(*map(answer, requests))
    model = vq.defend(small_cifar10(), "swrd")
    voting = vq.Voting(model, samples=VOTES, selection=Deployment(classifier="").selection, seed=SEED)
    equal = 0
    for image, found in zip(sample(IMAGES).floats(), answers, strict=True):
        wanted = voting.predict(image[None])
        index = None if int(wanted.classes) < 0 else int(wanted.classes)
        expected = index, int(wanted.votes), float(wanted.lower), float(wanted.radii)
        equal += expected == tuple(found[name] for name in ("index", "votes", "lower", "radius"))
    abstained = sum(bool(found["abstained"]) for found in answers)
    return Agreement(images=len(answers), votes=VOTES, seed=SEED, equal=equal, abstained=abstained)


def hostile_load(server: Server, port: int) -> HostileLoad:
    """All hostile requests, then an honest one."""
    made, began = hostile_requests.requests(), time.perf_counter()
    replies = hostile_requests.sent_to(port, made)
    took = time.perf_counter() - began
    honest = hostile_requests.Hostile("honest", hostile_requests.upload(hostile_requests.picture()))
    return HostileLoad(
        requests=len(replies),
        seconds=round(took, 1),
        statuses=hostile_requests.summary(replies),
        wrong=tuple(hostile_requests.found_wrong(replies)),
        honest_status_afterwards=str(hostile_requests.sent_to(port, [honest])[0].status),
        peak_rss_mib=server.memory("VmHWM"),
    )


def shield(name: str, side: int) -> float:
    """The median of repeated calls, in milliseconds."""
    image = F.interpolate(sample(1).floats(), size=(side, side), mode="bicubic").clamp(0, 1)
    defense = vq.defenses.create(name)
    times = []
    with torch.inference_mode():
        for _ in range(60):
            began = time.perf_counter()
            defense(image)
            times.append(time.perf_counter() - began)
    return round(1000 * statistics.median(times[10:]), 3)


def uploads() -> list[bytes]:
    """Whole HTTP requests, ready to be sent."""
    found = []
    for image in sample(IMAGES).images:
        picture = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(picture, "PNG")
        body = (
            b'--part\r\nContent-Disposition: form-data; name="file"; filename="image.png"\r\n'
            b"Content-Type: image/png\r\n\r\n" + picture.getvalue() + b"\r\n--part--\r\n"
        )
        head = (
            "POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: multipart/form-data; boundary=part\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        found.append(head.encode() + body)
    return found


def latency(seconds: Sequence[float]) -> Latency:
    cuts = [round(1000 * cut, 2) for cut in statistics.quantiles(seconds, n=100)]
    most = round(1000 * max(seconds), 2)
    return Latency(requests=len(seconds), p50=cuts[49], p95=cuts[94], p99=cuts[98], most=most)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()

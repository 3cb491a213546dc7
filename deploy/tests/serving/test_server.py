"""The server as processes: it stops without losing a request, and workers share a port and their counts."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from serving.tools import READY, encoded, eventually, exchange, upload

from vqshield.data import sample
from vqshield_deploy.serving.server import _listen

KEPT = upload(encoded(sample(1).images[0].permute(1, 2, 0).numpy())).replace(b"Connection: close\r\n", b"")


class Served:
    """A `vqshield serve`, whose log and messages go to files."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            command = [sys.executable, "-m", "vqshield", "serve", "--port", "0", "--threads", "1", *options]
            self.process = subprocess.Popen(command, stdout=out, stderr=err)
        eventually(lambda: "\n" in self.err.read_text() or self.process.poll() is not None)
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.err.read_text())
        assert found, self.err.read_text()
        self.port = int(found[1])
        eventually(lambda: self.get("/readyz").startswith(b"HTTP/1.1 200"))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def get(self, path: str) -> bytes:
        request = f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
        return exchange(self.connect(), request.encode())

    def workers(self) -> list[int]:
        """Children that serve; multiprocessing has another, which tracks its resources."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def counted(self, status: int) -> float:
        found = re.search(rf'requests_total{{status="{status}"}} (\S+)', self.get("/metrics").decode())
        return float(found[1]) if found else 0


@contextlib.contextmanager
def served(*options: str) -> Iterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        server = Served(Path(folder), *options)
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()


def answer(connection: socket.socket) -> bytes:
    """One answer on a connection that is kept."""
    content = b""
    while b"\r\n\r\n" not in content:
        received = connection.recv(65536)
        assert received, "closed without an answer"
        content += received
    head, _, body = content.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def is_ready(connection: socket.socket) -> bool:
    connection.sendall(READY + b"\r\n")
    return b" 200 OK" in answer(connection)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_answers_every_request_that_was_accepted(workers: int) -> None:
    with served("--votes", "40", "--workers", str(workers)) as server, contextlib.ExitStack() as held:
        kept = [held.enter_context(server.connect()) for _ in range(24)]
        for connection in kept:  # accepted, by a worker whose model is warm
            eventually(partial(is_ready, connection))
        for connection in kept[:16]:
            connection.sendall(KEPT)
        for connection in kept[16:20]:
            connection.sendall(KEPT[:-40])
        server.process.send_signal(signal.SIGTERM)
        for connection in kept[16:20]:
            connection.sendall(KEPT[-40:])
        for connection in kept[:20]:
            assert b" 200 OK" in answer(connection)
            assert connection.recv(1) == b"", "then it is closed"
        assert [connection.recv(1) for connection in kept[20:]] == [b""] * 4
        assert server.process.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        assert server.err.read_text().count("\n") == 1, "the address alone"
        lines = [json.loads(line) for line in server.out.read_text().splitlines()]
        assert sum(line["path"] == "/classify" and line["status"] == 200 for line in lines) == 20


@pytest.mark.slow
def test_workers_share_the_port_and_their_counts_and_are_replaced() -> None:
    with served("--workers", "2") as server:
        eventually(lambda: len(server.workers()) == 2)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: exchange(server.connect(), KEPT.replace(
                b"Host: here", b"Host: here\r\nConnection: close")), range(40)))  # fmt: skip
        assert all(each.startswith(b"HTTP/1.1 200") for each in answers)
        assert {server.counted(200) for _ in range(10)} == {40}, "whichever worker answers"
        killed, other = server.workers()
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: len(server.workers()) == 2 and killed not in server.workers())
        assert other in server.workers()
        eventually(lambda: server.get("/readyz").startswith(b"HTTP/1.1 200"))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 0
        for pid in (other, killed):
            assert not Path(f"/proc/{pid}").exists()


def test_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    """Without TCP_NODELAY, a client that reads headers before the body gets each answer 40 ms later."""
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

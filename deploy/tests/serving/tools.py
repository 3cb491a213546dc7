"""A server for tests: in this process, behind an HTTP client or a socket."""

import io
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("vqshield_deploy.serving", reason="needs the extra serving", exc_type=ImportError)
pytest.importorskip("httpx", reason="fastapi's TestClient needs httpx")

import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

from vqshield_deploy.serving.application import create_app
from vqshield_deploy.serving.limits import Limits
from vqshield_deploy.serving.predictor import Predictor
from vqshield_deploy.serving.server import server_config


@contextmanager
def serving(model: nn.Module, names: tuple[str, ...] = (), **limits: float) -> Iterator[TestClient]:
    with serving_built(Predictor(model, names=names), **limits) as client:
        yield client


@contextmanager
def serving_built(predictor: Predictor, keys: Sequence[bytes] = (), **limits: float) -> Iterator[TestClient]:
    threads = torch.get_num_threads()
    app = create_app(predictor, Limits(**limits), threads=1, keys=keys)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
    torch.set_num_threads(threads)


class Brightness(nn.Module):
    """Answers with the level of an image's first pixel; can wait at a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def forward(self, images: Tensor) -> Tensor:
        self.batches.append(len(images))
        self.entered.set()
        assert self.go_on.wait(60)
        levels = (images[:, 0, 0, 0] * 255).round().long()
        if (levels == 255).any():
            raise RuntimeError("this model cannot bear white")
        return nn.functional.one_hot(levels, 256).float() * 50

    def hold(self) -> None:
        """Stop at the next batch; `entered` says when."""
        self.entered.clear()
        self.go_on.clear()


def encoded(pixels: "np.ndarray | Image.Image", kind: str = "PNG") -> bytes:
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


def grey(level: int, side: int = 32) -> bytes:
    return encoded(np.full((side, side, 3), level, np.uint8))


def post(client: TestClient, content: bytes):
    return client.post("/classify", files={"file": ("upload", content)})


def eventually(condition: Callable[[], bool]) -> None:
    """Until it holds, in many short waits; a hang ends in pytest's own time limit."""
    while not condition():
        threading.Event().wait(0.005)


def ready(client: TestClient) -> None:
    eventually(lambda: client.get("/readyz").status_code == 200)


def metrics(client: TestClient) -> dict[str, float]:
    """Each sample of the page; a line that is none of Prometheus's fails."""
    text = client.get("/metrics").text
    assert text.endswith("\n")
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP [a-z_]+ .+|TYPE [a-z_]+ (counter|gauge|histogram))", line)
            continue
        shown = re.fullmatch(r'([a-z_]+(?:\{[a-z]+="[^"]+"\})?) (\S+)', line)
        assert shown, line
        found[shown[1]] = float(shown[2])
    return found


@dataclass(frozen=True)
class Listening:
    """A real server on a port of this machine; a call connects to it."""

    server: uvicorn.Server
    address: tuple[str, int]

    def __call__(self) -> socket.socket:
        return socket.create_connection(self.address)


@contextmanager
def listening(model: nn.Module, **limits: float) -> Iterator[Listening]:
    bounds = Limits(**limits)
    server = uvicorn.Server(server_config(create_app(Predictor(model), bounds, threads=1), bounds))
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Listening(server, listener.getsockname())
        finally:
            server.should_exit = True
            thread.join()


def exchange(connection: socket.socket, sent: bytes = b"") -> bytes:
    """All that the server answers until it closes the connection, in order or by a reset."""
    answer = b""
    with connection, suppress(ConnectionResetError):
        connection.sendall(sent)
        while received := connection.recv(65536):
            answer += received
    return answer


def upload(content: bytes) -> bytes:
    """POST /classify, all of it."""
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + content
        + b"\r\n--x--\r\n"
    )
    lines = (
        b"POST /classify HTTP/1.1", b"Host: here", b"Content-Type: multipart/form-data; boundary=x",
        b"Connection: close", b"Content-Length: %d" % len(body), b"", body,
    )  # fmt: skip
    return b"\r\n".join(lines)


READY = b"GET /readyz HTTP/1.1\r\nHost: here\r\n"


def ended(answer: bytes, part: str) -> bool:
    """Whether a connection was closed as it should be: where a request waits for an answer, with one."""
    return answer.startswith(b"HTTP/1.1 408 ") if part == "half of the body" else answer == b""


def until_ready(connect: Callable[[], socket.socket]) -> None:
    eventually(lambda: exchange(connect(), READY + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200"))

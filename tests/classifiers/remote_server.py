"""A server on this machine that answers as a test wants it to, and remembers what it was asked."""

import io
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn


@dataclass
class Server:
    """Answers of a model; url: where; posts: bodies and headers of the requests so far."""

    url: str = ""
    posts: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    answer: Callable[[bytes], object] = lambda body: {"index": 0, "probability": 1.0}
    raw: Callable[[socket.socket], None] | None = None  # instead of an answer
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def pixels_of(body: bytes) -> Tensor:
    """The image in a form, as floats (1, 3, h, w)."""
    png = body[body.index(b"\x89PNG") :]
    picture = np.array(Image.open(io.BytesIO(png)).convert("RGB"))
    return torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255


def serving(model: nn.Module, *, scores: bool = True) -> Callable[[bytes], object]:
    """The answers of a model: its probabilities, or the most probable class alone."""

    @torch.no_grad()
    def answer(body: bytes) -> object:
        shares = model(pixels_of(body)).softmax(1)[0]
        best = int(shares.argmax())
        return {"scores": shares.tolist()} if scores else {"index": best, "probability": float(shares[best])}

    return answer


@contextmanager
def server() -> Iterator[Server]:
    """A server on a free port of 127.0.0.1."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.posts.append((dict(self.headers), body))
            if state.raw is not None:
                with suppress(OSError):
                    state.raw(self.connection)
                self.close_connection = True
                return
            found = state.answer(body)
            content = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(state.status)
            for name, value in ({"Content-Length": str(len(content))} | state.headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}/classify"
    try:
        yield state
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def boundary_of(headers: dict[str, str]) -> str:
    """The boundary of a form."""
    found = re.fullmatch("multipart/form-data; boundary=([0-9a-f]+)", headers["Content-Type"])
    assert found is not None
    return found[1]

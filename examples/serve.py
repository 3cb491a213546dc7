"""Put a shielded classifier behind HTTP: batches, limits on uploads, a health check, metrics.

    pip install ".[serving]" -c constraints.txt
    python examples/serve.py --classifier small-cifar10 --defense swrd
    curl -F file=@cat.png http://127.0.0.1:8000/classify

docs/serving.md describes the limits, and how much the defense protects here.
"""

import argparse
import asyncio
import os
import queue
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np
import torch
from fastapi import FastAPI, HTTPException, Response, UploadFile
from fastapi.responses import JSONResponse
from PIL import Image, ImageOps
from torch import nn

import vqshield as vq
from vqshield.classifiers import BUNDLED, load_classifier
from vqshield.data import sample
from vqshield.quantization import kernels as clustering

MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # Pillow's 16-bit modes do not become RGB
FORM_BYTES = 4096  # what a form may take besides its file


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server takes; each is an option of the command line."""

    side: int = 32  # uploads are cut to a square and resized to this many pixels
    max_bytes: int = 4 << 20
    max_pixels: int = 16_000_000
    max_batch: int = 16
    wait_ms: float = 2.0  # how long a batch waits for more images
    queue: int = 64  # images that may wait for the model
    connections: int = 256  # requests at once, and connections that may wait for one
    receive_s: float = 30.0  # how long a request may take to arrive, headers and body
    threads: int = os.cpu_count() or 1


@dataclass
class Histogram:
    """Counts of values by their size, in Prometheus's text format."""

    name: str
    bounds: Sequence[float]
    counts: Counter[int] = field(default_factory=Counter)
    sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self) -> Iterator[str]:
        up_to = list(accumulate(self.counts[i] for i in range(len(self.bounds) + 1)))
        yield f"# TYPE {self.name} histogram"
        for bound, count in zip((*self.bounds, "+Inf"), up_to, strict=True):
            yield f'{self.name}_bucket{{le="{bound}"}} {count}'
        yield from (f"{self.name}_sum {self.sum}", f"{self.name}_count {up_to[-1]}")


class Batcher:
    """A queue of images, and the one thread that runs the model on whatever is in it."""

    def __init__(self, model: nn.Module, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self.queue: queue.Queue[tuple[np.ndarray, Future[list[float]]] | None] = queue.Queue(limits.queue)
        self.sizes = Histogram("vqshield_batch_size", (1, 2, 4, 8, 16, 32, 64))
        self.ready = False
        self.thread = threading.Thread(target=self._work, name="model", daemon=True)

    def submit(self, pixels: np.ndarray) -> "Future[list[float]]":
        """The probabilities of an image (side, side, 3), soon; queue.Full where too many wait already."""
        answer: Future[list[float]] = Future()
        self.queue.put_nowait((pixels, answer))
        return answer

    def stop(self) -> None:
        """Answer what is in the queue, then end."""
        self.queue.put(None)
        self.thread.join()

    def _work(self) -> None:
        torch.set_num_threads(self._limits.threads)
        self._run([np.zeros((self._limits.side, self._limits.side, 3), np.uint8)])  # the first call is slow
        self.ready = True
        running = True
        while running and (item := self.queue.get()) is not None:
            batch, until = [item], time.monotonic() + self._limits.wait_ms / 1000
            while running and len(batch) < self._limits.max_batch:
                try:  # what is there already is taken even where the time is up
                    item = self.queue.get(timeout=max(until - time.monotonic(), 0))
                except queue.Empty:
                    break
                if running := item is not None:
                    batch.append(item)
            if asked := [each for each in batch if each[1].set_running_or_notify_cancel()]:
                self._answer(asked)
        self.ready = False

    def _answer(self, batch: list[tuple[np.ndarray, "Future[list[float]]"]]) -> None:
        self.sizes.add(len(batch))
        try:
            for (_, answer), found in zip(batch, self._run([pixels for pixels, _ in batch]), strict=True):
                answer.set_result(found)
        except Exception as error:  # becomes the answer to these requests; the thread lives on
            for _, answer in batch:
                answer.set_exception(error)

    @torch.inference_mode()
    def _run(self, images: list[np.ndarray]) -> list[list[float]]:
        batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous().float() / 255
        return self._model(batch).softmax(1).tolist()


@dataclass
class Guard:
    """Between the server and the application: counts, times and bounds /classify, and no other path."""

    app: Any
    limits: Limits
    statuses: Counter[int]
    seconds: Histogram
    running: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/classify":
            return await self.app(scope, receive, send)
        began, status, read = time.monotonic(), 500, 0  # 500: sent outside of this, after an exception

        async def bounded() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.limits.max_bytes + FORM_BYTES:
                raise HTTPException(413, f"the upload has more than {self.limits.max_bytes} bytes")
            return message

        async def noted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        full = self.running >= self.limits.connections
        text = f"{self.running} requests are running already; try again soon"
        busy = JSONResponse({"detail": text}, 503, headers={"Retry-After": "1"})
        self.running += 1
        try:
            await (busy if full else self.app)(scope, bounded, noted)
        finally:
            self.running -= 1
            self.statuses[status] += 1
            self.seconds.add(time.monotonic() - began)


def decode(file: BinaryIO, limits: Limits) -> np.ndarray:
    """An upload as the model sees it, (side, side, 3) bytes; an HTTPException says what is wrong with it."""
    try:
        with Image.open(file, formats=("PNG", "JPEG")) as picture:
            width, height = picture.size
            if width * height > limits.max_pixels:  # the header says so: nothing is unpacked yet
                raise HTTPException(413, f"{width}x{height} pixels; at most {limits.max_pixels} are taken")
            if picture.mode not in MODES:
                raise HTTPException(415, f"an image of mode {picture.mode}; send 8 bits a channel")
            upright = ImageOps.exif_transpose(picture).convert("RGB")
        return np.asarray(ImageOps.fit(upright, (limits.side, limits.side), Image.Resampling.BICUBIC))
    except HTTPException:
        raise
    except Image.DecompressionBombError:
        raise HTTPException(413, f"far more than the {limits.max_pixels} pixels that are taken") from None
    except Image.UnidentifiedImageError:
        raise HTTPException(415, "not a PNG or JPEG image, or its header is broken") from None
    except Exception as error:  # hostile bytes make Pillow raise nearly anything
        raise HTTPException(400, f"broken image: {error}") from None


def create_app(model: nn.Module, limits: Limits, names: Sequence[str] = ()) -> FastAPI:
    """The application; `names` are those of the classes, where they have some."""
    batcher, statuses = Batcher(model, limits), Counter[int]()
    seconds = Histogram(
        "vqshield_request_seconds", (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.thread.start()
        yield
        await asyncio.to_thread(batcher.stop)

    # No pages at /docs and /redoc: they would load scripts from elsewhere. /openapi.json is served.
    app = FastAPI(title="A shielded classifier", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, limits=limits, statuses=statuses, seconds=seconds)

    @app.post("/classify")
    async def classify(file: UploadFile) -> dict[str, str | int | float]:
        pixels = await asyncio.to_thread(decode, file.file, limits)
        try:
            probabilities = await asyncio.wrap_future(batcher.submit(pixels))
        except queue.Full:
            text = f"{limits.queue} images are waiting already; try again soon"
            raise HTTPException(503, text, headers={"Retry-After": "1"}) from None
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return {
            "class": names[best] if names else str(best),
            "index": best,
            "probability": probabilities[best],
        }

    @app.get("/healthz")
    async def healthz(response: Response) -> dict[str, str | int | bool]:
        ready = batcher.ready and batcher.thread.is_alive()
        response.status_code = 200 if ready else 503
        defense = getattr(model, "defense", None)
        backend = clustering.get(defense.backend).name if isinstance(defense, vq.Quantizer) else "none"
        return {
            "ready": ready, "vqshield": vq.__version__, "torch": torch.__version__, "threads": limits.threads,
            "defense": "none" if defense is None else type(defense).__name__, "backend": backend,
        }  # fmt: skip

    @app.get("/metrics")
    async def metrics() -> Response:
        lines = ["# TYPE vqshield_requests_total counter"]
        lines += [f'vqshield_requests_total{{status="{each}"}} {statuses[each]}' for each in sorted(statuses)]
        lines += ["# TYPE vqshield_queue_length gauge", f"vqshield_queue_length {batcher.queue.qsize()}"]
        text = "\n".join((*lines, *seconds.lines(), *batcher.sizes.lines(), ""))
        return Response(text, media_type="text/plain; version=0.0.4")

    return app


def server_settings(limits: Limits) -> dict[str, Any]:
    """The settings of uvicorn: a connection whose request does not arrive in time is closed.

    Where too many connections wait, the one that has waited longest is closed too. So idle connections keep
    neither uploads nor the health check out.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[H11Protocol, asyncio.TimerHandle] = {}  # the longest wait first

    class TimedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.watch()
            if len(waiting) > limits.connections:
                next(iter(waiting)).give_up()

        def handle_events(self) -> None:
            super().handle_events()
            self.watch()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self.watch()

        def watch(self) -> None:
            arriving = self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing()
            if arriving and self not in waiting:
                waiting[self] = self.loop.call_later(limits.receive_s, self.give_up)
            elif not arriving and self in waiting:
                waiting.pop(self).cancel()

        def give_up(self) -> None:
            if self.conn.our_state is h11.SEND_RESPONSE:  # there is a request, without an answer so far
                self.transport.write(
                    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                )
            self.transport.close()
            self.watch()

    return {"http": TimedProtocol, "ws": "none", "access_log": False, "timeout_graceful_shutdown": 30}


def main() -> None:
    """Serve until SIGTERM or Ctrl-C; requests in flight are answered first."""
    import uvicorn  # here, because other servers can run create_app as well

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classifier", default=BUNDLED, help="as vqshield list classifiers shows them")
    parser.add_argument("--defense", default="swrd", help='such as swrd:size=3,codes=25, or "none"')
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    for each in fields(Limits):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=type(each.default), default=None)
    options = parser.parse_args()

    classifier = load_classifier(options.classifier)
    given = {
        each.name: value for each in fields(Limits) if (value := getattr(options, each.name)) is not None
    }
    limits = Limits(**({"side": classifier.size[0]} if classifier.size else {}) | given)
    # No seed: fresh entropy makes the draws unpredictable. A fixed one would let an attacker rehearse them.
    model = classifier if options.defense == "none" else vq.defend(classifier, options.defense)
    with torch.inference_mode():
        model(
            torch.zeros(1, 3, limits.side, limits.side)
        )  # a side that it cannot take ends here, and says why
    names = sample(1).classes if options.classifier == BUNDLED else ()
    # One process: torch's threads do not survive a fork, and a worker forked after they were used (gunicorn
    # --preload, for instance) can hang. For more processes start this file several times, behind a proxy.
    app = create_app(model, limits, names)
    uvicorn.run(app, host=options.host, port=options.port, **server_settings(limits))


if __name__ == "__main__":
    main()

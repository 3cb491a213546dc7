"""The serving example: right answers in batches; bad uploads and overload are refused, and it lives on."""

import importlib
import io
import re
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.data import sample

pytest.importorskip("fastapi", reason="examples/serve.py needs the extra serving")
pytest.importorskip("httpx", reason="fastapi's TestClient needs httpx")
pytest.importorskip("python_multipart", reason="examples/serve.py needs the extra serving")

from fastapi.testclient import TestClient
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(EXAMPLES)
    threads = torch.get_num_threads()
    yield importlib.import_module("serve")
    torch.set_num_threads(threads)


@pytest.fixture
def serving(serve: ModuleType):
    @contextmanager
    def started(model: nn.Module, names: tuple[str, ...] = (), **limits: int) -> Iterator[TestClient]:
        app = serve.create_app(model, serve.Limits(threads=1, **limits), names)
        with TestClient(app, raise_server_exceptions=False) as client:
            yield client

    return started


class Brightness(nn.Module):
    """Answers with the level of an image's first pixel; waits where it is told to."""

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
    eventually(lambda: client.get("/healthz").status_code == 200)


def metrics(client: TestClient) -> dict[str, float]:
    """Each sample of the page; a line that is none of Prometheus's fails."""
    text = client.get("/metrics").text
    assert text.endswith("\n")
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# TYPE [a-z_]+ (counter|gauge|histogram)", line)
            continue
        shown = re.fullmatch(r'([a-z_]+(?:\{[a-z]+="[^"]+"\})?) (\S+)', line)
        assert shown, line
        found[shown[1]] = float(shown[2])
    return found


def test_bundled_images_get_the_classes_that_the_model_gives_them(serving) -> None:
    photos, model = sample(10), small_cifar10()
    with torch.inference_mode():
        expected = model(photos.floats()).softmax(1)
    with serving(model, photos.classes) as client:
        for image, wanted in zip(photos.images, expected, strict=True):
            answer = post(client, encoded(image.permute(1, 2, 0).numpy())).json()
            assert answer["index"] == int(wanted.argmax())
            assert answer["class"] == photos.classes[int(wanted.argmax())]
            assert answer["probability"] == pytest.approx(float(wanted.max()), abs=1e-4)


def test_the_shielded_model_is_mostly_right_and_draws_afresh(serving) -> None:
    photos = sample(20)
    uploads = [encoded(image.permute(1, 2, 0).numpy()) for image in photos.images]
    with serving(vq.defend(small_cifar10(), "swrd")) as client:
        answers = [post(client, upload).json() for upload in uploads]
        right = sum(
            each["index"] == label for each, label in zip(answers, photos.labels.tolist(), strict=True)
        )
        assert right >= 10  # about 15 of 20
        assert len({post(client, uploads[0]).json()["probability"] for _ in range(3)}) == 3


def test_in_a_batch_every_image_gets_its_own_answer(serving) -> None:
    model = Brightness()
    with serving(model, max_batch=8) as client, ThreadPoolExecutor(21) as pool:
        ready(client)
        model.hold()
        first = pool.submit(post, client, grey(0))
        assert model.entered.wait(60)
        others = [pool.submit(post, client, grey(level)) for level in range(1, 21)]
        eventually(lambda: metrics(client)["vqshield_queue_length"] == 20)
        model.go_on.set()
        assert first.result().json()["index"] == 0
        assert [each.result().json()["index"] for each in others] == list(range(1, 21))
        assert model.batches == [1, 1, 8, 8, 4]  # the first warms it up
        assert metrics(client)['vqshield_batch_size_bucket{le="4"}'] == 2


def test_a_full_queue_is_refused_and_those_in_it_are_answered(serving) -> None:
    model = Brightness()
    with serving(model, queue=3) as client, ThreadPoolExecutor(4) as pool:
        ready(client)
        model.hold()
        waiting = [pool.submit(post, client, grey(7))]
        assert model.entered.wait(60)
        waiting += [pool.submit(post, client, grey(7)) for _ in range(3)]
        eventually(lambda: metrics(client)["vqshield_queue_length"] == 3)
        refused = post(client, grey(7))
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "3 images are waiting" in refused.json()["detail"]
        model.go_on.set()
        assert [each.result().status_code for each in waiting] == [200] * 4
        assert post(client, grey(7)).status_code == 200


def test_more_requests_than_connections_are_refused_and_health_answers(serving) -> None:
    model = Brightness()
    with serving(model, connections=2, max_batch=1) as client, ThreadPoolExecutor(2) as pool:
        ready(client)
        model.hold()
        running = [pool.submit(post, client, grey(7)) for _ in range(2)]
        assert model.entered.wait(60)
        eventually(lambda: metrics(client)["vqshield_queue_length"] == 1)
        refused = post(client, grey(7))
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "2 requests are running" in refused.json()["detail"]
        assert client.get("/healthz").status_code == 200
        model.go_on.set()
        assert [each.result().status_code for each in running] == [200] * 2
        assert post(client, grey(7)).status_code == 200
        assert metrics(client)['vqshield_requests_total{status="503"}'] == 1


def test_no_page_loads_anything_from_elsewhere(serving) -> None:
    with serving(Brightness()) as client:
        for path in (
            "/",
            "/docs",
            "/docs/oauth2-redirect",
            "/redoc",
            "/openapi.json",
            "/healthz",
            "/metrics",
        ):
            assert "http" not in client.get(path).text
        assert client.get("/openapi.json").json()["paths"].keys() == {"/classify", "/healthz", "/metrics"}


@contextmanager
def listening(serve: ModuleType, model: nn.Module, **limits: float) -> Iterator[Callable[[], socket.socket]]:
    """A real server on a port of this machine; what is yielded connects to it."""
    uvicorn = pytest.importorskip("uvicorn", reason="examples/serve.py needs the extra serving")
    chosen = serve.Limits(threads=1, **limits)
    settings = serve.server_settings(chosen)
    server = uvicorn.Server(uvicorn.Config(serve.create_app(model, chosen), log_level="error", **settings))
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield lambda: socket.create_connection(listener.getsockname())
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


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: here\r\n"
PARTS = {"nothing": b"", "half of the headers": HEALTH, "half of the body": upload(grey(3))[:-40]}


def ended(answer: bytes, part: str) -> bool:
    """Whether a connection was closed as it should be: where a request waits for an answer, with one."""
    return answer.startswith(b"HTTP/1.1 408 ") if part == "half of the body" else answer == b""


def until_ready(connect: Callable[[], socket.socket]) -> None:
    eventually(lambda: exchange(connect(), HEALTH + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200"))


@pytest.mark.parametrize("part", PARTS)
def test_idle_connections_keep_nobody_out(serve: ModuleType, part: str) -> None:
    with listening(serve, Brightness()) as connect, ExitStack() as held:
        until_ready(connect)
        *idle, answered = (held.enter_context(connect()) for _ in range(serve.Limits().connections))
        for connection in idle:
            connection.sendall(PARTS[part])
        answered.sendall(HEALTH + b"\r\n")
        assert answered.recv(65536), "by now the server has read what the others sent: none is closed unread"
        assert exchange(connect(), HEALTH + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
        assert b'"index":3' in exchange(connect(), upload(grey(3)))
        assert ended(exchange(idle[0]), part), "the longest wait ends first"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("earlier", [b"", HEALTH + b"\r\n"], ids=["first request", "second request"])
def test_a_request_that_does_not_arrive_in_time_is_ended(
    serve: ModuleType, part: str, earlier: bytes
) -> None:
    with listening(serve, Brightness(), receive_s=0.2) as connect:
        until_ready(connect)
        answer = exchange(connect(), earlier + PARTS[part])
        assert answer.count(b"HTTP/1.1 200 OK") == (earlier != b"")
        assert ended(answer.rpartition(b"}")[2], part)
        assert exchange(connect(), upload(grey(3))).startswith(b"HTTP/1.1 200 OK")


def test_the_time_limit_does_not_end_a_request_that_has_arrived(serve: ModuleType) -> None:
    model = Brightness()
    with listening(serve, model, receive_s=0.2) as connect, ThreadPoolExecutor(1) as pool:
        until_ready(connect)
        model.hold()
        running = pool.submit(exchange, connect(), upload(grey(3)))
        assert model.entered.wait(60)
        assert exchange(connect()) == b""  # opened later, and its time is over
        model.go_on.set()
        assert b'"index":3' in running.result()


@pytest.mark.parametrize("max_batch", [1, 2, 8])
def test_stopping_answers_what_is_in_the_queue(serve: ModuleType, max_batch: int) -> None:
    model = Brightness()
    batcher = serve.Batcher(model, serve.Limits(threads=1, max_batch=max_batch, wait_ms=0))
    batcher.thread.start()
    eventually(lambda: batcher.ready)
    model.hold()
    answers = [batcher.submit(np.zeros((32, 32, 3), np.uint8))]
    assert model.entered.wait(60)
    answers += [batcher.submit(np.full((32, 32, 3), level, np.uint8)) for level in (1, 2)]
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(batcher.stop)
        eventually(lambda: batcher.queue.qsize() == 3)  # two images, and the end behind them
        model.go_on.set()
        stopped.result()
    assert [int(np.argmax(each.result(0))) for each in answers] == [0, 1, 2]
    assert not batcher.thread.is_alive()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes whose header promises that many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(4096))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


BAD = {
    "empty": (b"", 415, "not a PNG or JPEG"),
    "text": (b"GET / HTTP/1.1", 415, "not a PNG or JPEG"),
    "gif": (encoded(Image.new("RGB", (4, 4)), "GIF"), 415, "not a PNG or JPEG"),
    "cut short": (encoded(sample(1).images[0].permute(1, 2, 0).numpy())[:900], 400, "broken image"),
    "cut JPEG": (encoded(sample(1).images[0].permute(1, 2, 0).numpy(), "JPEG")[:700], 400, "broken image"),
    "16 bits": (encoded(np.zeros((8, 8), np.uint16)), 415, "8 bits a channel"),
    "pixels": (encoded(Image.new("1", (2000, 51))), 413, "2000x51 pixels; at most 100000"),
    "bomb": (bomb(30000, 30000), 413, "at most 100000|far more than the 100000"),
    "promise": (bomb(300, 300), 400, "broken image"),
    "bytes": (b"\x89PNG\r\n\x1a\n" + bytes(300_000), 413, "more than 200000 bytes"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_uploads_are_refused_by_name_and_the_server_lives_on(serving, case: str) -> None:
    content, status, message = BAD[case]
    with serving(Brightness(), max_bytes=200_000, max_pixels=100_000) as client:
        answer = post(client, content)
        assert (answer.status_code, bool(re.search(message, answer.json()["detail"]))) == (status, True)
        assert post(client, grey(3)).json()["index"] == 3
        assert metrics(client)[f'vqshield_requests_total{{status="{status}"}}'] == 1


def test_a_form_without_the_file_is_told_its_name(serving) -> None:
    with serving(Brightness()) as client:
        for answer in (client.post("/classify", data={"other": "x"}), client.post("/classify", content=b"x")):
            assert answer.status_code == 422
            assert answer.json()["detail"][0]["loc"] == ["body", "file"]
        assert client.get("/classify").status_code == 405


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*(("PNG", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")), ("JPEG", "L"), ("JPEG", "CMYK")],
)
def test_every_common_kind_of_picture_is_taken(serving, kind: str, mode: str) -> None:
    picture = Image.new("RGB", (50, 40)).convert(mode)
    with serving(Brightness()) as client:
        assert post(client, encoded(picture, kind)).json()["index"] <= 1


def test_a_model_that_fails_costs_its_batch_alone(serving) -> None:
    with serving(Brightness()) as client:
        assert post(client, grey(255)).status_code == 500
        assert post(client, grey(9)).json()["index"] == 9
        assert metrics(client)['vqshield_requests_total{status="500"}'] == 1


def test_health_says_ready_once_the_model_is_warm(serving) -> None:
    model = Brightness()
    model.hold()
    with serving(model) as client:
        cold = client.get("/healthz")
        assert (cold.status_code, cold.json()["ready"]) == (503, False)
        model.go_on.set()
        ready(client)
        answer = client.get("/healthz").json()
        assert answer["vqshield"] == vq.__version__
        assert answer["torch"] == torch.__version__
        assert (answer["defense"], answer["backend"]) == ("none", "none")


def test_health_names_the_backend_and_keeps_the_seed_to_itself(serving) -> None:
    with serving(vq.defend(small_cifar10(), "prd", seed=987654, backend="torch")) as client:
        answer = client.get("/healthz")
        assert answer.json()["defense"] == "PRD"
        assert answer.json()["backend"] == "torch"
        assert "987654" not in answer.text


def test_metrics_add_up(serving) -> None:
    with serving(Brightness()) as client:
        for _ in range(3):
            post(client, grey(1))
        post(client, b"")
        found = metrics(client)
    assert found['vqshield_requests_total{status="200"}'] == 3
    assert found['vqshield_requests_total{status="415"}'] == 1
    assert found["vqshield_request_seconds_count"] == 4
    assert found['vqshield_request_seconds_bucket{le="+Inf"}'] == 4
    assert found["vqshield_batch_size_sum"] == found["vqshield_batch_size_count"] == 3
    buckets = [value for name, value in found.items() if name.startswith("vqshield_request_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert found["vqshield_queue_length"] == 0

"""A served model: right answers in batches; bad uploads and overload are refused, and it lives on."""

import re
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from PIL import Image
from serving.tools import (
    READY,
    Brightness,
    encoded,
    ended,
    eventually,
    exchange,
    grey,
    listening,
    metrics,
    post,
    ready,
    serving,
    until_ready,
    upload,
)

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.data import sample
from vqshield_deploy.serving import protocol
from vqshield_deploy.serving.batching import Batcher
from vqshield_deploy.serving.limits import Limits
from vqshield_deploy.serving.metrics import Metrics
from vqshield_deploy.serving.predictor import Predictor

PARTS = {"nothing": b"", "half of the headers": READY, "half of the body": upload(grey(3))[:-40]}


def test_bundled_images_get_the_classes_that_the_model_gives_them() -> None:
    photos, model = sample(10), small_cifar10()
    with torch.inference_mode():
        expected = model(photos.floats()).softmax(1)
    with serving(model, photos.classes) as client:
        for image, wanted in zip(photos.images, expected, strict=True):
            answer = post(client, encoded(image.permute(1, 2, 0).numpy())).json()
            assert answer["index"] == int(wanted.argmax())
            assert answer["class"] == photos.classes[int(wanted.argmax())]
            assert answer["probability"] == pytest.approx(float(wanted.max()), abs=1e-4)


def test_the_shielded_model_is_mostly_right_and_draws_afresh() -> None:
    photos = sample(20)
    uploads = [encoded(image.permute(1, 2, 0).numpy()) for image in photos.images]
    with serving(vq.defend(small_cifar10(), "swrd")) as client:
        answers = [post(client, upload).json() for upload in uploads]
        right = sum(
            each["index"] == label for each, label in zip(answers, photos.labels.tolist(), strict=True)
        )
        assert right >= 10  # about 15 of 20
        assert len({post(client, uploads[0]).json()["probability"] for _ in range(3)}) == 3


def test_in_a_batch_every_image_gets_its_own_answer() -> None:
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
        assert metrics(client)['vqshield_batch_size_bucket{le="4.0"}'] == 2


def test_a_full_queue_is_refused_and_those_in_it_are_answered() -> None:
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


def test_more_requests_than_connections_are_refused_and_health_answers() -> None:
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


def test_an_answer_that_takes_too_long_is_refused() -> None:
    model = Brightness()
    with serving(model, answer_s=0.05, max_batch=1) as client, ThreadPoolExecutor(2) as pool:
        ready(client)
        model.hold()
        late = [pool.submit(post, client, grey(level)) for level in (1, 2)]
        for refused in (each.result() for each in late):  # the model still holds the first
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "took more than 0.05 s" in refused.json()["detail"]
        model.go_on.set()
        eventually(lambda: post(client, grey(7)).status_code == 200)


def test_an_image_that_nobody_waits_for_is_not_computed() -> None:
    model = Brightness()
    batcher = Batcher(Predictor(model), Limits(max_batch=1), Metrics(), threads=1)
    batcher.thread.start()
    eventually(lambda: batcher.ready)
    model.hold()
    first, second = (batcher.submit(torch.zeros(3, 32, 32, dtype=torch.uint8)) for _ in range(2))
    assert model.entered.wait(60)
    assert second.cancel()
    model.go_on.set()
    batcher.stop()
    assert first.result(0).index == 0
    assert model.batches == [1, 1]  # the first warms it up


def test_no_page_loads_anything_from_elsewhere() -> None:
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
        assert client.get("/openapi.json").json()["paths"].keys() == {
            "/classify",
            "/healthz",
            "/readyz",
            "/metrics",
        }


@pytest.mark.parametrize("part", PARTS)
def test_idle_connections_keep_nobody_out(part: str) -> None:
    with listening(Brightness()) as connect, ExitStack() as held:
        until_ready(connect)
        *idle, answered = (held.enter_context(connect()) for _ in range(Limits().connections))
        for connection in idle:
            connection.sendall(PARTS[part])
        answered.sendall(READY + b"\r\n")
        assert answered.recv(65536), "by now the server has read what the others sent: none is closed unread"
        assert exchange(connect(), READY + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
        assert b'"index":3' in exchange(connect(), upload(grey(3)))
        assert ended(exchange(idle[0]), part), "the longest wait ends first"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("earlier", [b"", READY + b"\r\n"], ids=["first request", "second request"])
def test_a_request_that_does_not_arrive_in_time_is_ended(part: str, earlier: bytes) -> None:
    with listening(Brightness(), receive_s=0.2) as connect:
        until_ready(connect)
        answer = exchange(connect(), earlier + PARTS[part])
        assert answer.count(b"HTTP/1.1 200 OK") == (earlier != b"")
        assert ended(answer.rpartition(b"}")[2], part)
        assert exchange(connect(), upload(grey(3))).startswith(b"HTTP/1.1 200 OK")


def test_the_time_limit_does_not_end_a_request_that_has_arrived() -> None:
    model = Brightness()
    with listening(model, receive_s=0.2) as connect, ThreadPoolExecutor(1) as pool:
        until_ready(connect)
        model.hold()
        running = pool.submit(exchange, connect(), upload(grey(3)))
        assert model.entered.wait(60)
        assert exchange(connect()) == b""  # opened later, and its time is over
        model.go_on.set()
        assert b'"index":3' in running.result()


@pytest.mark.parametrize("arrived", [False, True])
def test_a_request_that_is_on_its_way_when_the_server_stops_is_answered(
    monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    monkeypatch.setattr(protocol, "LINGER", 60)
    model, request = Brightness(), upload(grey(3)).replace(b"Connection: close\r\n", b"")
    with listening(model) as connect, connect() as kept:
        until_ready(connect)
        kept.sendall(READY + b"\r\n")
        assert kept.recv(65536).startswith(b"HTTP/1.1 200 OK")
        model.hold()
        if arrived:
            kept.sendall(request)
            assert model.entered.wait(60)
        for connection in list(connect.server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.shutdown)
        connection.loop.call_soon_threadsafe(model.go_on.set)
        answer = exchange(kept, b"" if arrived else request)
        assert b'"index":3' in answer
        assert b"connection: close" in answer, "the client knows that no other request is answered"


def test_a_connection_without_a_request_is_closed_when_the_server_stops() -> None:
    with listening(Brightness()) as connect, connect() as idle:
        until_ready(connect)
        connect.server.should_exit = True
        assert exchange(idle) == b""


@pytest.mark.parametrize("max_batch", [1, 2, 8])
def test_stopping_answers_what_is_in_the_queue(max_batch: int) -> None:
    model = Brightness()
    limits = Limits(max_batch=max_batch, wait_ms=0)
    batcher = Batcher(Predictor(model), limits, Metrics(), threads=1)
    batcher.thread.start()
    eventually(lambda: batcher.ready)
    model.hold()
    answers = [batcher.submit(torch.zeros(3, 32, 32, dtype=torch.uint8))]
    assert model.entered.wait(60)
    answers += [batcher.submit(torch.full((3, 32, 32), level, dtype=torch.uint8)) for level in (1, 2)]
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(batcher.stop)
        eventually(lambda: batcher.queue.qsize() == 3)  # two images, and the end behind them
        model.go_on.set()
        stopped.result()
    assert [each.result(0).index for each in answers] == [0, 1, 2]
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
    "16 bits": (encoded(np.zeros((8, 8), np.uint16)), 415, "8 bits per channel"),
    "pixels": (encoded(Image.new("1", (2000, 51))), 413, "2000x51 pixels; at most 100000"),
    "bomb": (bomb(30000, 30000), 413, "at most 100000|far more than the 100000"),
    "promise": (bomb(300, 300), 400, "broken image"),
    "bytes": (b"\x89PNG\r\n\x1a\n" + bytes(300_000), 413, "more than 200000 bytes"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_uploads_are_refused_by_name_and_the_server_lives_on(case: str) -> None:
    content, status, message = BAD[case]
    with serving(Brightness(), max_bytes=200_000, max_pixels=100_000) as client:
        answer = post(client, content)
        assert (answer.status_code, bool(re.search(message, answer.json()["detail"]))) == (status, True)
        assert post(client, grey(3)).json()["index"] == 3
        assert metrics(client)[f'vqshield_requests_total{{status="{status}"}}'] == 1


def test_a_form_without_the_file_is_told_its_name() -> None:
    with serving(Brightness()) as client:
        for answer in (client.post("/classify", data={"other": "x"}), client.post("/classify", content=b"x")):
            assert answer.status_code == 422
            assert answer.json()["detail"][0]["loc"] == ["body", "file"]
        assert client.get("/classify").status_code == 405


@pytest.mark.parametrize(
    ("kind", "mode"),
    [*(("PNG", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")), ("JPEG", "L"), ("JPEG", "CMYK")],
)
def test_every_common_kind_of_picture_is_taken(kind: str, mode: str) -> None:
    picture = Image.new("RGB", (50, 40)).convert(mode)
    with serving(Brightness()) as client:
        assert post(client, encoded(picture, kind)).json()["index"] <= 1


def test_a_model_that_fails_costs_its_batch_alone() -> None:
    with serving(Brightness()) as client:
        assert post(client, grey(255)).status_code == 500
        assert post(client, grey(9)).json()["index"] == 9
        assert metrics(client)['vqshield_requests_total{status="500"}'] == 1


def test_ready_means_that_the_model_is_warm_and_alive_that_it_can_be() -> None:
    model = Brightness()
    model.hold()
    with serving(model) as client:
        cold = client.get("/readyz")
        assert (cold.status_code, cold.json()) == (503, {"ready": False})
        assert client.get("/healthz").json()["alive"] is True
        model.go_on.set()
        ready(client)
        answer = client.get("/healthz").json()
        assert answer["vqshield"] == vq.__version__
        assert answer["torch"] == torch.__version__
        assert (answer["defense"], answer["backend"]) == ("none", "none")


def test_health_names_the_backend_and_keeps_the_seed_to_itself() -> None:
    with serving(vq.defend(small_cifar10(), "prd", seed=987654, backend="torch")) as client:
        answer = client.get("/healthz")
        assert answer.json()["defense"] == "PRD"
        assert answer.json()["backend"] == "torch"
        assert "987654" not in answer.text


def test_metrics_add_up() -> None:
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

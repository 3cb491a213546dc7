"""A classifier behind HTTP: 8-bit queries within a budget, no gradients, and servers that are not trusted."""

import base64
import gzip
import importlib.util
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from remote_server import Server, boundary_of, pixels_of, server, serving
from torch import Tensor, nn
from typer.testing import CliRunner

import vqshield as vq
from vqshield.classifiers import load_classifier, small_cifar10
from vqshield.classifiers.remote import MOST_BYTES, Endpoint, Remote, remote_part
from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError, NoGradientError, VqshieldError
from vqshield.ladders.settings import LadderSettings

PHOTOS = vq.data.sample(6)
IMAGES, LABELS = PHOTOS.floats(), PHOTOS.labels


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with server() as running:
        yield running


def remote(http: Server, **settings: object) -> Remote:
    return Remote(Endpoint(address=http.url, **{"classes": 10, **settings}))


class InBytes(nn.Module):
    """A classifier that sees images as they arrive over HTTP."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(images.mul(255).round() / 255)


def test_probabilities_become_logits_up_to_a_constant(http: Server) -> None:
    http.answer = serving(small_cifar10())
    moved = (IMAGES + 0.3 / 255).clamp(0, 1)  # rounded away
    found = remote(http, scores="scores")(moved)
    expected = small_cifar10()(IMAGES)
    assert torch.allclose(found, expected.log_softmax(1), atol=1e-3)
    assert found.dtype == torch.float32
    assert len(http.posts) == len(IMAGES)
    assert torch.equal(pixels_of(http.posts[3][1]), IMAGES[3:4])


def test_scores_that_are_no_probabilities_are_logits(http: Server) -> None:
    http.answer = lambda body: {"result": [{"logits": [1, -2.5, 3]}]}
    assert remote(http, scores="result.0.logits", classes=3)(IMAGES[:1]).tolist() == [[1, -2.5, 3]]


def test_a_class_and_its_probability_are_enough(http: Server) -> None:
    http.answer = lambda body: {"index": 4, "probability": 0.9}
    (logits,) = remote(http)(IMAGES[:1])
    assert logits.softmax(0)[4] == pytest.approx(0.9)
    assert logits.argmax() == 4
    http.answer = lambda body: {"class": {"id": 7}}  # decisions alone
    (logits,) = remote(http, label="class.id")(IMAGES[:1])
    assert logits.argmax() == 7
    http.answer = lambda body: {"index": 2, "probability": 0.0}  # the class counts, not its share
    assert remote(http)(IMAGES[:1])[0].argmax() == 2


def test_the_forms_of_a_request(http: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote(http)(IMAGES[:1])
    headers, body = http.posts[-1]
    assert body.startswith(f"--{boundary_of(headers)}\r\n".encode())
    assert b'name="file"; filename="image.png"' in body
    remote(http, form="body")(IMAGES[:1])
    headers, body = http.posts[-1]
    assert (headers["Content-Type"], body[:4]) == ("image/png", b"\x89PNG")
    template = tmp_path / "query.json"
    template.write_text('{"inputs": [{"b64": "{image}"}], "k": 1}')
    monkeypatch.setenv("SECRET", "open-sesame")
    remote(http, template=str(template), key="SECRET")(IMAGES[:1])
    headers, body = http.posts[-1]
    assert headers["Authorization"] == "Bearer open-sesame"
    assert headers["Accept-Encoding"] == "identity"
    sent = json.loads(body)["inputs"][0]["b64"]
    assert torch.equal(pixels_of(base64.b64decode(sent)), IMAGES[:1])


def test_the_settings_after_the_address(http: Server) -> None:
    endpoint = Endpoint.parse(f"{http.url}?v=2#calls=7,rate=0.5,scores=a.b,fixed=true,form=body")
    assert (endpoint.address, endpoint.calls, endpoint.rate) == (f"{http.url}?v=2", 7, 0.5)
    assert (endpoint.scores, endpoint.fixed, endpoint.form) == ("a.b", True, "body")
    one, again = (load_classifier(f"{http.url}#calls=7") for _ in range(2))
    assert remote_part(one) is remote_part(again)  # one budget


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://", "should be http:// or https://, a host"),
        ("http://host:port/x", "should be http"),
        ("http://me:secret@host/x", "without spaces or a password"),
        ("http://host/a b", "without spaces"),
        ("http://[::1/x", "should be http"),
        ("http://host/\u00e9", "in ASCII"),
        ("http://host/x#call=3", "has no setting 'call'.*Did you mean 'calls'"),
        ("http://host/x#calls=0", "calls=0 should be >= 1"),
        ("http://host/x#calls=many", "it should be a whole number"),
        ("http://host/x#timeout=0", "timeout=0.0 should be from 0.001 to 600"),
        ("http://host/x#rate=-1", "rate=-1.0 should be >= 0.001"),
        ("http://host/x#classes=1", "classes=1 should be >= 2"),
        ("http://host/x#key=NOT_THERE", "key=NOT_THERE should be an environment variable"),
        ("http://host/x#fixed=perhaps", "it should be true or false"),
    ],
)
def test_a_wrong_address_or_setting_is_refused_before_any_request(text: str, message: str) -> None:
    with pytest.raises((InvalidInputError, VqshieldError), match=message):
        load_classifier(text)
    result = CliRunner().invoke(app, ["evaluate", "--classifier", text])
    assert result.exit_code == 2
    assert "error: " in result.stderr


def test_a_key_that_would_break_the_headers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "a\r\nHost: other")
    with pytest.raises(InvalidInputError, match="key=BROKEN should be an environment variable") as caught:
        Endpoint(address="http://127.0.0.1/", key="BROKEN")
    assert "other" not in str(caught.value)


def test_several_connections_keep_the_order_and_the_budget(http: Server) -> None:
    http.answer = serving(small_cifar10())
    model = remote(http, scores="scores", connections=4, calls=14)
    assert torch.equal(model(IMAGES).argmax(1), small_cifar10()(IMAGES).argmax(1))
    assert torch.equal(model(IMAGES).argmax(1), small_cifar10()(IMAGES).argmax(1))
    with pytest.raises(VqshieldError, match="the budget of 14 calls"):
        model(IMAGES)
    assert len(http.posts) == 14


def test_a_template_without_a_place_for_the_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "query.json").write_text('{"a": 1}')
    with pytest.raises(InvalidInputError, match=r'no "\{image\}"'):
        Remote(Endpoint(address="http://127.0.0.1/x", template=str(tmp_path / "query.json")))


def test_every_call_counts_and_none_exceeds_the_budget(http: Server) -> None:
    model = remote(http, calls=4, retries=1)
    model(IMAGES[:2])
    http.status = 503
    with pytest.raises(InvalidInputError, match="status 503"):
        model(IMAGES[:1])
    assert (model.calls, len(http.posts)) == (4, 4)  # the repeated one, too
    with pytest.raises(VqshieldError, match=r"the budget of 4 calls .* is spent"):
        model(IMAGES[:1])
    assert len(http.posts) == 4


def test_the_first_call_reminds_of_the_owners_permission(
    http: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="vqshield")
    model = remote(http)
    assert caplog.messages == []
    model(IMAGES[:3])
    (message,) = caplog.messages
    assert http.url in message
    assert "query only what its owner has permitted" in message


def test_a_rate_spaces_the_calls(http: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    remote(http, rate=0.5)(IMAGES[:3])
    assert [round(wait) for wait in waits] == [2, 4]  # no time passes in this test
    assert remote(http).endpoint.is_local
    assert not Endpoint(address="http://example.org/x").is_local


def test_a_busy_server_is_asked_again_when_it_says(http: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        http.status, http.headers = 200, {}

    monkeypatch.setattr(time, "sleep", wait)
    http.status, http.headers = 429, {"Retry-After": "7"}
    assert remote(http)(IMAGES[:1]).argmax() == 0
    assert waits == [7.0]
    http.status, http.headers = 503, {"Retry-After": "100000"}
    assert remote(http)(IMAGES[:1]).argmax() == 0
    assert waits[1] == 30.0


def test_gradients_are_refused_before_any_request(http: Server, tmp_path: Path) -> None:
    model = load_classifier(http.url)
    with pytest.raises(NoGradientError, match="has no gradients; square, rays and noise need none"):
        model(IMAGES.clone().requires_grad_())
    calls: list[Callable[[], object]] = [
        lambda: vq.evaluate(http.url, attacks="pgd", limit=2),
        lambda: vq.evaluate(http.url, attacks=["square", "adaptive-v1"], limit=2, defense="prd"),
        lambda: vq.audit(http.url),
        lambda: vq.certify(http.url, defense="gaussian:sigma=0.1", limit=2),
        lambda: vq.leaderboard(tmp_path / "board", ["bitdepth"], classifier=http.url),
        lambda: vq.ladder(limit=2, sources=[http.url]),
        lambda: vq.harden(http.url, "prd", IMAGES, LABELS, out=tmp_path / "tuned"),
        lambda: vq.calibrate(http.url, IMAGES, defense="prd"),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError):
            call()
    assert http.posts == []


def test_evaluate_counts_on_a_server_that_may_be_random(http: Server, tmp_path: Path) -> None:
    answers = iter(range(1000))
    http.answer = lambda body: {"index": next(answers) % 2, "probability": 0.6}
    found = vq.evaluate(http.url, limit=2, samples=3, out=tmp_path / "run")
    assert len(http.posts) == 1 + 2 * 3  # one for the number of classes
    assert found.manifest.classifier.random
    other = vq.evaluate(f"{http.url}?v=2", limit=2, samples=1)
    assert found.manifest.classifier.sha256 != other.manifest.classifier.sha256
    before = len(http.posts)
    vq.evaluate(f"{http.url}#fixed=true", limit=2, samples=8)
    assert len(http.posts) == before + 1 + 2 * 2  # twice each, to make sure


def test_evaluate_says_the_same_as_in_this_process(http: Server) -> None:
    model = InBytes(small_cifar10())
    http.answer = serving(model, scores=False)
    settings = {"defense": "prd", "samples": 2, "attacks": "noise:tries=2", "seed": 3}
    found = vq.evaluate(f"{http.url}#fixed=true", limit=6, **settings)
    expected = vq.evaluate(model, IMAGES, LABELS, **settings)
    assert [row.mean for row in found.rows if row.attack == "none"] == [
        row.mean for row in expected.rows if row.attack == "none"
    ]
    assert [row.level for row in found.rows] == [row.level for row in expected.rows]


def test_a_ladder_runs_the_rungs_without_weights(http: Server, tmp_path: Path) -> None:
    http.answer = serving(small_cifar10(), scores=False)
    few = LadderSettings(calls=(100,), draws=(1,), runs=2, selection=1, transfer="pgd:steps=1")
    found = vq.ladder(
        f"{http.url}#fixed=true", settings=few, limit=1, sources=["small-cifar10-hardened"], out=tmp_path
    )
    assert [row.rung for row in found.rows] == ["natural", "transfer", "score", "decision"]
    assert {each.rung: each.reason for each in found.plan.not_measured}["white-box"] == (
        "the classifier is behind HTTP, without gradients"
    )
    assert len(http.posts) <= 1 + 2 * 100 + 4 * (2 + 2)


def test_other_processes_would_have_budgets_of_their_own(http: Server, tmp_path: Path) -> None:
    arguments = ["--classifier", http.url, "--limit", "2", "--executor", "processes", "--workers", "2"]
    result = CliRunner().invoke(app, ["evaluate", *arguments, "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "use the executor local" in result.stderr


DEEP = b"[" * 100_000
ANSWERS: dict[str, tuple[object, str]] = {
    "no JSON": (b"index: 3", "is not JSON"),
    "HTML": (b"<html><script>alert(1)</script></html>", "is not JSON"),
    "empty": (b"", "is not JSON"),
    "deep": (DEEP, "nested too deeply"),
    "digits": (b'{"index": ' + b"9" * 5000 + b"}", "is not JSON"),
    "a list": ([1, 2], "is not a class from 0 to 9"),
    "null": ({"index": None, "abstained": True}, "a vote that abstains"),
    "a name": ({"index": "cat"}, "is not a class from 0 to 9"),
    "true": ({"index": True}, "is not a class from 0 to 9"),
    "negative": ({"index": -1}, "is not a class from 0 to 9"),
    "another class": ({"index": 10}, "is not a class from 0 to 9"),
    "nan": (b'{"index": 1, "probability": NaN}', "is not a probability"),
    "more than 1": ({"index": 1, "probability": 1.1}, "is not a probability"),
    "escapes": (b'{"index": "\\u001b[31m"}', "is not a class"),
    "huge": (b'{"index": 1, "more": "' + b"x" * MOST_BYTES + b'"}', "more than 1048576 bytes"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_wrong_answer_is_an_error_that_shows_it(name: str, http: Server) -> None:
    content, message = ANSWERS[name]
    http.answer = lambda body: content
    with pytest.raises(VqshieldError, match=message) as caught:
        remote(http)(IMAGES[:1])
    assert http.url in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert len(http.posts) == 1  # a repetition would not help


@pytest.mark.parametrize(
    "scores", [b"[0.1, NaN]", b"[Infinity, 1]", b'["a", "b"]', b"[1]", b"{}", b"[1e999, 0]", b"[[1, 2]]"]
)
def test_wrong_scores_are_refused(scores: bytes, http: Server) -> None:
    http.answer = lambda body: b'{"scores": ' + scores + b"}"
    with pytest.raises(InvalidInputError, match="is not a list of finite numbers"):
        remote(http, scores="scores")(IMAGES[:1])


def test_scores_of_different_lengths_are_refused(http: Server) -> None:
    lengths = iter([3, 4])
    http.answer = lambda body: {"scores": [0.5] * next(lengths)}
    with pytest.raises(InvalidInputError, match=r"answers have \[3, 4\] scores"):
        remote(http, scores="scores")(IMAGES[:2])


def test_redirects_are_not_followed(http: Server) -> None:
    with server() as other:
        http.status, http.headers = 302, {"Location": other.url}
        with pytest.raises(InvalidInputError, match=f"redirects are not followed, here to {other.url}"):
            remote(http)(IMAGES[:1])
        assert (len(http.posts), other.posts) == (1, [])


def test_a_compressed_answer_is_refused(http: Server) -> None:
    http.answer, http.headers = lambda body: gzip.compress(b"0" * 10_000_000), {"Content-Encoding": "gzip"}
    with pytest.raises(InvalidInputError, match="its answer is compressed"):
        remote(http)(IMAGES[:1])


def headers_for_ever(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")


def silence(connection: socket.socket) -> None:
    connection.recv(1)


RAW: dict[str, tuple[Callable[[socket.socket], None], str]] = {
    "closes at once": (lambda connection: None, "no answer"),
    "no HTTP": (lambda connection: connection.sendall(b"hello\r\n\r\n"), "no answer .BadStatusLine"),
    "half a body": (
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
        "JSON|no answer",
    ),
    "endless headers": (headers_for_ever, "no answer"),
    "silence": (silence, "no answer"),
    "many headers": (
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n"),
        "no answer",
    ),
    "chunks for ever": (
        lambda connection: [
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            *(connection.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n") for _ in range(10_000)),
        ].clear(),
        "more than 1048576 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_a_server_that_does_not_speak_http_ends_in_an_error(name: str, http: Server) -> None:
    http.raw, message = RAW[name]
    with pytest.raises(VqshieldError, match=message):
        remote(http, timeout=0.4, retries=1)(IMAGES[:1])


def test_a_slow_drip_does_not_hang(http: Server) -> None:
    """Every byte arrives in time; the answer as a whole does not."""
    stopped = threading.Event()

    def slowly(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(200):
            connection.sendall(b" ")
            stopped.wait(0.05)

    http.raw = slowly
    started = time.monotonic()
    try:
        with pytest.raises(InvalidInputError, match=r"more than timeout=0.3 s"):
            remote(http, timeout=0.3, retries=0)(IMAGES[:1])
        assert time.monotonic() - started < 5
    finally:
        stopped.set()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(InvalidInputError, match=r"no answer .ConnectionRefusedError"):
        Remote(Endpoint(address=f"http://127.0.0.1:{port}/", retries=0))(IMAGES[:1])


def test_a_connection_is_kept_and_made_anew_where_the_server_closes_it(http: Server) -> None:
    model = remote(http)
    model(IMAGES[:3])
    assert model.calls == 3
    http.headers = {"Connection": "close"}
    model(IMAGES[:2])
    assert model.calls == 5


def test_the_command_says_what_happened(http: Server, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "run")]
    result = CliRunner().invoke(
        app, ["evaluate", "--classifier", f"{http.url}#calls=3", "--limit", "4", "--samples", "2", *out]
    )
    assert result.exit_code == 2
    assert "the budget of 3 calls" in result.stderr
    assert "query only what its owner has permitted" in result.stderr
    assert len(http.posts) == 3


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["none", "swrd"])
def test_query_attacks_get_as_far_as_in_this_process(defense: str) -> None:
    """Square and RayS against `vqshield serve`, at equal calls, with 8-bit images in both."""
    pytest.importorskip("uvicorn", reason="vqshield serve needs the extra serving")
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "remote_attacks.py"
    spec = importlib.util.spec_from_file_location("remote_attacks", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    photos = vq.data.sample(16)
    for row in benchmark.compare(defense, photos.floats(), photos.labels, (100,)):
        errors = row["here_standard_error"], row["remote_standard_error"]
        assert abs(row["here_mean"] - row["remote_mean"]) <= 2 * max(*errors, 0.05), row
        assert 0 < row["requests"] <= 16 * 150
        if defense == "none":  # nothing is random except the last bit of an answer
            assert abs(row["here_mean"] - row["remote_mean"]) <= 1 / 16, row


@pytest.mark.slow
def test_with_all_scores_square_gets_as_far_as_with_logits(http: Server) -> None:
    here = InBytes(small_cifar10())
    http.answer = serving(here)
    photos = vq.data.sample(16)
    images, labels = photos.floats(), photos.labels
    attack = vq.attacks.Square(ball=vq.attacks.Linf(8 / 255))
    models = here, remote(http, scores="scores", calls=16 * 110)
    right = []
    for model in models:
        (found,) = attack.trace(model, images, labels, calls=(100,)).images
        right.append(int((here(found).argmax(1) == labels).sum()))
    assert abs(right[0] - right[1]) <= 1  # logits and logarithms of float32 probabilities round differently

"""Keys, rates and the access log."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving.tools import Brightness, grey, metrics, post, ready, serving, serving_built

from vqshield.core.errors import InvalidInputError
from vqshield_deploy.serving.clients import KEYS, TokenBuckets, address_of, key_of, read_keys
from vqshield_deploy.serving.guard import LOG
from vqshield_deploy.serving.predictor import Predictor

FIRST, SECOND = "first-key-0123456789", "second-key-0123456789"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, ...]:
    monkeypatch.setenv(KEYS, f"{FIRST}\n{SECOND}\n")
    return read_keys(None)


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    before = LOG.level, LOG.propagate, LOG.disabled, LOG.handlers
    LOG.handlers, LOG.propagate, LOG.disabled = [Kept()], False, False
    LOG.setLevel(logging.INFO)
    yield lines
    LOG.setLevel(before[0])
    LOG.propagate, LOG.disabled, LOG.handlers = before[1:]


def test_keys_come_from_a_file_or_the_environment_and_only_digests_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# of the team\n\n  {FIRST}  \n{SECOND}\n")
    monkeypatch.delenv(KEYS, raising=False)
    assert read_keys(None) == ()
    from_file = read_keys(file)
    assert len(from_file) == 2
    monkeypatch.setenv(KEYS, f"{FIRST}\n{SECOND}")
    assert read_keys(None) == from_file
    assert FIRST.encode() not in b"".join(from_file)


@pytest.mark.parametrize("text", ["short", "with a space inside", "umlaut-ü-0123456789", "x" * 257])
def test_a_bad_key_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{FIRST}\n{text}\n")
    with pytest.raises(InvalidInputError, match=r"API key 2 has .* characters; a key has 16 to 256") as error:
        read_keys(file)
    assert text not in str(error.value)


def test_a_file_without_keys_does_not_open_the_server(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# nothing yet\n")
    with pytest.raises(InvalidInputError, match="has no API key"):
        read_keys(file)


@pytest.mark.parametrize(
    ("headers", "valid"),
    [
        ([("authorization", f"Bearer {FIRST}")], True),
        ([("Authorization", f"bearer   {SECOND}")], True),
        ([], False),
        ([("authorization", FIRST)], False),
        ([("authorization", f"Basic {FIRST}")], False),
        ([("authorization", f"Bearer {FIRST[:-1]}")], False),
        ([("authorization", f"Bearer {FIRST}x")], False),
        ([("authorization", f"Bearer {FIRST}, Bearer {SECOND}")], False),
        ([("authorization", "Bearer wrong"), ("authorization", f"Bearer {FIRST}")], False),
        ([("authorization", f"Bearer {FIRST}"), ("authorization", "Bearer wrong")], False),
        ([("authorization", "Bearer ")], False),
        ([("authorization", "Bearer \xff\x00")], False),
        ([("x-authorization", f"Bearer {FIRST}")], False),
    ],
)
def test_one_authorization_header_with_one_of_the_keys_is_needed(
    keys: tuple[bytes, ...], headers: list[tuple[str, str]], valid: bool
) -> None:
    name = key_of([(name.encode(), value.encode("latin1")) for name, value in headers], keys)
    assert (name is not None) == valid
    assert name is None or (re.fullmatch("key [0-9a-f]{8}", name) and FIRST not in name)


def test_classify_and_metrics_need_a_key_and_health_does_not(keys: tuple[bytes, ...]) -> None:
    with serving_built(Predictor(Brightness()), keys=keys) as client:
        ready(client)
        for path in ("/healthz", "/openapi.json"):
            assert client.get(path).status_code == 200
        for answer in (post(client, grey(3)), client.get("/metrics"), client.get("/nothing")):
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["detail"] == "give a valid API key, as in Authorization: Bearer KEY"
        client.headers["Authorization"] = f"Bearer {SECOND}"
        assert post(client, grey(3)).json()["index"] == 3
        found = metrics(client)
        assert found['vqshield_requests_total{status="401"}'] == 1
        assert found['vqshield_requests_total{status="200"}'] == 1


def test_a_bucket_fills_evenly_up_to_its_burst() -> None:
    buckets = TokenBuckets(rate=2, burst=3)
    assert [buckets.wait("a", 0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.wait("b", 0) == 0, "another client"
    assert buckets.wait("a", 0.25) == 0.25, "who is refused loses nothing"
    assert buckets.wait("a", 0.5) == 0
    assert buckets.wait("a", 0.5) == 0.5
    assert [buckets.wait("a", 1000) for _ in range(4)] == [0, 0, 0, 0.5]


def test_buckets_take_bounded_memory_and_those_in_use_stay() -> None:
    buckets = TokenBuckets(rate=1, burst=1, most=10)
    for number in range(1000):
        buckets.wait("busy", number * 1e-6)
        buckets.wait(f"client {number}", number * 1e-6)
    assert len(buckets) == 10
    assert buckets.wait("busy", 0.001) > 0.9


def test_a_subscriber_of_ipv6_is_one_client() -> None:
    assert address_of("2001:db8:1:2:3::4") == address_of("2001:db8:1:2:ffff::1") == "2001:db8:1:2::/64"
    assert address_of("2001:db8:1:3::1") == "2001:db8:1:3::/64"
    assert address_of("::ffff:10.0.0.1") == "10.0.0.1"
    assert (address_of("10.0.0.1"), address_of("testclient")) == ("10.0.0.1", "testclient")


def test_too_many_requests_of_one_client_are_refused_and_others_are_not(keys: tuple[bytes, ...]) -> None:
    with serving_built(Predictor(Brightness()), keys=keys, rate=0.001, burst=2) as client:
        ready(client)
        client.headers["Authorization"] = f"Bearer {FIRST}"
        assert [post(client, grey(3)).status_code for _ in range(3)] == [200, 200, 429]
        refused = post(client, grey(3))
        assert 900 <= int(refused.headers["retry-after"]) <= 1000
        assert "too many requests" in refused.json()["detail"]
        client.headers["Authorization"] = f"Bearer {SECOND}"
        assert post(client, grey(3)).status_code == 200
        for guess, status in enumerate((401, 401, 429)):
            client.headers["Authorization"] = f"Bearer {guess:020}"
            client.headers["X-Forwarded-For"] = f"10.0.0.{guess}"
            assert post(client, grey(3)).status_code == status
        assert client.get("/healthz").status_code == 200


def test_every_request_has_an_id_and_a_line_in_the_log_without_its_content(log: list[str]) -> None:
    model = Brightness()
    with serving(model) as client:
        ready(client)
        log.clear()
        answers = [
            post(client, grey(3)),
            post(client, b"no picture"),
            post(client, grey(255)),
            client.get("/nothing%0d%0a{\"status\": 200}/" + "x" * 1000, headers={"X-Request-ID": "mine"}),
        ]  # fmt: skip
    lines = [json.loads(line) for line in log]
    assert [line["request"] for line in lines] == [answer.headers["x-request-id"] for answer in answers]
    assert len({line["request"] for line in lines} - {"mine"}) == 4
    assert [line["outcome"] for line in lines] == ["answered", "no image", "failed", "refused"]
    assert [line["status"] for line in lines] == [answer.status_code for answer in answers]
    assert [line["method"] for line in lines] == ["POST", "POST", "POST", "GET"]
    assert {line["client"] for line in lines} == {"testclient"}
    assert lines[0]["bytes"] > len(grey(3))
    assert max(map(len, log)) < 600
    for line in log:
        assert "\n" not in line
        assert "picture" not in line
        assert "PNG" not in line

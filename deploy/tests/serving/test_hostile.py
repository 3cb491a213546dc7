"""Over 200 hostile requests: none fails the server, hangs, or learns a path or a traceback."""

import importlib
import json
import re
import signal
from pathlib import Path
from types import ModuleType

import pytest
from serving.test_server import KEPT, answer, served

from vqshield_deploy.serving.clients import KEYS

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("hostile_requests")


def test_the_requests_are_many_and_the_same_every_time(hostile: ModuleType) -> None:
    made = hostile.requests()
    assert len(made) > 220
    assert made == hostile.requests()


def test_what_is_wrong_with_a_reply_is_found(hostile: ModuleType) -> None:
    def wrong(content: bytes, hangs: bool = False) -> list[str]:
        return hostile.found_wrong([hostile.Reply("kind", int(content[9:12]), content, hangs)])

    assert wrong(b"HTTP/1.1 503 Service Unavailable\r\n\r\nbusy") == []
    assert wrong(b"HTTP/1.1 500 Internal Server Error\r\n\r\n") == ["kind: 500"]
    assert wrong(b"HTTP/1.1 200 OK\r\n\r\n", hangs=True) == ["kind: hangs"]
    for leak in (b"Traceback (most", b'File "x', b"at /home/me", b"serve.py", b"<BytesIO at 0x7f00aabbccdd>"):
        assert wrong(b"HTTP/1.1 400 Bad Request\r\n\r\n" + leak)


@pytest.mark.slow
def test_hostile_requests_are_refused_and_the_server_lives_on(
    hostile: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, hostile.KEY)
    honest = KEPT.replace(b"Host: here", b"Host: here\r\nAuthorization: Bearer " + hostile.KEY.encode())
    with served("--receive-s", "2", "--max-bytes", "200000") as server:
        made = hostile.requests()
        replies = hostile.sent_to(server.port, made)
        assert len(replies) == len(made)
        assert hostile.found_wrong(replies) == []
        for reply in replies:
            assert reply.status in (0, 100, 200, 400, 401, 404, 405, 408, 413, 415, 422), reply
            if reply.kind.startswith("wrong key"):
                assert reply.status == 401
            if reply.kind == "slow upload":
                assert reply.status == 408
        with server.connect() as connection:
            connection.sendall(honest)
            assert b" 200 OK" in answer(connection)
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
        assert peak
        assert int(peak[1]) < 1 << 20, "1 GiB: no picture is unpacked beyond the limit"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 0
        lines = [json.loads(line) for line in server.out.read_text().splitlines()]
        assert len(lines) > 200
        assert {line["status"] for line in lines}.isdisjoint({500})
        assert "Traceback" not in server.err.read_text()

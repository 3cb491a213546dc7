"""`vqshield serve`: what cannot be served ends in one line and a non-zero exit, before the port opens."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("vqshield_deploy.serving", reason="needs the extra serving", exc_type=ImportError)

from vqshield.cli.application import app
from vqshield_deploy.serving import server
from vqshield_deploy.serving.deployment import Deployment
from vqshield_deploy.serving.limits import Limits


def run(*options: str) -> Any:
    return CliRunner().invoke(app, ["serve", *options])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What uvicorn is given; it is not run."""
    seen: dict[str, Any] = {}

    class Server:
        def __init__(self, config: Any) -> None:
            seen["config"] = config

        def run(self, sockets: list[socket.socket]) -> None:
            seen["port"] = sockets[0].getsockname()[1]

    monkeypatch.setattr(server.uvicorn, "Server", Server)
    monkeypatch.delenv("VQSHIELD_API_KEYS", raising=False)
    return seen


def test_the_command_serves_what_was_typed(taken: dict[str, Any], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-a-client-1\n")
    done = run(
        "--classifier", "small-cifar10",
        "--defense", "prd:size=2", "--votes", "30", "--selection", "7", "--seed", "5",
        "--port", "0", "--rate", "2", "--burst", "4", "--api-keys", str(keys), "--max-bytes", "100000",
        "--proxy", "10.0.0.1", "--threads", "1",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "serving small-cifar10 behind" in done.stderr
    assert f"30 votes on http://127.0.0.1:{taken['port']}" in done.stderr
    assert "WARNING: seed=5" in done.stderr
    config = taken["config"]
    predictor, limits, threads, keys, log = config.app.args
    assert (config.proxy_headers, config.forwarded_allow_ips) == (True, "10.0.0.1")
    assert limits == Limits(rate=2, burst=4, max_bytes=100_000)
    assert (threads, len(keys), log) == (1, 1, True)
    voting = predictor.model
    assert (voting.samples, voting.selection, voting.seed) == (30, 7, 5)
    assert type(predictor.defense).__name__ == "PRD"


def test_headers_of_proxies_are_not_believed_unless_one_is_named(taken: dict[str, Any]) -> None:
    assert run("--port", "0").exit_code == 0
    assert taken["config"].proxy_headers is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--classifier", "nothing.safetensors"), "nothing.safetensors"),
        (("--defense", "swdr"), "Did you mean 'swrd'"),
        (("--votes", "0"), "votes=0 should be >= 1"),
        (("--votes", "20", "--defense", "none"), "votes=20 needs a defense"),
        (("--alpha", "0.01"), "--alpha given with --votes 1, with no effect"),
        (("--mean", "0.5"), "mean and std belong together"),
        (("--mean", "a,b", "--std", "1,1"), "mean"),
        (("--workers", "0"), "workers=0 should be >= 1"),
        (("--threads", "0"), "threads=0 should be >= 1"),
        (("--port", "70000"), "port=70000 should be from 0 to 65535"),
        (("--host", "no.such.host.invalid"), "host=no.such.host.invalid, port=8000 cannot be opened"),
        (("--max-bytes", "0"), "max_bytes=0 should be >= 1"),
        (("--rate", "-1"), "rate=-1.0 should be >= 0"),
        (("--burst", "3"), "--burst given without --rate"),
        (("--receive-s", "nan"), "receive_s=nan"),
        (("--api-keys", "no-such-file"), "no-such-file"),
        (("--class-names", "no-such-file"), "no-such-file"),
    ],
)
def test_what_cannot_be_served_ends_in_one_line(
    taken: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    done = run(*options)
    assert done.exit_code in (1, 2), done.output
    assert message in done.stderr
    assert "Traceback" not in done.output
    assert taken == {}


def test_a_port_that_is_taken_is_named(taken: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = run("--port", str(port))
    assert done.exit_code == 2
    assert f"port={port} cannot be opened (Address already in use)" in done.stderr


def test_a_missing_library_is_named_with_its_extra() -> None:
    code = "import sys; sys.modules['prometheus_client'] = None; from vqshield.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "serve"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: prometheus-client is not installed")
    assert 'pip install "./deploy[serving]"' in done.stderr


def test_a_deployment_says_what_it_is() -> None:
    assert str(Deployment(classifier="small-cifar10", defense="none")) == "small-cifar10 behind no defense"

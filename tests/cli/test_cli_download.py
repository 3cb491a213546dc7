"""`vqshield download`: a thin shell over one call, with a line that says where the files are."""

import functools
import hashlib
import http.server
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vqshield.cli.application import app
from vqshield.data.downloads import HOMES, Home

CONTENT = b"labels" * 1000


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A data set of one file at a local server; its folder there."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "labels").write_bytes(CONTENT)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(served))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/labels"
    one = Home(path=Path("MNIST", "raw", "labels"), urls=(url,), sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(HOMES, "mnist", (one,))
    yield served
    server.shutdown()
    server.server_close()


def download(*arguments: str):
    return CliRunner().invoke(app, ["download", *arguments])


def test_a_data_set_arrives_and_is_not_fetched_twice(home, tmp_path):
    result = download("mnist", "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 0, result.output
    assert result.stdout == f"mnist is in {tmp_path / 'data'}\n"
    assert (tmp_path / "data/MNIST/raw/labels").read_bytes() == CONTENT
    (home / "labels").unlink()
    again = download("mnist", "--data-dir", str(tmp_path / "data"))
    assert again.stdout == f"mnist is in {tmp_path / 'data'}, and was there already\n"


def test_without_a_folder_it_goes_to_the_cache(home, tmp_path, monkeypatch):
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path / "cache"))
    assert download("mnist").exit_code == 0
    assert (tmp_path / "cache/MNIST/raw/labels").is_file()


def test_a_corrupted_file_is_one_line_and_nothing_stays(home, tmp_path):
    (home / "labels").write_bytes(CONTENT[:-1] + b"?")
    result = download("mnist", "--data-dir", str(tmp_path / "data"))
    assert result.exit_code == 2
    assert "error: labels could not be fetched" in result.stderr
    assert "Traceback" not in result.output
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


def test_an_unknown_name_is_answered_with_the_known_ones(tmp_path):
    result = download("imagenet", "--data-dir", str(tmp_path))
    assert result.exit_code == 2
    assert "cifar10, cifar100, mnist" in result.stderr

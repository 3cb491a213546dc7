"""`vqshield app` without its page: what it says where Gradio is missing, and how it listens."""

import sys

import pytest
from typer.testing import CliRunner

from vqshield.cli.application import app


def test_without_gradio_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)  # an import of it now fails as if it were not there
    found = CliRunner().invoke(app, ["app", "--no-browser"])
    assert found.exit_code == 2
    assert 'pip install "./app" -c constraints.txt' in found.output


def test_it_listens_on_this_machine_alone_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("vqshield_app.page.serve", lambda **options: asked.append(options))
    CliRunner().invoke(app, ["app"])
    CliRunner().invoke(app, ["app", "--host", "0.0.0.0", "--port", "8080", "--no-browser"])
    assert asked == [
        {"host": "127.0.0.1", "port": 7860, "browser": True},
        {"host": "0.0.0.0", "port": 8080, "browser": False},
    ]

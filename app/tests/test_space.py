"""The Space is the same page: its few lines start it, and its card names files and extras that exist."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_space_serves_the_page_where_spaces_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("vqshield_app.page.serve", lambda **options: asked.append(options))
    runpy.run_path(str(ROOT / "app" / "space" / "app.py"))
    assert asked == [{"host": "0.0.0.0", "port": 7860}]


def test_the_card_and_the_requirements_fit_the_package() -> None:
    card = (ROOT / "app" / "space" / "README.md").read_text().split("---")[1]
    assert "sdk: gradio" in card
    app_file = re.search(r"app_file: (\S+)", card)
    assert app_file is not None
    assert (ROOT / "app" / "space" / app_file[1]).is_file()
    project = tomllib.loads((ROOT / "app" / "pyproject.toml").read_text())["project"]
    assert project["name"] in (ROOT / "app" / "space" / "requirements.txt").read_text().splitlines()
    (gradio,) = [each for each in project["dependencies"] if each.startswith("gradio")]
    major = re.search(r"sdk_version: (\d+)\.", card)
    assert major is not None
    assert f">={major[1]}," in gradio

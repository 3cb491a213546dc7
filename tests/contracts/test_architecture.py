"""CONTRIBUTING.md draws the project as it is: its folders, their line budgets, and the files on two walks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "vqshield"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TREE = TEXT.partition("<!-- begin tree -->")[2].partition("<!-- end tree -->")[0]
BUDGETS = {name: int(lines) for name, lines in re.findall(r"^  (\S+?)/? +(\d+)", TREE, re.MULTILINE)}
TOTAL = 30_150
STEPS = 10
"""A walk through the code has fewer."""


def lines_of(part: Path) -> int:
    files = [part] if part.is_file() else part.rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def test_the_tree_names_every_part_of_the_package() -> None:
    hidden = ("__init__.py", "__main__.py")
    parts = {
        each.name for each in PACKAGE.iterdir()
        if (each.is_dir() and any(each.rglob("*.py"))) or (each.suffix == ".py" and each.name not in hidden)
    }  # fmt: skip
    assert set(BUDGETS) == parts


@pytest.mark.parametrize("part", BUDGETS)
def test_a_part_keeps_its_budget(part: str) -> None:
    lines = lines_of(PACKAGE / part)
    assert lines <= BUDGETS[part], f"{part} has {lines} lines; shorten it, or say why in CONTRIBUTING.md"


def test_the_package_keeps_its_budget() -> None:
    assert lines_of(PACKAGE) <= TOTAL


def section(title: str) -> str:
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("title", ["The way of an image", "The way of an experiment"])
def test_a_walk_is_short_and_its_files_exist(title: str) -> None:
    steps = re.findall(r"^\d+\. .+", section(title), re.MULTILINE)
    files = re.findall(r"`([\w/]+\.(?:py|toml))`", section(title))
    assert 4 <= len(steps) < STEPS
    assert len(files) >= len(steps)
    missing = [file for file in files if "/" in file and not (ROOT / file).is_file()]
    assert missing == []


def test_every_file_that_the_guide_names_exists() -> None:
    named = re.findall(r"`((?:src|paper|tests|docs|app|native|tools|benchmarks)/[\w./-]*)`", TEXT)
    assert len(named) > 20
    assert [each for each in named if "mine" not in each and not (ROOT / each).exists()] == []

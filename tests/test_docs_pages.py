"""Pages keep their word budgets, and everything that they print as code runs."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from vqshield.data import sample

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUDGETS = {
    "install": 300,
    # how-to
    "pretrained": 800, "choose-a-defense": 700, "your-data": 500, "your-defense": 800, "certify": 700,
    "failed-audit": 900, "scale-out": 500, "export-and-serve": 800, "reproduce": 500, "kmeans": 300,
    "hardening": 500, "app": 250, "gate": 500, "remote": 400,
    # reference
    "data-formats": 400, "glossary": 450, "releasing": 400, "index": 300,
    # explanation
    "quantizers": 1200, "threat-models": 800, "adaptive-attacks": 1200, "certificates": 3000,
    # results: the tables are generated
    "results": 400, "threats": 200, "ladder": 200, "leaderboard": 300, "attacks": 350,
    "results-certificates": 350, "reproduction": 1100, "speed": 300, "speed-tables": 550, "serving": 200,
    "integrations": 350,
}  # fmt: skip
"""Hand-written words of each page of docs/."""
README_WORDS = 900
ALL_WORDS = 17_400
GENERATED = re.compile(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", re.DOTALL)
FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
OPTIONAL = ("timm", "torchvision", "transformers")
"""Libraries that a block may import and that a test environment may lack."""


def words(page: Path) -> int:
    return len(GENERATED.sub("", page.read_text()).split())


def test_every_page_has_a_budget() -> None:
    assert sorted(BUDGETS) == sorted(page.stem for page in DOCS.glob("*.md"))


@pytest.mark.parametrize("name", BUDGETS)
def test_a_page_keeps_its_budget(name: str) -> None:
    assert words(DOCS / f"{name}.md") <= BUDGETS[name]


def test_the_readme_and_all_pages_together_keep_their_budget() -> None:
    assert words(ROOT / "README.md") <= README_WORDS
    assert sum(words(page) for page in DOCS.glob("*.md")) <= ALL_WORDS


def test_the_readme_says_the_essential_first() -> None:
    """Name, picture, what it does, the warning and the installation come before anything else."""
    text = (ROOT / "README.md").read_text()
    order = (
        "# vqshield", "![", "**Defend**", "**Attack**", "**Verify**", "Does not stop an attacker",
        "## Install", "## Quickstart", "make demo", "## Results",
    )  # fmt: skip
    places = [text.index(each) for each in order]
    assert places == sorted(places)
    assert len(text[: places[6]].split()) < 160


def blocks(page: Path) -> list[tuple[str, str]]:
    return [
        (kind, text) for kind, text in FENCE.findall(page.read_text()) if kind in ("python", "sh", "toml")
    ]


RUN = [page for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if blocks(page)]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run a page in, with image files by class where the page needs them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in {"mine"} & (set(sys.modules) - before):
        del sys.modules[name]


def write_photos(folder: Path) -> None:
    photos = sample(60)
    for number, (image, label) in enumerate(zip(photos.images, photos.labels.tolist(), strict=True)):
        place = folder / "test" / photos.classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number}.png")


def missing(text: str) -> str | None:
    """An optional library that the block imports and that does not work here."""
    for name in OPTIONAL:
        if re.search(rf"^(import|from) {name}\b", text, re.MULTILINE):
            try:
                __import__(name)
            except (ImportError, RuntimeError):
                return name
    return None


TASKS = {
    "protect a pretrained model": "pretrained",
    "choose a defense": "choose-a-defense",
    "use my own data": "your-data",
    "evaluate my own defense": "your-defense",
    "get a certificate and deploy its vote": "certify",
    "understand a failed audit": "failed-audit",
    "use several processes or machines": "scale-out",
    "export and serve a model": "export-and-serve",
    "fail a build that is worse": "gate",
    "reproduce the paper": "reproduce",
}
"""What users come for, and the page that answers it."""


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_a_click_away_and_short(task: str) -> None:
    page = DOCS / f"{TASKS[task]}.md"
    assert f"](docs/{page.name})" in (ROOT / "README.md").read_text(), "one click from the README"
    assert words(page) <= 900


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_what_a_page_prints_as_code_runs(page: Path, workplace: Path) -> None:
    if page.stem == "your-data":
        write_photos(workplace / "photos")
    names: dict[str, object] = {}
    for kind, text in blocks(page):
        if kind == "toml":
            (workplace / text.split()[1]).write_text(text)  # its first line is "# NAME.toml"
            continue
        if kind == "python":
            if missing(text) is None:
                file = re.match(r"# (\w+\.py)\n", text)
                if file is not None:
                    (workplace / file[1]).write_text(text)
                exec(compile(text, f"{page.name}, {text.splitlines()[0]}", "exec"), names)
            continue
        for line in text.replace("\\\n", " ").strip().splitlines():
            command = shlex.split(line)
            assert command[0] == "vqshield", line
            done = subprocess.run(
                [sys.executable, "-m", *command], cwd=workplace, capture_output=True, text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

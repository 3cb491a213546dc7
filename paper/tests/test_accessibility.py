"""Every kind of page through axe-core: no serious violation, in light and dark colours, on desks and phones.

The pages show the committed results. Those of the documentation site are the ones that `make docs` built.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import recorded
from accessibility import axe_core, violations
from app_server import running_app
from browser import NAMES, Browser, browser, find_browser
from vqshield.auditing.page import render_audit
from vqshield.auditing.results import read_audit
from vqshield.data import sample
from vqshield.demo.page import render_demo
from vqshield.demo.study import DemoSummary
from vqshield.evaluation.gallery import Gallery
from vqshield.evaluation.page import render_evaluation
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import EvaluationSummary
from vqshield.images.pictures import GalleryPicture, GalleryRow, png, png_uri
from vqshield.ladders.page import render_ladder
from vqshield.ladders.study import LadderSummary
from vqshield.leaderboards.page import render_board
from vqshield.leaderboards.study import BoardSummary
from vqshield_paper.reports import write_index, write_report
from vqshield_paper.reports.index import read_summary

pytestmark = pytest.mark.slow

SITE = recorded.ROOT / "build" / "docs" / "html"
REPRODUCED = recorded.RESULTS / "reproduction"
BOARD = "leaderboard-cifar10-resnet18"
LADDER = "ladder-small-cifar10-hardened"
WIDTHS = {"light": 1280, "dark": 390}


def pictures() -> tuple[GalleryRow, ...]:
    image = png_uri(png(sample(1).floats()[0]))
    shown = tuple(
        GalleryPicture(caption="clean", image=image, verdict=verdict, correct=verdict == "cat")
        for verdict in ("cat", "dog")
    )
    return (GalleryRow(label="cat", pictures=shown),)


def evaluation() -> str:
    read = Evaluation.read(recorded.RESULTS / BOARD / "rows" / "swrd" / "ladder" / "model" / "evaluation")
    gallery = Gallery(defense="swrd", attack="pgd", classes=("cat",), rows=pictures())
    return render_evaluation(EvaluationSummary.of(read), read, gallery)


RENDERED: dict[str, Callable[[], str]] = {
    "demo": lambda: render_demo(recorded.read(DemoSummary, "demo.json"), pictures()),
    "evaluation": evaluation,
    "ladder": lambda: render_ladder(recorded.read(LadderSummary, f"{LADDER}/summary.json")),
    "leaderboard": lambda: render_board(BoardSummary.read(recorded.RESULTS / BOARD)),
    "row": lambda: (recorded.RESULTS / BOARD / "rows" / "swrd" / "row.html").read_text(),
    "audit": lambda: render_audit(
        read_audit(recorded.RESULTS / BOARD / "rows" / "swrd" / "audit" / "audit.json")
    ),
}
BUILT = (
    "index", "threats", "attacks", "leaderboard", f"{BOARD}/leaderboard",
    "generated/tutorials/2_attack_and_audit_it", "generated/api/evaluate",
)  # fmt: skip


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    if axe_core() is None:
        pytest.skip("no axe-core: npm is not installed, or has no registry")
    with browser(path) as found:
        yield found


def check(window: Browser, place: Path | str, ready: str = "document.readyState == 'complete'") -> None:
    for colours, width in WIDTHS.items():
        page = window.open(place, colours=colours, width=width)
        page.until(ready)
        wrong = violations(page)
        assert not wrong, "\n".join([colours, *wrong])
        page.tab.close()


@pytest.mark.parametrize("kind", RENDERED)
def test_a_rendered_page_is_accessible(window: Browser, tmp_path: Path, kind: str) -> None:
    (tmp_path / "page.html").write_text(RENDERED[kind]())
    check(window, tmp_path / "page.html")


@pytest.mark.parametrize("id", ["T2", "F4", "F1"])
def test_a_reproduction_page_is_accessible(window: Browser, tmp_path: Path, id: str) -> None:
    check(window, write_report(read_summary(REPRODUCED / id / "summary.json"), tmp_path)[0])


def test_the_index_of_the_reproduction_is_accessible(window: Browser, tmp_path: Path) -> None:
    for path in REPRODUCED.glob("*/summary.json"):
        (tmp_path / path.parent.name).mkdir()
        (tmp_path / path.parent.name / path.name).write_bytes(path.read_bytes())
    write_report(read_summary(REPRODUCED / "T2" / "summary.json"), tmp_path / "T2")
    check(window, write_index(tmp_path))


@pytest.mark.parametrize("name", BUILT)
def test_a_page_of_the_site_is_accessible(window: Browser, name: str) -> None:
    if not (SITE / f"{name}.html").is_file():
        pytest.skip("the site is not built: make docs")
    check(window, SITE / f"{name}.html")


@pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="gradio is not installed")
def test_the_app_is_accessible(window: Browser) -> None:
    with running_app() as address:
        check(window, address, "document.querySelector('#answers .vq-bars')")


def test_what_is_wrong_with_a_page_is_found(window: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<!doctype html><html lang=en><title>page</title><main><h1>A page</h1>"
        "<p style='color:#aaa;background:#fff'>pale</p><button></button></main>"
    )
    found = violations(window.open(tmp_path / "page.html"))
    assert [each.split()[0] for each in found] == ["button-name", "color-contrast"]

"""The page of an evaluation: plots, pictures, numbers, nothing from outside, nothing hostile let through."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import vqshield as vq
from browser import NAMES, Browser, browser, find_browser
from pages import Page
from vqshield.cli.application import app
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.evaluation.gallery import Gallery
from vqshield.evaluation.page import headline, render_evaluation
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import EvaluationSummary, per_class
from vqshield.images.pictures import GalleryPicture, GalleryRow
from vqshield.runs.study import Recorded

HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>$'
ARGUMENTS = [
    "--limit", "20", "--samples", "2", "--batch", "6", "--curve", "2", "--pictures", "3",
    "--defense", "prd:codes=4", "--attack", "pgd:steps=2,surrogate=none",
    "--attack", "pgd:steps=2,surrogate=soft",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "out"
    result = CliRunner().invoke(app, ["evaluate", *ARGUMENTS, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "report.html" in " ".join(result.output.split())
    return out


@pytest.fixture(scope="module")
def recorded(finished: Path) -> Recorded:
    return Evaluation.read(finished)


def test_the_headline_has_the_clean_and_the_lowest_accuracy(recorded: Recorded) -> None:
    summary = EvaluationSummary.of(recorded)
    clean, lowest = (f"{100 * summary.row('prd:codes=4', name).mean:.1f} %" for name in ("none", "adaptive"))
    assert headline(summary) == f"pRD: {clean} clean, {lowest} under the strongest attack"
    unaware = tuple(each for each in recorded.manifest.attacks if "none" in each.name)
    weak = replace(recorded, manifest=replace(recorded.manifest, attacks=unaware))
    assert headline(EvaluationSummary.of(weak)).endswith("under attacks that ignore the defense")
    assert headline(EvaluationSummary.of(replace(recorded, records=[]))) == summary.title


def test_classes_have_the_accuracy_of_their_images(recorded: Recorded) -> None:
    summary, classes = EvaluationSummary.of(recorded), per_class(recorded, "prd:codes=4")
    assert sum(count for count, _ in classes.values()) == 20
    for number, name in enumerate(("none", "adaptive")):
        mean = sum(count * held[number] for count, held in classes.values()) / 20
        assert mean == pytest.approx(summary.row("prd:codes=4", name).mean)


def test_the_gallery_shows_images_of_different_classes_before_and_after_the_attack(finished: Path) -> None:
    gallery = Gallery.read(finished)
    assert gallery is not None
    assert len({row.label for row in gallery.rows}) == 3
    assert gallery.defense == "prd:codes=4"
    assert gallery.attack in {"pgd:steps=2,surrogate=none", "pgd:steps=2,surrogate=soft"}
    for row in gallery.rows:
        captions = [picture.caption for picture in row.pictures]
        assert captions == ["clean", "attacked", "difference ×16", "attacked, then pRD"]
        assert len({picture.image for picture in row.pictures}) == 4
        for picture in row.pictures:
            name, _, share = (picture.verdict or "").partition(", ")
            assert picture.verdict is None or (name in gallery.classes and share.endswith("%"))
            assert picture.correct is (None if picture.verdict is None else name == row.label)


def test_other_budgets_are_measured_on_the_first_images_up_to_twice_eps(finished: Path) -> None:
    curve = json.loads((finished / "summary.json").read_text())["curve"]
    assert [row["eps"] for row in curve] == pytest.approx([0, 8 / 255, 16 / 255])
    assert [row["attack"] == "none" for row in curve] == [True, False, False]
    assert {row["n"] for row in curve} == {20}


def test_rendered_again_the_page_is_the_same(finished: Path) -> None:
    page = (finished / "report.html").read_bytes()
    assert CliRunner().invoke(app, ["evaluate", "--render-only", "--out", str(finished)]).exit_code == 0
    assert (finished / "report.html").read_bytes() == page


def test_a_summary_without_other_budgets_is_as_it_was_and_pictures_need_a_folder(recorded: Recorded) -> None:
    assert EvaluationSummary.of(recorded).with_curve([]).curve is None
    with pytest.raises(InvalidInputError, match="pictures=2 are given without a folder"):
        vq.evaluate(attacks="pgd:steps=1", limit=1, pictures=2)


def test_the_page_holds_the_numbers_and_nothing_from_elsewhere(finished: Path) -> None:
    page = Page((finished / "report.html").read_text())
    text = " ".join(" ".join(page.text).split())
    for shown in ("under the strongest attack", "What the classifier sees", "Accuracy against the budget",
                  "Class by class", "All numbers", "pgd:steps=2,surrogate=soft", "eps 8/255"):  # fmt: skip
        assert shown in text
    assert page.all("script") == []
    assert all(each["src"].startswith("data:image/") and each["alt"] for each in page.all("img"))


def test_hostile_names_stay_text(recorded: Recorded) -> None:
    manifest = recorded.manifest
    foreign = replace(
        manifest,
        data=replace(manifest.data, name=HOSTILE),
        classifier=replace(manifest.classifier, name=HOSTILE),
        machine={HOSTILE: HOSTILE},
    )
    hostile = replace(recorded, manifest=foreign)
    picture = GalleryPicture(caption=HOSTILE, image="data:,", verdict=HOSTILE, correct=False)
    gallery = Gallery(
        defense="prd:codes=4", attack=HOSTILE, classes=(HOSTILE,) * 10,
        rows=(GalleryRow(label=HOSTILE, pictures=(picture,) * 4),),
    )  # fmt: skip
    page = Page(render_evaluation(EvaluationSummary.of(hostile), hostile, gallery))
    assert page.all("script") == []
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert all(each["src"].startswith("data:") for each in page.all("img"))
    assert HOSTILE in "".join(page.text)


def test_a_gallery_with_addresses_of_other_hosts_is_refused(finished: Path, tmp_path: Path) -> None:
    text = (
        (finished / "gallery.json").read_text().replace("data:image/png;base64,", "http://evil.example/", 1)
    )
    (tmp_path / "gallery.json").write_text(text)
    with pytest.raises(FileFormatError, match="expected a data URI"):
        Gallery.read(tmp_path)


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with browser(path) as found:
        yield found


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_errors_and_without_a_scroll_bar(
    window: Browser, finished: Path, width: int, colours: str
) -> None:
    page = window.open(finished / "report.html", width=width, colours=colours)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("[...document.images].every(each => each.complete && each.naturalWidth > 0)")
    assert page.complaints == []
    assert all(address.startswith(("file:", "data:")) for address in page.requests)

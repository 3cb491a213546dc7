"""The page over all experiments: what there is, how far it got, what was found, in the paper's order."""

import json
import re
from html import unescape

import pytest
from summaries import HOSTILE, PIXEL, part, summary

from pages import Page
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.serialization import to_plain
from vqshield_paper.reports import write_index, write_report
from vqshield_paper.reports.comparison import RULE
from vqshield_paper.reproduction.model import GalleryPicture, GalleryRow


def index(tmp_path, **found):
    """The page over these summaries, each in a folder of its name, with a report."""
    for name, each in found.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(to_plain(each)))
        (tmp_path / name / "report.html").touch()
    return write_index(tmp_path)


def lines_of(path):
    body = path.read_text().split('<ul class="results">')[1]
    return [
        " ".join(unescape(re.sub(r"<[^>]+>", " ", line)).split())
        for line in body.split("</main>")[0].split("<li>\n<div")[1:]
    ]


def test_every_experiment_has_a_verdict_and_a_headline_in_the_papers_order(tmp_path):
    undone = part(status="not run", why="no data", title="ImageNet", name="imagenet", rows=())
    path = index(
        tmp_path,
        F7=summary(part(rows=()), id="F7", title="Certified"),
        T4=summary(undone, id="T4", title="ImageNet under attack", complete=False),
        T3=summary(part(), undone, id="T3", title="Both", complete=False),
        T2=summary(title="CIFAR-10 under attack"),
    )
    assert path == tmp_path / "index.html"
    first, second, third, fourth = (line.partition("> ")[2] for line in lines_of(path))
    assert first.startswith(
        "T2: CIFAR-10 under attack agrees CIFAR-10, ResNet18: 1.7 points from the paper on average "
        "(4 values) On the same 10000 images"
    )
    assert first.endswith("1.5 min")
    assert second.startswith("T3: Both agrees")
    assert "ImageNet: not run" in second
    assert third.startswith("T4: ImageNet under attack not compared ImageNet: not run")
    assert fourth == "F7: Certified not compared 1.5 min"
    text = " ".join("".join(Page(path.read_text()).text).split())
    assert "agree: 2, not compared: 2." in text
    assert RULE in text
    links = [link["href"] for link in Page(path.read_text()).all("a")]
    assert links == [f"{id}/report.html" for id in ("T2", "T3", "T4", "F7")]


def test_a_picture_stands_for_its_experiment(tmp_path):
    plots = summary()
    write_report(plots, tmp_path / "T2")
    shown = GalleryRow(
        label="cat", pictures=(GalleryPicture(caption="clean", image=PIXEL, verdict="dog", correct=False),)
    )
    images = Page(index(tmp_path, F1=summary(part(rows=(), gallery=(shown,)), id="F1")).read_text()).all(
        "img"
    )
    assert [each["alt"] for each in images] == ["cat, clean: classified as dog"]
    (tmp_path / "T2" / "summary.json").write_text(json.dumps(to_plain(plots)))
    plot, picture = Page(write_index(tmp_path).read_text()).all("img")
    assert plot["alt"].startswith("CIFAR-10, ResNet18: a dot per value")
    assert plot["src"].startswith("data:image/png;base64,")
    assert picture["src"] == PIXEL


def test_without_a_report_there_is_no_link(tmp_path):
    index(tmp_path, T2=summary())
    (tmp_path / "T2" / "report.html").unlink()
    assert not Page(write_index(tmp_path).read_text()).all("a")


def test_hostile_text_stays_text(tmp_path):
    page = Page(index(tmp_path, T2=summary(part(title=HOSTILE), id=HOSTILE, title=HOSTILE)).read_text())
    assert not page.all("script")
    assert not page.all("img")
    assert f"{HOSTILE}: {HOSTILE}" in page.text


@pytest.mark.parametrize(
    ("text", "named"), [("{", "is not JSON"), ("{}", "has no 'id'"), ("[]", "should be a table")]
)
def test_a_broken_summary_is_named(tmp_path, text, named):
    index(tmp_path, T2=summary())
    (tmp_path / "T2" / "summary.json").write_text(text)
    with pytest.raises(FileFormatError, match=rf"summary.json.*{named}"):
        write_index(tmp_path)


def test_a_folder_without_experiments_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"no summary\.json in any folder of"):
        write_index(tmp_path)

"""The demo page: right figures in the right cells, nothing from outside, nothing hostile let through."""

import sys

import numpy as np
import pytest
from pages import Page

from vqshield.errors import InvalidInputError, MissingExtraError
from vqshield.reports import render_demo

HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>'


def row(defense, threat, robust, **other):
    fixed = {"settings": {"codes": 25}, "attack": "PGD-20", "natural": 0.8, "std": 0.012, "n": 100}
    return {"defense": defense, "threat": threat, "robust": robust, **fixed, **other}


def summary(**other):
    rows = [
        row("undefended", "none", 0.8, std=None, settings={}),
        row("undefended", "ignorant", 0.0, std=None, settings={}),
        row("swrd", "none", 0.8),
        row("swrd", "ignorant", 0.66),
        row("swrd", "eot", 0.045, attack="PGD-20, EOT-5"),
    ]
    fixed = {
        "title": "A title",
        "rows": rows,
        "sentences": ["First sentence.", "Second sentence."],
        "machine": {"cores": 2},
        "seconds": 101.4,
        "seeds": [1, 2],
        "versions": {"torch": "2.13.0"},
        "epsilon": 8 / 255,
    }
    return {**fixed, **other}


def gallery(label="cat", caption="clean", verdict="dog"):
    image = np.arange(32 * 32 * 3, dtype=np.uint32).astype(np.uint8).reshape(32, 32, 3)
    pictures = [
        {"caption": caption, "image": image, "verdict": verdict, "correct": False},
        {"caption": "attacked", "image": image, "verdict": "cat", "correct": True},
    ]
    return [{"label": label, "pictures": pictures}]


def test_nothing_is_asked_for_from_outside():
    page = Page(render_demo(summary(), gallery()))
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            assert attributes.get(name, "data:").startswith("data:")
    styles = "".join(page.styles) + "".join(attributes.get("style", "") for _, attributes in page.tags)
    assert "url(" not in styles
    assert "@import" not in styles
    assert not page.all("script")
    policies = [each["content"] for each in page.all("meta") if each.get("http-equiv")]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]


def test_figures_stand_in_the_pivoted_table():
    source = render_demo(summary(), gallery())
    table = source[source.index("<tbody") : source.index("</tbody>")]
    undefended, swrd = table.split("<tr")[1:]
    assert "80.0" in undefended
    assert "not run" in undefended
    figures = ("80.0", "66.0", "4.5", "± 1.2", "N = 100", "codes=25")
    assert all(figure in swrd.replace("&nbsp;", " ") for figure in figures)
    assert swrd.count("collapsed") == 1
    assert "width:66.0%" in swrd


def test_the_words_a_reader_needs_are_there():
    text = " ".join(Page(render_demo(summary(), gallery())).text)
    for words in ("A title", "First sentence.", "Second sentence.", "8/255", "101 s", "2.13.0", "1, 2"):
        assert words in text


def test_right_and_wrong_are_told_by_more_than_colour():
    page = Page(render_demo(summary(), gallery()))
    text = " ".join(page.text)
    assert "✗ dog" in text
    assert "✓ cat" in text
    assert [image["alt"] for image in page.all("img")] == [
        "cat, clean: classified as dog, wrong",
        "cat, attacked: classified as cat, correct",
    ]


def test_the_page_reads_in_the_dark_and_on_a_phone():
    page = Page(render_demo(summary(), gallery()))
    styles = "".join(page.styles)
    assert "prefers-color-scheme: dark" in styles
    assert "image-rendering: pixelated" in styles
    assert any(each.get("name") == "viewport" for each in page.all("meta"))


def test_hostile_names_stay_text():
    rows = [row(HOSTILE, "ignorant", 0.5, settings=HOSTILE, attack=HOSTILE)]
    everywhere = summary(
        title=HOSTILE, rows=rows, sentences=[HOSTILE], machine={HOSTILE: HOSTILE}, seeds=HOSTILE
    )
    page = Page(render_demo(everywhere, gallery(HOSTILE, HOSTILE, HOSTILE)))
    assert not page.all("script")
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.all("img")[0]["alt"].startswith(HOSTILE)


def test_a_page_without_extras_is_possible():
    page = Page(render_demo({"rows": summary()["rows"]}, []))
    assert not page.all("img")
    assert not page.all("details")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"threat": "psychic"}, "psychic"),
        ({"robust": 66.0}, "robust=66.0"),
        ({"natural": None}, "natural=None"),
    ],
)
def test_rows_that_make_no_sense_are_refused(bad, named):
    with pytest.raises(InvalidInputError, match=named):
        render_demo(summary(rows=[{**row("swrd", "ste", 0.5), **bad}]), [])


def test_without_jinja_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match="jinja2 is not installed"):
        render_demo(summary(), [])

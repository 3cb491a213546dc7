"""The demo's reports: right numbers in the right cells, nothing from outside, nothing hostile let through."""

import base64
import io
import sys
from math import nan
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pages import Page
from vqshield.core.errors import InvalidInputError, MissingExtraError
from vqshield.demo.page import demo_table, render_demo
from vqshield.demo.study import DemoRow, DemoSummary
from vqshield.images.files import encode_png
from vqshield.images.pictures import GalleryPicture, GalleryRow

HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>'


def row(defense: str, threat: str, robust: float, **other: Any) -> DemoRow:
    fixed = {
        "settings": {"codes": 25},
        "attack": "PGD-20",
        "natural": 0.8,
        "standard_error": 0.012,
        "n": 100,
        "runs": 5,
    }
    return DemoRow(**{"defense": defense, "threat": threat, "robust": robust, **fixed, **other})


ROWS = (
    row("undefended", "none", 0.8, settings={}),
    row("undefended", "ignorant", 0.0, settings={}),
    row("swrd", "none", 0.8),
    row("swrd", "ignorant", 0.66),
    row("swrd", "adaptive", 0.045, attack="PGD-20, EOT-5"),
)


def summary(*rows: DemoRow, **other: Any) -> DemoSummary:
    fixed = {
        "title": "A title",
        "complete": True,
        "epsilon": 8 / 255,
        "rows": rows or ROWS,
        "sentences": ("First sentence.", "Second sentence."),
        "audit": "not run",
        "seeds": {"defense": 1, "attack": 2},
        "seconds": 101.4,
        "machine": {"cores": 2, "torch": "2.13.0"},
    }
    return DemoSummary(**{**fixed, **other})


def gallery(label: str = "cat", caption: str = "clean", verdict: str = "dog") -> list[GalleryRow]:
    pixels = np.arange(32 * 32 * 3, dtype=np.uint32).astype(np.uint8).reshape(32, 32, 3)
    image = f"data:image/png;base64,{base64.b64encode(encode_png(pixels)).decode('ascii')}"
    pictures = (
        GalleryPicture(caption=caption, image=image, verdict=verdict, correct=False),
        GalleryPicture(caption="attacked", image=image, verdict="cat", correct=True),
    )
    return [GalleryRow(label=label, pictures=pictures)]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"robust": 66.0}, "robust=66.0"),
        ({"natural": -0.1}, "natural=-0.1"),
        ({"natural": nan}, "natural=nan"),
    ],
)
def test_rows_that_make_no_sense_are_refused(bad: dict[str, float], named: str) -> None:
    with pytest.raises(InvalidInputError, match=named):
        row("swrd", "adaptive", **{"robust": 0.5, **bad})


class TestTable:
    @staticmethod
    def text_of(*rows: DemoRow, width: int = 100) -> str:
        console = Console(width=width, file=io.StringIO())
        console.print(demo_table(summary(*rows, title="A [bold]title[/bold]")).terminal(notes=False))
        return console.file.getvalue()

    def test_one_line_per_defense_one_column_per_threat(self) -> None:
        text = self.text_of(
            row("prd", "none", 0.8), row("prd", "adaptive", 0.03), row("swrd", "ignorant", 0.66)
        )
        lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
        assert "80.0 ± 1.2" in lines["prd"]
        assert "3.0 ± 1.2" in lines["prd"]
        assert "not run" in lines["prd"]
        assert "66.0 ± 1.2" in lines["swrd"]
        assert "± standard error over images, N = 100 images; attacks: linf, eps 8/255" in " ".join(
            text.split()
        )
        assert "A [bold]title[/bold]" in text  # a title is text, not markup

    def test_it_fits_a_narrow_terminal(self) -> None:
        rows = [
            row("randdisc", threat, 0.5) for threat in ("none", "transfer", "ignorant", "score", "adaptive")
        ]
        text = self.text_of(*rows, width=80)
        assert all(len(line) <= 80 for line in text.splitlines())
        assert text.count("50.0 ± 1.2") == 5

    def test_without_rich_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "rich", None)
        with pytest.raises(MissingExtraError, match="rich is not installed"):
            demo_table(summary()).terminal()


class TestPage:
    def test_nothing_is_asked_for_from_outside(self) -> None:
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

    def test_accuracies_stand_in_the_pivoted_table(self) -> None:
        source = render_demo(summary(), gallery())
        table = source[source.index("<tbody") : source.index("</tbody>")]
        undefended, swrd = table.split("<tr")[1:]
        assert "80.0" in undefended
        assert "not run" in undefended
        shown = ("80.0", "66.0", "4.5", "± 1.2", "N = 100", "codes=25")
        assert all(text in swrd.replace("&nbsp;", " ") for text in shown)
        assert swrd.count("collapsed") == 1
        assert "width:66.0%" in swrd

    def test_the_words_a_reader_needs_are_there(self) -> None:
        text = " ".join(Page(render_demo(summary(), gallery())).text)
        seeds = "defense 1, attack 2"
        for words in ("A title", "First sentence.", "Second sentence.", "8/255", "1.7 min", "2.13.0", seeds):
            assert words in text

    def test_right_and_wrong_are_told_by_more_than_colour(self) -> None:
        page = Page(render_demo(summary(), gallery()))
        text = " ".join(page.text)
        assert "✗ dog" in text
        assert "✓ cat" in text
        assert [image["alt"] for image in page.all("img")] == [
            "cat, clean: classified as dog, wrong",
            "cat, attacked: classified as cat, correct",
        ]

    def test_the_page_reads_in_the_dark_and_on_a_phone(self) -> None:
        page = Page(render_demo(summary(), gallery()))
        styles = "".join(page.styles)
        assert "prefers-color-scheme: dark" in styles
        assert "image-rendering: pixelated" in styles
        assert any(each.get("name") == "viewport" for each in page.all("meta"))

    def test_hostile_names_stay_text(self) -> None:
        hostile = row(HOSTILE, "ignorant", 0.5, settings={HOSTILE: HOSTILE}, attack=HOSTILE)
        everywhere = summary(
            hostile, title=HOSTILE, sentences=(HOSTILE,), machine={HOSTILE: HOSTILE}, seeds={HOSTILE: 1}
        )
        page = Page(render_demo(everywhere, gallery(HOSTILE, HOSTILE, HOSTILE)))
        assert not page.all("script")
        assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
        assert not any("onerror" in attributes for _, attributes in page.tags)
        assert page.all("img")[0]["alt"].startswith(HOSTILE)

    def test_a_page_without_pictures_and_sentences_is_possible(self) -> None:
        """As of a demo that was stopped early."""
        page = Page(render_demo(summary(sentences=(), complete=False), []))
        assert not page.all("img")
        assert not page.all("section")

    def test_without_jinja_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jinja2", None)
        with pytest.raises(MissingExtraError, match="jinja2 is not installed"):
            render_demo(summary(), [])

"""Reports in a real browser: nothing is missing, nothing complains, nothing is fetched."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NAMES, Browser, Page, browser, find_browser

REPORTS = Path(__file__).resolve().parents[2] / "results" / "reproduction"
WIDTHS = "[...document.images].map(image => image.naturalWidth)"


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with browser(path) as found:
        yield found


def fetched(page: Page) -> list[str]:
    return [address for address in page.requests if not address.startswith(("file:", "data:"))]


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("id", ["T2", "F4"])
def test_a_report_is_whole_by_itself(window: Browser, id: str, colours: str) -> None:
    page = window.open(REPORTS / id / "report.html", colours=colours)
    assert page.evaluate("document.querySelector('h1').innerText").startswith(f"{id}:")
    widths = page.evaluate(WIDTHS)
    assert widths
    assert all(widths)
    assert page.complaints == []
    assert fetched(page) == []
    assert [address for address in page.requests if address.startswith("file:")] == [
        (REPORTS / id / "report.html").as_uri()
    ]


@pytest.mark.parametrize("id", ["T2", "F4"])
def test_a_report_fits_a_narrow_window(window: Browser, id: str) -> None:
    page = window.open(REPORTS / id / "report.html", width=400)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize(
    ("content", "complains", "asks"),
    [
        ("<script>console.error('no')</script>", True, False),
        ("<script>console.warn('hardly')</script>", True, False),
        ("<script>missing()</script>", True, False),
        ("<img src='nothing.png'>", True, False),
        ("<img src='http://localhost:1/picture.png'>", True, True),
        ("<p>well</p>", False, False),
    ],
)
def test_what_is_wrong_with_a_page_is_seen(
    window: Browser, tmp_path: Path, content: str, complains: bool, asks: bool
) -> None:
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><title>page</title><link rel=icon href='data:,'>{content}")
    page = window.open(path)
    assert bool(page.complaints) == complains
    assert bool(fetched(page)) == asks
    assert all(page.evaluate(WIDTHS)) == ("<img" not in content)

"""Reports in a real browser: nothing is missing, nothing complains, nothing is fetched."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from summaries import part, row, rows, summary

from browser import NAMES, Browser, Page, browser, find_browser
from vqshield.core.serialization import to_plain
from vqshield_paper.reports import write_index, write_report

WIDTHS = "[...document.images].map(image => image.naturalWidth)"
PHONE = 400
SUMMARIES = {
    "table": summary(part(rows=(*rows()[2:], *rows()[:2]), tradeoff=True)),
    "curves": summary(
        part(
            rows=[row(f"swRD (k={k})", rows()[1].values, series="swRD", x=float(k)) for k in (5, 10, 25)],
            tradeoff=True,
        ),
        view="curves",
    ),
}


@pytest.fixture(scope="module", params=SUMMARIES)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(SUMMARIES[request.param], tmp_path_factory.mktemp(request.param))[0]


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with browser(path) as found:
        yield found


def fetched(page: Page) -> list[str]:
    return [address for address in page.requests if not address.startswith(("file:", "data:"))]


@pytest.mark.parametrize("width", [PHONE, 1100])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_report_is_whole_by_itself(window: Browser, report: Path, colours: str, width: int) -> None:
    page = window.open(report, colours=colours, width=width)
    assert page.evaluate("document.querySelector('h1').innerText").startswith("T2:")
    widths = page.evaluate(WIDTHS)
    assert widths
    assert all(widths)
    assert page.complaints == []
    assert fetched(page) == []
    assert [address for address in page.requests if address.startswith("file:")] == [report.as_uri()]


def test_a_report_fits_a_phone(window: Browser, report: Path) -> None:
    page = window.open(report, width=PHONE)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_the_table_is_open_and_the_rest_is_closed(window: Browser, report: Path) -> None:
    page = window.open(report)
    assert page.evaluate("[...document.querySelectorAll('td')].every(each => each.checkVisibility())")
    assert page.evaluate("document.querySelectorAll('details').length")
    assert not page.evaluate("[...document.querySelectorAll('dd')].some(each => each.checkVisibility())")


def test_on_a_phone_panels_are_stacked(window: Browser, report: Path) -> None:
    shapes = [
        window.open(report, width=width).evaluate(
            "[...document.images].map(image => image.naturalWidth / image.naturalHeight)"
        )
        for width in (PHONE, 1100)
    ]
    for phone, screen in zip(*shapes, strict=True):
        assert phone < screen
        assert phone < 1


def test_on_a_phone_published_results_come_last(window: Browser, tmp_path: Path) -> None:
    report = write_report(SUMMARIES["table"], tmp_path)[0]
    heights = (
        "[...document.querySelectorAll('tbody tr')].map(row => "
        "[row.querySelector('th').innerText.split('\\n')[0], row.getBoundingClientRect().top])"
    )
    orders = []
    for width in (1100, PHONE):
        found = window.open(report, width=width).evaluate(heights)
        orders.append([name for name, _ in sorted(found, key=lambda each: each[1])])
    assert orders == [
        ["Madry", "no defense", "swRD (s=3, k=25)"],
        ["no defense", "swRD (s=3, k=25)", "Madry"],
    ]


def test_the_index_links_to_the_reports(window: Browser, tmp_path: Path) -> None:
    write_report(summary(), tmp_path / "T2")
    (tmp_path / "T2" / "summary.json").write_text(json.dumps(to_plain(summary())))
    page = window.open(write_index(tmp_path), width=PHONE)
    links = page.evaluate("[...document.links].map(link => link.href)")
    assert links == [(tmp_path / "T2" / "report.html").as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert page.complaints == []


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

"""The documentation site: every page has its place, tutorials are gallery scripts, no link leads nowhere.

The tests in a browser look at the site that `make docs` built, and are skipped where there is none.
"""

import ast
import io
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import site_pages
import vqshield
from browser import NAMES, Browser, browser, find_browser
from check_site import broken_links

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BUILT = ROOT / "build" / "docs" / "html"
TUTORIALS = sorted(DOCS.glob("tutorials/*.py"))
KINDS = (  # a page of every kind, those with the widest tables and formulas
    "index", "threats", "leaderboard", "attacks", "certificates", "speed",
    "generated/tutorials/2_attack_and_audit_it", "generated/api/attacks", "generated/api/evaluate",
    "generated/repository/contributing",
)  # fmt: skip
PHONE = 390


def toctree() -> list[str]:
    blocks = re.findall(r"```\{toctree\}\n(.*?)```", (DOCS / "index.md").read_text(), re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line.rpartition("<")[2].rstrip(">") for line in lines if line and not line.startswith(":")]


def test_every_page_has_one_place_in_the_contents() -> None:
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    pages |= {f"generated/repository/{name}" for name in site_pages.REPOSITORY_PAGES.values()}
    pages |= {"generated/api/index", "generated/tutorials/index"}
    assert Counter(toctree()) == Counter(dict.fromkeys(pages, 1))


def test_every_public_name_has_one_place_in_the_reference() -> None:
    groups = site_pages.grouped_names(vqshield.__all__)
    names = [name for group in groups.values() for name in group]
    assert Counter([*names, *site_pages.ROOMS]) == Counter(dict.fromkeys(vqshield.__all__, 1))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_is_a_gallery_script(path: Path) -> None:
    tree = ast.parse(path.read_text())
    text = ast.get_docstring(tree)
    assert text is not None
    title, line, blank = text.splitlines()[:3]
    assert (set(line), len(line), blank) == ({"="}, len(title), "")
    assert "\n# %%\n" in path.read_text()
    assert any(isinstance(node, ast.Import) and node.names[0].name == "vqshield" for node in ast.walk(tree))
    for doc in re.findall(r":doc:`([^`]+)`", path.read_text()):
        place = DOCS / f"{doc[1:]}.md" if doc.startswith("/") else path.with_name(f"{doc}.py")
        assert place.exists(), doc


@pytest.mark.parametrize(
    ("link", "page", "expected"),
    [
        ("adaptive-attacks.md#the-audit", "docs/ladder.md", "/adaptive-attacks.md#the-audit"),
        ("../CONTRIBUTING.md#habits", "docs/ladder.md", "/generated/repository/contributing.md#habits"),
        ("../README.md", "docs/ladder.md", "/index.md"),
        ("tutorials/3_harden_it.py", "docs/index.md", "/generated/tutorials/3_harden_it.rst"),
        ("../paper/research/common.py", "docs/ladder.md", "../paper/research/common.py"),
        ("palette.py", "examples/README.md", "../../../examples/palette.py"),
        ("../docs/serving.md", "examples/README.md", "/serving.md"),
        ("https://example.org/a.md", "docs/ladder.md", "https://example.org/a.md"),
        ("#habits", "CONTRIBUTING.md", "#habits"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(link: str, page: str, expected: str) -> None:
    assert site_pages.site_links(f"see [it]({link}).", page) == f"see [it]({expected})."


def test_a_link_to_a_folder_keeps_its_words() -> None:
    assert site_pages.site_links("the [records](../paper/results/).", "docs/ladder.md") == "the records."


def test_the_checker_finds_what_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "here.png").write_bytes(b"")
    (tmp_path / "sub" / "other.html").write_text('<h2 id="there">x</h2> <a href="../index.html#top">up</a>')
    good = (
        '<body id="top"><a href="sub/other.html#there"></a><a href="#top"></a><img src="here.png?v=1">'
        '<img srcset="data:image/png;base64,AA==">'
        '<a href="https://example.org/none"></a><a href="mailto:a@example.org"></a><a href="#caf%C3%A9"></a>'
        '<p id="café"></p>'
    )
    (tmp_path / "index.html").write_text(good)
    assert broken_links(tmp_path) == []

    bad = (
        '<a href="gone.html">',
        '<a href="sub/other.html#gone">',
        '<a href="#gone">',
        '<img src="gone.png">',
        '<img srcset="here.png, gone.png 2x">',
        '<a href="../outside.html">',
        '<script src="gone.js"></script>',
    )
    (tmp_path / "index.html").write_text(good + "".join(bad))
    (tmp_path.parent / "outside.html").write_text("")
    assert [(each.link, each.why) for each in broken_links(tmp_path)] == [
        ("gone.html", "there is no such file"),
        ("sub/other.html#gone", "there is no such anchor"),
        ("#gone", "there is no such anchor"),
        ("gone.png", "there is no such file"),
        ("../outside.html", "leads out of the site"),
        ("gone.js", "there is no such file"),
    ]


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    if not (BUILT / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with browser(path) as found:
        yield found


@pytest.mark.slow
def test_pages_fit_a_phone_and_need_no_network(window: Browser) -> None:
    wide = {}
    for name in KINDS:
        page = window.open(BUILT / f"{name}.html", width=PHONE, height=800)
        assert page.complaints == [], name
        assert [address for address in page.requests if not address.startswith(("file:", "data:"))] == [], (
            name
        )
        assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)"), (
            name
        )
        if (width := page.evaluate("document.documentElement.scrollWidth")) > PHONE:
            wide[name] = width
        page.tab.close()
    assert wide == {}


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 1500])
def test_wide_tables_and_plots_scroll_in_boxes_of_their_own(window: Browser, width: int) -> None:
    for name in KINDS:
        page = window.open(BUILT / f"{name}.html", width=width, height=800)
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        boxes = "[...document.querySelectorAll('article table')].map(table => table.parentElement)"
        cut = "box => box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX != 'auto'"
        assert page.evaluate(f"{boxes}.filter({cut}).length") == 0, name
        page.tab.close()


@pytest.mark.slow
def test_search_works_without_a_server(window: Browser) -> None:
    page = window.open(BUILT / "index.html")
    form = "document.querySelector('form.sidebar-search-container')"
    assert page.evaluate(f"{form}.action").endswith("/search.html")
    assert page.evaluate(f"{form}.querySelector('input').name") == "q"
    page.tab.goto(f"{(BUILT / 'search.html').as_uri()}?q=surrogate")
    found = page.evaluate(
        """new Promise(done => {
            const look = () => document.querySelector('.search-summary')?.innerText.includes('finished')
                && done([...document.querySelectorAll('#search-results li a')].map(link => link.href));
            const all = {childList: true, subtree: true, characterData: true};
            new MutationObserver(look).observe(document.body, all);
            look();
        })"""
    )
    assert any("surrogates" in address for address in found), found
    assert page.complaints == []


@pytest.mark.slow
def test_dark_mode_follows_the_system_and_the_button(window: Browser) -> None:
    brightness = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)"
        ".reduce((sum, each) => sum + Number(each), 0)"
    )
    light = window.open(BUILT / "index.html").evaluate(brightness)
    page = window.open(BUILT / "index.html", colours="dark")
    assert page.evaluate(brightness) < 200 < light
    button = "[...document.querySelectorAll('.theme-toggle')].find(each => each.offsetParent).click()"
    page.evaluate(button)  # from the system's choice to the opposite
    assert page.evaluate(brightness) == light
    assert page.complaints == []


@pytest.mark.slow
def test_plots_follow_the_button_for_dark_pages(window: Browser) -> None:
    page = window.open(BUILT / "threats.html")
    plot = page.tab.locator("article img").first
    light = plot.screenshot()
    page.evaluate("document.body.dataset.theme = 'dark'")
    dark = plot.screenshot()
    mean = [float(np.asarray(Image.open(io.BytesIO(each)).convert("L")).mean()) for each in (light, dark)]
    assert mean[1] < 100 < mean[0]


@pytest.mark.slow
def test_formulas_are_typeset(window: Browser) -> None:
    page = window.open(BUILT / "certificates.html")
    shown = page.evaluate(
        "MathJax.startup.promise.then(() => document.querySelectorAll('mjx-container').length)"
    )
    assert shown > 20
    assert page.evaluate("document.querySelectorAll('[data-mml-node=merror]').length") == 0
    assert page.complaints == []

"""The page in a real browser: pick, change, attack, upload; nothing in its console, no foreign address."""

import importlib.util
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app_server import running_app
from browser import NAMES, Browser, Page, browser, find_browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("gradio") is None, reason="gradio is not installed"),
    pytest.mark.skipif(find_browser() is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"),
]

ANSWERED = "document.querySelector('#answers .vq-bars')"
BUSY = "document.querySelector('#attack').disabled"
SHOWN = "[...document.querySelectorAll('#%s img')].map(each => each.src).join()"
PHONE = 400
WATCHED = """
import os, sys
def watch(event, given):
    if event in ("socket.connect", "socket.getaddrinfo"):
        place = given[1] if event == "socket.connect" else given
        if str(place[0]) not in ("127.0.0.1", "localhost", "::1"):
            print(event, place, flush=True)
            os._exit(3)
sys.addaudithook(watch)
"""
HARMLESS = "Method not implemented."  # a warning of Gradio's own client, when the progress of an upload ends


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_app() as found:
        yield found


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    path = find_browser()
    assert path is not None
    with browser(path) as found:
        yield found


@pytest.fixture
def page(window: Browser, address: str) -> Iterator[Page]:
    """The page, once its first picture is there; in the end its console must be empty."""
    found = window.open(address, width=1300)
    found.until(ANSWERED)
    yield found
    assert [each for each in found.complaints if HARMLESS not in each] == []
    strangers = [each for each in found.requests if not each.startswith((f"{address}/", "data:", "blob:"))]
    assert strangers == []


def shown(page: Page, part: str) -> str:
    """The addresses of the pictures of a part, once all of them are there."""
    page.until(f"document.querySelectorAll('#{part} img').length == 2")
    page.until(f"[...document.querySelectorAll('#{part} img')].every(each => each.naturalWidth)")
    return str(page.evaluate(SHOWN % part))


def type_number(page: Page, control: str, value: int) -> None:
    """Type into the number field of a slider, and leave it."""
    selector = f"#{control} input[type=number]"
    page.click(selector)
    page.evaluate(f"document.querySelector('{selector}').select()")
    page.tab.keyboard.type(str(value))
    page.tab.keyboard.press("Tab")


def pick(page: Page, number: int) -> None:
    """Click on a bundled picture, and wait until it is shown."""
    before = page.evaluate(SHOWN % "shielded")
    page.click(f"#gallery .gallery-item:nth-of-type({number + 1}) button")
    page.until(f"![{json.dumps(before)}, ''].includes({SHOWN % 'shielded'})")


def in_words(page: Page, part: str) -> str:
    return str(page.evaluate(f"document.querySelector('#{part}').innerText"))


def test_another_k_shows_another_image(page: Page) -> None:
    before = shown(page, "shielded")
    assert "25 patches of 3×3 pixels" in in_words(page, "codebook")
    type_number(page, "codes", 4)
    page.until("document.querySelector('#codebook').innerText.includes('4 patches')")
    assert shown(page, "shielded") != before
    assert "Your settings differ" in in_words(page, "worth")


def test_another_defense_brings_its_settings_and_its_figures(page: Page) -> None:
    page.click("#defense input[value=randdisc]")
    page.until("document.querySelector('#worth').innerText.includes('RandDisc')")
    page.until("document.querySelector('#codebook').innerText.includes('25 colours')")
    assert page.evaluate("document.querySelector('#size input[type=number]').value") == "1"
    assert page.evaluate("document.querySelector('#beta input[type=number]').disabled")
    assert "Your settings differ" not in in_words(page, "worth")


@pytest.mark.parametrize("kind", ["ignorant", "queries", "through"])
def test_an_attack_is_shown_with_the_adaptive_figure_in_view(page: Page, kind: str) -> None:
    page.click(f"#kind input[value={kind}]")
    page.click("#attack")
    page.until("document.querySelector('#attacked-answers .vq-bars')")
    shown(page, "attacked")
    assert "of 20" in in_words(page, "attacked-answers")
    page.until("document.activeElement.id == 'attack'")  # the keyboard goes on where it was
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    where = page.evaluate("document.querySelector('#worth .adaptive dd').getBoundingClientRect().toJSON()")
    assert 0 <= where["top"] < where["bottom"] <= page.evaluate("innerHeight")


def change_picture(page: Page, _: Path) -> None:
    pick(page, 3)


def change_upload(page: Page, folder: Path) -> None:
    Image.new("RGB", (40, 40), "red").save(folder / "red.png")
    page.upload("#upload input[type=file]", folder / "red.png")


def change_defense(page: Page, _: Path) -> None:
    page.click("#defense input[value=prd]")


def change_setting(page: Page, _: Path) -> None:
    type_number(page, "codes", 4)


def change_budget(page: Page, _: Path) -> None:
    type_number(page, "eps", 4)


def change_attacker(page: Page, _: Path) -> None:
    page.click("#kind input[value=ignorant]")


CHANGES = [change_picture, change_upload, change_defense, change_setting, change_budget, change_attacker]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_clears_the_attack(page: Page, tmp_path: Path, change: Callable[[Page, Path], None]) -> None:
    page.click("#attack")
    page.until("document.querySelector('#attacked-answers .vq-bars')")
    shown(page, "attacked")
    change(page, tmp_path)
    page.until("!document.querySelector('#attacked-answers .vq-bars, #attacked img')")
    page.until("document.querySelector('#attack').innerText == 'Attack'")


def test_an_attack_that_was_overtaken_by_a_change_is_not_shown(window: Browser, tmp_path: Path) -> None:
    entered, go_on, ended = (tmp_path / name for name in ("entered", "go-on", "ended"))
    held = (
        "import pathlib, time, vqshield_app.handlers as handlers\nattack = handlers.attack\n"
        "def hold(*given, **more):\n"
        f"    pathlib.Path({str(entered)!r}).touch()\n"
        f"    while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
        "    found = attack(*given, **more)\n"
        f"    pathlib.Path({str(ended)!r}).touch()\n"
        "    return found\n"
        "handlers.attack = hold"
    )
    with running_app(held) as address:
        page = window.open(address, width=1300)
        page.until(ANSWERED)
        page.click("#attack")
        page.until(f"{BUSY} && document.querySelector('#attack').innerText.startsWith('Attacking')")
        wait_for(entered)
        page.click("#kind input[value=ignorant]")
        page.until(f"!{BUSY}")  # it no longer waits for an answer
        go_on.touch()
        wait_for(ended)
        before = shown(page, "shielded")
        page.click("#again")  # its answer comes after that of the attack
        page.until(f"{SHOWN % 'shielded'} != {json.dumps(before)}")
        assert not page.evaluate("!!document.querySelector('#attacked-answers .vq-bars, #attacked img')")


def wait_for(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.01)


def test_uploads_good_and_bad(page: Page, tmp_path: Path) -> None:
    pixels = np.full((60, 90, 3), 60, np.uint8)
    pixels[:, 45:] = (200, 120, 40)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "good.png")
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif)
    Image.new("1", (12_000, 12_000)).save(tmp_path / "bomb.png")
    (tmp_path / "text.png").write_text("I am no picture")
    for number, (name, says) in enumerate(
        {
            "good.png": "90×60 pixels",
            "turned.jpg": "60×90 pixels",
            "text.png": "not a PNG or JPEG image",
            "bomb.png": "more than the allowed 16000000 pixels",
        }.items(),
        start=1,
    ):
        page.until("document.querySelector('#upload input[type=file]')")
        page.upload("#upload input[type=file]", tmp_path / name)
        page.until(f"document.querySelector('#notice').innerText.includes({json.dumps(says)})")
        alert = page.evaluate("!!document.querySelector('#notice [role=alert]')")
        assert alert == (name in ("text.png", "bomb.png"))
        pick(page, number)  # the page lives on
        page.until("document.querySelector('#notice').innerText.trim() == ''")


def test_a_file_of_too_many_bytes_is_refused(window: Browser, address: str, tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bytes(9 << 20))
    page = window.open(address)
    page.until(ANSWERED)
    page.upload("#upload input[type=file]", tmp_path / "large.png")
    page.until("document.body.innerText.includes('exceed the maximum allowed size of 8.0 Mb')")
    pick(page, 2)  # the page lives on


def test_the_server_calls_nobody() -> None:
    """Every address that it connects to, or looks up, is this machine's."""
    with running_app(before=WATCHED) as address, urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.status == 200


def test_a_foreign_host_header_is_refused(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "evil.example"}), timeout=60)


def test_uploads_are_private_and_gone_in_the_end(
    window: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    with running_app() as address:
        page = window.open(address, width=1300)
        page.until(ANSWERED)
        change_upload(page, tmp_path)
        page.until("document.querySelector('#notice').innerText.includes('40×40 pixels')")
        (folder,) = tmp_path.glob("vqshield-app-*")
        assert list(folder.rglob("red.png"))
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_fits_a_phone(window: Browser, address: str, colours: str) -> None:
    page = window.open(address, width=PHONE, colours=colours)
    page.until(ANSWERED)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert page.evaluate("document.body.classList.contains('dark')") == (colours == "dark")
    page.until("!document.querySelector('#codes').checkVisibility()")  # settings are folded
    top = "id => document.getElementById(id).getBoundingClientRect().top"
    places = page.evaluate(f"['gallery', 'attack', 'answers', 'defense'].map({top})")
    assert places == sorted(places)
    assert page.complaints == []

"""Make docs/images/app-*.png: what `vqshield app` looks like on a desk, on a phone, and in the dark.

python tools/make_app_pictures.py    # needs Gradio and Chromium

The pictures are indexed with few colours, by this project's own palettes, so that they stay small.
"""

import io
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from app_server import running_app
from browser import Browser, Page, browser, find_browser

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from palette import encode_indexed_png, palette

ROOT = Path(__file__).resolve().parents[1]
COLOURS = 160
CAT = 3  # of the bundled pictures


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One picture of the page; top: the element that it begins at."""

    name: str
    width: int
    height: int
    colours: str = "light"
    top: str | None = None


SHOTS = (
    Shot(name="desktop", width=1300, height=1180),
    Shot(name="dark", width=1300, height=1180, colours="dark"),
    Shot(name="phone", width=390, height=860, top="#attack"),
)


def take(window: Browser, address: str, shot: Shot) -> bytes:
    """The page after an attack through the shield."""
    page = window.open(address, width=shot.width, height=shot.height, colours=shot.colours)
    page.until("document.querySelector('#answers .vq-bars')")
    page.click(f"#gallery .gallery-item:nth-of-type({CAT + 1}) button")
    page.until("document.querySelector('#answers').innerText.includes('cat')")
    page.click("#attack")
    page.until("document.querySelector('#attacked-answers .vq-bars')")
    page.until("[...document.images].filter(each => each.src).every(each => each.naturalWidth)")
    page.evaluate("document.activeElement.blur()")
    page.evaluate("scrollTo(0, 0)")
    if shot.top is not None:
        page.evaluate(
            f"scrollTo(0, document.querySelector('{shot.top}').getBoundingClientRect().top"
            " - document.querySelector('#worth').offsetHeight - 12)"
        )
    return capture(page)


def capture(page: Page) -> bytes:
    """What is in view, once it was drawn."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")
    return page.tab.screenshot()


def indexed(picture: bytes) -> bytes:
    """The same with few colours."""
    pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    return encode_indexed_png(palette(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None], COLOURS))


def main() -> None:
    """Write all of them."""
    path = find_browser()
    if path is None:
        raise SystemExit("no Chromium or Chrome was found; install one")
    with running_app() as address, browser(path) as window:
        for shot in SHOTS:
            found = indexed(take(window, address, shot))
            (ROOT / "docs" / "images" / f"app-{shot.name}.png").write_bytes(found)
            print(f"app-{shot.name}.png: {len(found) / 1000:.0f} kB")


if __name__ == "__main__":
    main()

"""Make docs/images/report-*.png: what reports of the reproduction and their index look like in a browser.

python paper/tools/make_report_pictures.py
"""

import io
import sys
import tempfile
from pathlib import Path
from shutil import copy

from PIL import Image

from vqshield_paper.reports import write_index, write_report
from vqshield_paper.reports.index import read_summary

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
from browser import Browser, browser, find_browser  # noqa: E402

REPRODUCED = ROOT / "paper" / "results" / "reproduction"
WIDTH, INDEX_HEIGHT = 1100, 1000
COLOURS = 128


def report(window: Browser, id: str, folder: Path) -> bytes:
    """The top of a report, down to the end of its first plot, in light colours."""
    page = window.open(folder / id / "report.html", width=WIDTH)
    bottom = page.evaluate("document.images[0].getBoundingClientRect().bottom + 24")
    return page.tab.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom})


def indexed(picture: bytes) -> bytes:
    """The same with few colours, so that it stays small."""
    stream = io.BytesIO()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, method=Image.Quantize.FASTOCTREE).save(
        stream, "PNG", optimize=True
    )
    return stream.getvalue()


def main() -> None:
    """Write all pictures."""
    path = find_browser()
    if path is None:
        raise SystemExit("found no Chromium or Chrome, or no Playwright; install them")
    with tempfile.TemporaryDirectory() as name, browser(path) as window:
        folder = Path(name)
        for found in sorted(REPRODUCED.glob("*/summary.json")):
            write_report(read_summary(found), folder / found.parent.name)
            copy(found, folder / found.parent.name)
        pictures = {id: report(window, id, folder) for id in ("T2", "F4")}
        pictures["index"] = window.open(
            write_index(folder), width=WIDTH, height=INDEX_HEIGHT
        ).tab.screenshot()
        for id, picture in pictures.items():
            content = indexed(picture)
            (ROOT / "docs" / "images" / f"report-{id}.png").write_bytes(content)
            print(f"report-{id}.png: {len(content) / 1000:.0f} kB")


if __name__ == "__main__":
    main()

"""Make docs/images/report-*.png: what reports of the reproduction look like in a browser.

python paper/tools/make_report_pictures.py
"""

import base64
import tempfile
from pathlib import Path

from browser import Browser, browser, find_browser
from vqshield_paper.reports import write_report
from vqshield_paper.reports.index import read_summary

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 1100


def picture(window: Browser, id: str) -> bytes:
    """The top of a report, down to the end of its first plot, in light colours."""
    with tempfile.TemporaryDirectory() as folder:
        written = write_report(
            read_summary(ROOT / "paper" / "results" / "reproduction" / id / "summary.json"), folder
        )
        page = window.open(written[0], width=WIDTH)
        bottom = page.evaluate("document.images[0].getBoundingClientRect().bottom + 24")
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": bottom, "scale": 1}
        found = page.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])


def main() -> None:
    """Write both pictures."""
    path = find_browser()
    if path is None:
        raise SystemExit("found no Chromium or Chrome; install one")
    with browser(path) as window:
        for id in ("T2", "F4"):
            (ROOT / "docs" / "images" / f"report-{id}.png").write_bytes(picture(window, id))


if __name__ == "__main__":
    main()

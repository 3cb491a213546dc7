"""A headless Chromium that looks at one page: an installed browser, driven by Playwright."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright import sync_api as playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60_000
"""Milliseconds to wait for a page: it takes one second, unless the machine is busy."""
_OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def find_browser() -> str | None:
    """The first installed browser; None: there is none, or Playwright is not installed."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(kw_only=True)
class Page:
    """An open page.

    Attributes:
        tab: Playwright's page.
        complaints: errors and warnings of its console.
        requests: every address that it requested.
    """

    tab: "playwright.Page"
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tab.on("console", self._log)
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def _log(self, message: "playwright.ConsoleMessage") -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"{message.text} {message.location.get('url', '')}")

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript."""
        return self.tab.evaluate(expression)

    def until(self, expression: str) -> None:
        """Wait until the value of JavaScript is a true one."""
        self.tab.wait_for_function(expression, timeout=PATIENCE)

    def click(self, selector: str) -> None:
        """Click on the middle of the first such element, as a mouse does."""
        element = self.tab.locator(selector).first
        element.evaluate("element => element.scrollIntoView({block: 'center'})")
        if (box := element.bounding_box()) is None:
            raise RuntimeError(f"{selector} is not visible")
        self.tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def upload(self, selector: str, path: Path) -> None:
        """Choose a file in a file input."""
        self.tab.locator(selector).first.set_input_files(path)


@dataclass(frozen=True)
class Browser:
    """A running browser."""

    window: "playwright.Browser"

    def open(
        self,
        place: Path | str,
        *,
        width: int = 1100,
        height: int = 900,
        colours: Literal["light", "dark"] = "light",
    ) -> Page:
        """Open a file, or an address of this machine, and wait until all of it is there."""
        tab = self.window.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
        page = Page(tab=tab)
        tab.goto(place if isinstance(place, str) else place.resolve().as_uri(), timeout=PATIENCE)
        return page


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as downloads:
        window = driver.chromium.launch(executable_path=path, args=_OPTIONS, downloads_path=downloads)
        try:
            yield Browser(window)
        finally:
            window.close()

"""A headless Chromium that looks at one page, through the DevTools protocol over a pipe: no package needed.

The protocol: JSON messages, a NUL after each. Chromium reads them from file descriptor 3 and answers to 4.
"""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 60.0
"""Seconds to wait for an answer: a page is read in one, a machine may be busy."""
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)  # fmt: skip
# Where a process's descriptors lie is not for subprocess to say: a Python in between puts them at 3 and 4.
_LAUNCHER = """\
import os, sys
_, reads, writes, *command = sys.argv
os.dup2(int(reads), 3)
os.dup2(int(writes), 4)
os.execv(command[0], command)
"""
_LOADED = (
    "new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', () => done()))"
)
_UNTIL = (
    "new Promise(done => { const look = () => { const found = %s; found ? done(found) : setTimeout(look, 50) "
    "}; look() })"
)
_ABOVE = 10  # so that neither end of a pipe is 3 or 4 itself


def find_browser() -> str | None:
    """The first browser there is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass(kw_only=True)
class Page:
    """A page that is open.

    complaints: errors and warnings of its console. requests: every address it asked for.
    """

    browser: "Browser"
    session: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the page's own part of the protocol."""
        return self.browser.call(method, session=self.session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of JavaScript."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the value of JavaScript is a true one; that value."""
        return self.evaluate(_UNTIL % expression)

    def click(self, selector: str) -> None:
        """Click on the middle of an element, as a mouse does."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        where = self.evaluate(
            f"(box => ({{x: box.x + box.width / 2, y: box.y + box.height / 2}}))"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def upload(self, selector: str, path: Path) -> None:
        """Choose a file in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path.resolve())])

    def hear(self, method: str, found: dict[str, Any]) -> None:
        """What the page says of its own accord."""
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(found["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(found["args"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{found['entry']['text']} {found['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])


class Browser:
    """The process, and one page at a time."""

    def __init__(self, process: "subprocess.Popen[bytes]", send: int, receive: int) -> None:
        self.process, self._send, self._receive = process, send, receive
        self._rest, self._number, self._page = b"", 0, None  # type: bytes, int, Page | None

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Ask, and wait for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(
        self, place: Path | str, *, width: int = 1100, height: int = 900, colours: str = "light"
    ) -> Page:
        """Open a file, or an address of this machine, and wait until all of it is there.

        colours: light or dark.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._page = page = Page(browser=self, session=session)
        for part in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{part}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        address = place if isinstance(place, str) else place.resolve().as_uri()
        answer = page.call("Page.navigate", url=address)
        if "errorText" in answer:
            raise RuntimeError(f"{place}: {answer['errorText']}")
        page.evaluate(_LOADED)
        return page

    def _next(self) -> dict[str, Any]:
        limit = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, limit - time.monotonic()))
            found = os.read(self._receive, 1 << 20) if ready else b""
            if not found:
                raise RuntimeError(
                    f"the browser says nothing: {'it ended' if ready else f'{PATIENCE:g} s passed'}"
                )
            self._rest += found
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        if self._page is not None and message.get("sessionId") == self._page.session and "method" in message:
            self._page.hear(message["method"], message["params"])
        return message


@contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    pipes = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in _pipes()]
    its_in, send, receive, its_out = pipes
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [path, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(its_in), str(its_out), *command],
            pass_fds=(its_in, its_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(its_in)
        os.close(its_out)
        try:
            found = Browser(process, send, receive)
            yield found
            found.call("Browser.close")
        finally:
            os.close(send)
            os.close(receive)
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _pipes() -> Iterator[int]:
    """Both ends of one pipe to the browser and one from it; closed once they were copied."""
    for _ in range(2):
        ends = os.pipe()
        yield from ends
        for end in ends:
            os.close(end)

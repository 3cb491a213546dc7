"""What axe-core finds wrong with a page: contrast, names for screen readers, keyboard access.

    python tools/accessibility.py PAGE.html...    # needs npm and Chromium

npm installs axe-core once, into build/. It checks pages; the project does not ship it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Page, browser, find_browser

VERSION = "4.14.1"
SCRIPT = Path(__file__).resolve().parents[1] / "build" / f"axe-{VERSION}.min.js"
_COUNTED = ("serious", "critical")
_RUN = "axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify(found.violations))"


def axe_core() -> Path | None:
    """The script, brought by npm where it is not there yet; None where npm is missing or has no registry."""
    npm = shutil.which("npm")
    if SCRIPT.is_file() or npm is None:
        return SCRIPT if SCRIPT.is_file() else None
    SCRIPT.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRIPT.parent) as folder:
        options = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", folder)
        command = [npm, "install", *options, f"axe-core@{VERSION}"]
        if subprocess.run(command, capture_output=True, timeout=120).returncode:
            return None
        os.replace(Path(folder) / "node_modules" / "axe-core" / "axe.min.js", SCRIPT)  # noqa: PTH105
    return SCRIPT


def violations(page: Page) -> list[str]:
    """The serious and critical violations of an open page: rule, what it asks for, and the elements."""
    page.evaluate(f"{SCRIPT.read_text()}; null")
    return [
        f"{rule['id']} ({rule['impact']}): {rule['help']}\n"
        + "\n".join(f"  {node['target']}: {node['failureSummary']}" for node in rule["nodes"])
        for rule in json.loads(page.evaluate(_RUN))
        if rule["impact"] in _COUNTED
    ]


def main(paths: list[str]) -> None:
    """Print the violations of every page, in light and in dark colours; exit 1 where there are any."""
    path = find_browser()
    if path is None or axe_core() is None:
        raise SystemExit("this needs Chromium or Chrome, and npm with a registry; install them")
    failed = False
    with browser(path) as window:
        for name in paths:
            for colours in ("light", "dark"):
                wrong = violations(window.open(Path(name), colours=colours))
                failed |= bool(wrong)
                print(f"{name}, {colours}: {len(wrong)} serious or critical violations", *wrong, sep="\n")
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The `vqshield` command: one thin command per file, put together in application.py.

Nothing here needs the `cli` extra, so that without it the command can say what to install.
"""

import sys

from vqshield.core.errors import MissingExtraError


def main() -> None:
    """Run the command line; without the cli extra, say how to get it and exit with 2."""
    try:
        from vqshield.cli.application import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "vqshield"):  # a fault of ours, not a missing extra
            raise
        print(f"error: {MissingExtraError(package, 'cli')}", file=sys.stderr)
        sys.exit(2)
    app(prog_name="vqshield")

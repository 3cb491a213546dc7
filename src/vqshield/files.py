"""Files that are whole or not there."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target and move: a reader or a crash never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own beside the target: replacing is atomic only within one file system.
    temporary = path.with_name(f".vqshield-{secrets.token_hex(8)}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

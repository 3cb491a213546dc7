"""The folder of data sets for which no other folder is given."""

import os
import sys
from pathlib import Path

VARIABLE = "VQSHIELD_CACHE"


def cache_folder() -> Path:
    """The folder named by VQSHIELD_CACHE, else ``vqshield`` in the platform's own cache folder."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "vqshield", "Cache")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "vqshield"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vqshield")

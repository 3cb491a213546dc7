"""Where the page templates of a reproduction lie."""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"

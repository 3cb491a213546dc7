"""What the pages of a reproduction share."""

from pathlib import Path

PICTURES = ("data:image/png;base64,", "data:image/jpeg;base64,", "data:image/svg+xml;base64,")
"""How the address of a picture begins that a summary may hold."""
TEMPLATES = Path(__file__).parent / "templates"

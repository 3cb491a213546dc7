"""Text in Markdown."""

import re

_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def escape_markdown(value: object) -> str:
    """Text that GitHub shows as it is, inside a table too."""
    text = " ".join(str(value).split())
    text = re.sub(r"([\\`*_{}\[\]#|~$!])", r"\\\1", text)
    text = re.sub(r"[<>&]", lambda found: _ENTITIES[found[0]], text)
    # At a line's start these would begin a list or a heading.
    return re.sub(r"^(\d+(?=[.)](?: |$))|(?=[-+=]))", r"\1\\", text)

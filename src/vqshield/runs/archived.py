"""Which commit this is, in an archive of the repository, which has no git to ask: git writes it here.

.gitattributes tells it to. In a checkout, and in wheels made from one, the words stay as they are.
"""

_WRITTEN = "$Format:%H$"

COMMIT: str | None = None if _WRITTEN.startswith("$") else _WRITTEN

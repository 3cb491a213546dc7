"""How long work reports how far it is. The library itself prints nothing."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of the work is done, and how much there is in all."""


def no_progress(doing: str, done: int, total: int) -> None:
    """Ignore the report."""

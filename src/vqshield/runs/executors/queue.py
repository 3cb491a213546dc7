"""CellQueue: which cell is begun next when several are measured at once, and none of them twice."""

from bisect import insort
from collections.abc import Mapping


class CellQueue:
    """Cells by their numbers, the first first; one that needs what another finds waits for that one.

    finder: for cells that wait, the number of the one they wait for.
    held: how far ahead of the first cell that is not given back others may be begun: a long cell does not
        stop those behind it, and what they found does not fill the memory.
    """

    def __init__(self, numbers: range, finder: Mapping[int, int], *, held: int) -> None:
        self._waiting, self._unfinished = list(numbers), set(numbers)
        self._finder, self._held = finder, held
        self._first, self._end = numbers.start, numbers.stop

    def take(self) -> int | None:
        """The next that can be begun now, if any."""
        for place, number in enumerate(self._waiting):
            if number >= min(self._end, self._first + self._held):
                break
            if self._finder.get(number) not in self._unfinished:
                return self._waiting.pop(place)
        return None

    def put_back(self, number: int) -> None:
        """It was begun and came to nothing."""
        insort(self._waiting, number)

    def finish(self, number: int) -> None:
        """It is measured: those that waited for it can be begun."""
        self._unfinished.discard(number)

    def give(self, number: int) -> None:
        """It and all before it are given back: as many more may be begun."""
        self._first = number + 1

    def end_at(self, number: int) -> None:
        """It cannot be measured: nothing behind it is of use to anybody."""
        self._end = min(self._end, number)

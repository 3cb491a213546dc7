"""How busy other programs kept the processor meanwhile: threads that wait for each other suffer badly."""

import os
import time
from pathlib import Path

BUSY = 0.1  # above this share of the processor a figure is marked
_STAT = Path("/proc/stat")


class Watch:
    """From its making on, which share of all cores went to others; None where the system does not tell."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._all, self._own = _all_seconds(), _own_seconds()

    def others(self) -> float | None:
        """The share until now."""
        everything = _all_seconds()
        if everything is None or self._all is None:
            return None
        passed = (time.perf_counter() - self._began) * (os.cpu_count() or 1)
        return max(0.0, (everything - self._all) - (_own_seconds() - self._own)) / passed


def _all_seconds() -> float | None:
    """Processor seconds that all programs have used, and what the machine's host has taken away."""
    if not _STAT.is_file():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, _STAT.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system

"""Which process this is, among those that may hold copies of one seeded defense.

A copy of a seeded defense in another process would repeat the counts of the original; here is what to add to
them. It follows from the order of process starts, so that a repeated program gets the same numbers.

A forked child computes with one torch thread once this module is imported.
"""

import hashlib
import itertools
import multiprocessing
import os
from collections.abc import Iterator

import torch
from torch.utils.data import get_worker_info

_numbers: Iterator[int] = itertools.count(1)  # of this process's forks
_upcoming = 0  # the number of the fork under way
_forks: tuple[tuple[str, int], ...] = ()
"""The forks that led here: multiprocessing's name of the parent, number."""


def identity() -> str:
    """This process's place in the tree of processes: "" for the main program, "2.1" for the first process
    that its second process has started.
    """
    known = _known()
    children = [*(parent for parent, _ in _forks), known][1:]
    # Where multiprocessing forks, it numbers the child itself; one with its parent's name has no number.
    forks = zip(_forks, children, strict=True)
    bare = [f"{parent}+{number}" for (parent, number), child in forks if child == parent]
    return "/".join([*bare, known]) if bare else known


def rank() -> int:
    """The rank in a distributed job, from torch.distributed or the environment that torchrun sets; else 0."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    number, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(number) if number.isdecimal() and size.isdecimal() and int(size) > 1 else 0


def first_stream(born: str) -> int:
    """The number of a defense's first stream in this process.

    Args:
        born: the identity of the process that made the defense.

    Returns:
        0 in that process. In other processes, DataLoader workers and ranks, a negative number far from all
        others: two that draw n streams each overlap with probability n/2^62.
    """
    parts = [f"rank {rank()}"] if rank() else []
    here = identity()
    if here != born or get_worker_info() is not None:
        parts.append(f"process {here}")
    if not parts:
        return 0
    digest = hashlib.sha256(", ".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], signed=True) | -(2**63)


def _known() -> str:
    numbers: tuple[int, ...] = getattr(multiprocessing.current_process(), "_identity", ())
    return ".".join(map(str, numbers))


def _before_fork() -> None:
    global _upcoming
    _upcoming = next(_numbers)


def _after_fork_in_child() -> None:
    global _forks, _numbers
    _forks, _numbers = (*_forks, (_known(), _upcoming)), itertools.count(1)
    # torch's threads do not survive a fork: an operation that uses several would wait forever.
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)

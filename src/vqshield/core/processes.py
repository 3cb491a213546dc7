"""Which process this is, among those that may hold copies of one seeded defense.

A seeded defense counts its draws. A copy of it in another process (a DataLoader worker, a rank of a
distributed job) counts from where it was copied, so the count alone would repeat; here is what to add to it.
All is derived from the order in which processes are started, so that a program run again gets it again.

A forked child computes with one torch thread from the moment that this module is imported.
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
_forks: tuple[
    tuple[str, int], ...
] = ()  # that led here: who forked (as multiprocessing knows it), and the number


def identity() -> str:
    """This process's place in the tree of processes: "" where the program began, "2.1" for the first process
    that the second one started there started in turn.
    """
    known = _known()
    children = [*(parent for parent, _ in _forks), known][1:]
    # Where multiprocessing forks, it numbers the child itself; one that looks like its parent has no number.
    bare = [f"{parent}+{number}" for (parent, number), child in zip(_forks, children, strict=True)
            if child == parent]  # fmt: skip
    return "/".join([*bare, known]) if bare else known


def rank() -> int:
    """The rank in a distributed job, from torch.distributed or the environment that torchrun sets; else 0."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    number, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(number) if number.isdecimal() and size.isdecimal() and int(size) > 1 else 0


def first_stream(born: str) -> int:
    """The number from which a defense counts its streams in this process.

    Args:
        born: the identity of the process that made the defense.

    Returns:
        0 in that process. In another one, in a DataLoader worker, and in every rank but the first, a
        negative number far from that of every other: two that draw n streams each meet with probability
        n/2^62.
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


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)

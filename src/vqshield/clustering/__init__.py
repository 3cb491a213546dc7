"""Codebooks from noisy patches: one backend a file, chosen by name.

A new backend is a new file with a class that has `fit` (see base.Clustering) and one line in _BACKENDS.
"""

from collections.abc import Callable

from vqshield.clustering.base import Clustering, KMeans, NoisyPatches
from vqshield.clustering.lloyd import Lloyd, nearest
from vqshield.clustering.starts import START
from vqshield.errors import InvalidInputError

_BACKENDS: dict[str, Callable[[], Clustering]] = {"torch": Lloyd}
_PREFERENCE = ("torch",)


def backends() -> list[str]:
    """The names of the registered backends."""
    return sorted(_BACKENDS)


def inits() -> list[str]:
    """The names of the ways to start k-means."""
    return sorted(START)


def get(backend: str) -> Clustering:
    """The backend of that name; "auto" takes the fastest that is there."""
    name = _PREFERENCE[0] if backend == "auto" else backend
    if name not in _BACKENDS:
        raise InvalidInputError(
            f"backend={backend!r} is unknown; choose one of auto, {', '.join(backends())}"
        )
    return _BACKENDS[name]()


__all__ = ["Clustering", "KMeans", "Lloyd", "NoisyPatches", "backends", "get", "inits", "nearest"]

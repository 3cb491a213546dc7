"""The quantizers' implementations by name: one backend a file.

A new backend is a new file with a class as base.Backend describes it, and its name in _BACKENDS. The list is
in order of preference: "auto" takes the first that can serve the images' device.
"""

import torch

from vqshield.clustering.base import Backend, Recipe
from vqshield.clustering.reference import Reference
from vqshield.clustering.starts import START
from vqshield.errors import InvalidInputError

_BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Reference(),)}


def backends() -> list[str]:
    """The names of the registered backends, the preferred first."""
    return list(_BACKENDS)


def inits() -> list[str]:
    """The names of the ways to start k-means."""
    return sorted(START)


def get(name: str, device: torch.device | str = "cpu") -> Backend:
    """The backend of that name, "auto" for the fastest; an error that says why where it cannot serve."""
    place = torch.device(device)
    if name == "auto":
        for backend in _BACKENDS.values():
            if backend.missing(place) is None:
                return backend
        name = next(reversed(_BACKENDS))  # none can: let the error say why the reference cannot
    if name not in _BACKENDS:
        raise InvalidInputError(f"backend={name!r} is unknown; choose one of auto, {', '.join(backends())}")
    reason = _BACKENDS[name].missing(place)
    if reason is not None:
        raise InvalidInputError(f"backend={name!r} cannot serve images on {place.type}: {reason}")
    return _BACKENDS[name]


__all__ = ["Backend", "Recipe", "backends", "get", "inits"]

"""The quantizers' implementations by name: one backend a file.

A new backend is a new file with a class as base.Backend describes it, and its name in _BACKENDS. The list is
in order of preference: "auto" takes the first that can serve the images' device.
"""

import torch

from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels.base import Backend, Recipe
from vqshield.quantization.kernels.cuda.program import can_run
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.kernels.reference import Reference
from vqshield.quantization.kernels.starts import START
from vqshield.quantization.kernels.triton.backend import Triton

_BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Triton(), Native(), Reference())}


def list_backends() -> list[str]:
    """The names of the registered backends, the preferred first."""
    return list(_BACKENDS)


def availability() -> dict[str, str]:
    """What each backend can serve on this machine, or why it cannot."""
    places = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    found = {}
    for name, backend in _BACKENDS.items():
        reasons = {place.type: backend.missing(place) for place in places}
        served = [place for place, reason in reasons.items() if reason is None]
        said = (
            f"serves {', '.join(served)}"
            if served
            else f"not available: {'; '.join(map(str, reasons.values()))}"
        )
        found[name] = said
    return found


def list_inits() -> list[str]:
    """The names of the ways to start k-means."""
    return sorted(START)


def kernel_name(name: str, device: torch.device | str = "cpu") -> str:
    """The implementation that a backend, "auto" among them, is on a device: "native avx512", "triton", or
    "triton with cuda" where CUDA kernels come first.
    """
    backend = get(name, device)
    if isinstance(backend, Triton) and can_run(torch.device(device)):
        return f"{backend.name} with cuda"
    return f"{backend.name} {backend.describe()}" if isinstance(backend, Native) else backend.name


def get(name: str, device: torch.device | str = "cpu") -> Backend:
    """The backend of that name, "auto" for the fastest; an error that says why where it cannot serve."""
    place = torch.device(device)
    if name == "auto":
        for backend in _BACKENDS.values():
            # Interpreted kernels serve a CPU only where a test asks for them by name.
            if backend.missing(place) is None and (backend.name != "triton" or place.type == "cuda"):
                return backend
        name = next(reversed(_BACKENDS))  # none can: let the error say why the reference cannot
    if name not in _BACKENDS:
        raise InvalidInputError(
            f"backend={name!r} is unknown; choose one of auto, {', '.join(list_backends())}"
        )
    reason = _BACKENDS[name].missing(place)
    if reason is not None:
        raise InvalidInputError(f"backend={name!r} cannot serve images on {place.type}: {reason}")
    return _BACKENDS[name]


__all__ = ["Backend", "Recipe", "availability", "get", "kernel_name", "list_backends", "list_inits"]

"""The quantizers' implementations by name: one backend a file.

A new backend is a new file with a class as base.Backend describes it, and its name in _BACKENDS. The list is
in order of preference: "auto" takes the first that can serve the images' device.
"""

import torch

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels.base import Backend, Recipe
from vqshield.quantization.kernels.exact import Exact
from vqshield.quantization.kernels.gpu import Gpu
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.kernels.starts import START

_BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (Gpu(), Native(), Exact())}


def list_backends() -> list[str]:
    """The names of the registered backends, the preferred first."""
    return list(_BACKENDS)


def backend_name(value: object) -> str:
    """The name of a backend, or "auto". "triton", as the GPU's was called before, is taken for "gpu"."""
    return "gpu" if value == "triton" else checks.one_of("backend", value, ["auto", *_BACKENDS])


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
    """The kernels that a backend, "auto" among them, runs on a device: "native avx512", "torch",
    "gpu triton", or "gpu cuda+triton" where CUDA kernels serve what they can.
    """
    return get(name, device).kernel_name(torch.device(device))


def get(name: str, device: torch.device | str = "cpu") -> Backend:
    """The backend of that name, "auto" for the fastest; an error that says why where it cannot serve."""
    place, name = torch.device(device), backend_name(name)
    if name == "auto":
        for backend in _BACKENDS.values():
            # Interpreted kernels serve a CPU only where a test asks for them by name.
            if backend.missing(place) is None and (backend.name != "gpu" or place.type == "cuda"):
                return backend
        name = next(reversed(_BACKENDS))  # none can: let the error say why the reference cannot
    reason = _BACKENDS[name].missing(place)
    if reason is not None:
        raise InvalidInputError(f"backend={name!r} cannot serve images on {place.type}: {reason}")
    return _BACKENDS[name]


__all__ = [
    "Backend", "Recipe", "availability", "backend_name", "get", "kernel_name", "list_backends", "list_inits",
]  # fmt: skip

"""The quantizers' implementations by name: each backend is one file, imported when it is first used.

A new backend is a new file with a class as base.Backend describes it, and its name in _BACKENDS. The list is
in order of preference: "auto" takes the first that can serve the images' device.
"""

from functools import cache
from importlib import import_module

import torch

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels.base import INITS, Backend, Recipe

_BACKENDS = {"gpu": "gpu:Gpu", "native": "native:Native", "torch": "exact:Exact"}


def list_backends() -> list[str]:
    """The names of the registered backends, the preferred first."""
    return list(_BACKENDS)


def backend_name(value: object) -> str:
    """The name of a backend, or "auto"; "triton", an earlier name of "gpu", is accepted as well."""
    return "gpu" if value == "triton" else checks.one_of("backend", value, ["auto", *_BACKENDS])


def availability() -> dict[str, str]:
    """Which devices each backend serves on this machine, or why it serves none."""
    places = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    described = {}
    for name in _BACKENDS:
        reasons = {place.type: _backend(name).missing(place) for place in places}
        served = [place for place, reason in reasons.items() if reason is None]
        why = f"not available: {'; '.join(map(str, reasons.values()))}"
        described[name] = f"serves {', '.join(served)}" if served else why
    return described


def kernel_name(name: str, device: torch.device | str = "cpu") -> str:
    """The kernels that a backend, "auto" among them, runs on a device: "native avx512", "torch",
    "gpu triton", or "gpu cuda+triton" where CUDA kernels serve what they can.
    """
    return get(name, device).kernel_name(torch.device(device))


def get(name: str, device: torch.device | str = "cpu") -> Backend:
    """The backend of that name, "auto" for the fastest; an error that says why where it cannot serve."""
    place, name = torch.device(device), backend_name(name)
    if name == "auto":
        # Interpreted GPU kernels serve a CPU only where a test names them.
        candidates = [name for name in _BACKENDS if name != "gpu" or place.type == "cuda"]
        for name in candidates:
            if _backend(name).missing(place) is None:
                return _backend(name)
    reason = _backend(name).missing(place)
    if reason is not None:
        raise InvalidInputError(f"backend={name!r} cannot serve images on {place.type}: {reason}")
    return _backend(name)


@cache
def _backend(name: str) -> Backend:
    module, kind = _BACKENDS[name].split(":")
    backend: Backend = getattr(import_module(f"{__name__}.{module}"), kind)()
    return backend


__all__ = [
    "INITS", "Backend", "Recipe", "availability", "backend_name", "get", "kernel_name", "list_backends",
]  # fmt: skip

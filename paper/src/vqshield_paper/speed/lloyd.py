"""Lloyd's rounds from given centres, by each of this library's backends: what the speed comparison times."""

import ctypes

import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels import Backend, native
from vqshield.quantization.kernels.base import check_magnitudes
from vqshield.quantization.kernels.reference import Reference


class _Job(ctypes.Structure):
    """VqLloydJob of native/worker.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("patches", "start", "centres", "stop")),
        *((name, ctypes.c_int64) for name in ("threads", "batch", "count", "dimensions")),
        *((name, ctypes.c_int64) for name in ("codes", "iterations")),
        ("tolerance", ctypes.c_double),
        *((f"{name}_count", ctypes.c_int64) for name in ("patches", "start", "centres")),
        ("message", ctypes.c_char * native.MESSAGE),
    )


def lloyd(
    backend: Backend, patches: Tensor, start: Tensor, *, iterations: int, tolerance: float = 0.0
) -> Tensor:
    """The centres (B, k, d) of k-means of patches (B, n, d) from centres (B, k, d).

    Example:
        >>> from vqshield.quantization import kernels
        >>> from vqshield_paper.speed.lloyd import lloyd
        >>> points = torch.tensor([[[0.0], [1.0], [8.0]]])
        >>> lloyd(kernels.get("torch"), points, points[:, 1:], iterations=3).flatten()
        tensor([0.5000, 8.0000])
    """
    if isinstance(backend, native.Native):
        return _native(backend, patches, start, iterations, tolerance)
    if backend.name == "gpu":
        return _gpu(patches, start, iterations, tolerance)
    return Reference().lloyd(patches, start, iterations=iterations, tolerance=tolerance)


def _native(
    backend: native.Native, patches: Tensor, start: Tensor, iterations: int, tolerance: float
) -> Tensor:
    (batch, count, dimensions), codes = patches.shape, start.shape[1]
    begin = native.plain(start)
    tensors = {"patches": native.plain(patches), "start": begin, "centres": torch.empty_like(begin)}
    job = _Job(
        **native.places("count", tensors), threads=torch.get_num_threads(), batch=batch, count=count,
        dimensions=dimensions, codes=codes, iterations=iterations, tolerance=tolerance,
    )  # fmt: skip
    try:
        backend._call("vq_lloyd", job, patches.numel() * codes * iterations, tensors)
    except InvalidInputError:
        check_magnitudes(patches=patches, start=start)
        raise
    return tensors["centres"].to(patches.dtype)


def _gpu(patches: Tensor, start: Tensor, iterations: int, tolerance: float) -> Tensor:
    from vqshield.quantization.kernels.triton.launch import Sizes, Workspace, run_rounds

    (batch, count, dimensions), codes = patches.shape, start.shape[1]
    space = Workspace.make(batch, Sizes.of(count, codes, dimensions), patches.device, patches=True)
    space.x.zero_()
    space.x[:, 0, :, dimensions] = 1
    # Centred for the same reason as in triton/parts.py: small numbers have small rounding errors.
    middle = patches.mean((1, 2), keepdim=True)
    hi, lo = space.x[:, 0, :count, :dimensions], space.x[:, 1, :count, :dimensions]
    hi.copy_(patches - middle)
    lo.copy_((patches - middle - hi) * 2048)
    centres = space.centres[:, :codes, :dimensions]
    centres.copy_(start - middle)
    run_rounds(space, count, codes, dimensions, iterations=iterations, tolerance=tolerance)
    return (centres + middle).to(patches.dtype)

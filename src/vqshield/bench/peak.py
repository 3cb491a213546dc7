"""What the machine can do at most, measured: the yardstick for every other figure."""

from typing import Any

import torch

from vqshield.bench.timing import measure
from vqshield.noise import Draw, Stage

_SIDE = {"cpu": 1536, "cuda": 8192}  # of the matrices
_BYTES = {"cpu": 2**27, "cuda": 2**31}  # copied at once, far more than the caches hold
_STREAMS, _NORMALS = 64, 24300  # as many as 64 CIFAR images with 3×3 windows need
_SMALL = 8  # a smoke test's share of all that


def peak(device: torch.device, *, budget: float, small: bool = False) -> dict[str, Any]:
    """Operations, bytes and Gaussian values a second, at their best; set the threads before."""
    scale = _SMALL if small else 1
    dtypes = {"float32": torch.float32}
    if device.type == "cuda":
        dtypes |= {"bfloat16": torch.bfloat16}
    side = _SIDE[device.type] // scale
    return {
        "threads": torch.get_num_threads(),
        "gflops": {name: _matmul(device, side, dtype, budget) for name, dtype in dtypes.items()},
        "copy_gbytes": _copy(device, _BYTES[device.type] // scale, budget),
        "normals": _normals(device, max(1, _STREAMS // scale), budget),
        "torch_normals": _torch_normals(device, max(1, _STREAMS // scale), budget),
    }


def _matmul(device: torch.device, side: int, dtype: torch.dtype, budget: float) -> float:
    """GFLOP/s of a product of two square matrices (float32 in full precision: torch's default)."""
    left, right = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    result = torch.empty_like(left)
    _, timing = measure(lambda: torch.mm(left, right, out=result), device=device, budget=budget)
    return 2 * side**3 / timing.best / 1e9


def _copy(device: torch.device, size: int, budget: float) -> float:
    """GB/s, reading and writing both counted."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    _, timing = measure(lambda: target.copy_(source), device=device, budget=budget)
    return 2 * size / timing.best / 1e9


def _normals(device: torch.device, streams: int, budget: float) -> float:
    """Values a second of the reference's own noise, whose bits every backend draws."""
    draw = Draw(0, torch.arange(streams, device=device))
    _, timing = measure(lambda: draw.normals(Stage.CODEBOOK, 0, _NORMALS), device=device, budget=budget)
    return streams * _NORMALS / timing.best


def _torch_normals(device: torch.device, streams: int, budget: float) -> float:
    """Values a second of torch's float32 noise, for comparison."""
    state = torch.Generator(device).manual_seed(0)  # the global one is not advanced
    values = torch.empty(streams * _NORMALS, device=device)
    _, timing = measure(lambda: values.normal_(generator=state), device=device, budget=budget)
    return streams * _NORMALS / timing.best

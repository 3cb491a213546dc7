"""How speed changes with the batch, the image's side, s, k and the threads, one at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from vqshield.bench.implementation import Implementation
from vqshield.bench.timing import limited_threads, measure
from vqshield.bench.workloads import Workload, pictures, workload

BASE = workload("cifar-swrd-3-25")
_AXES: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {
        "batch": (1, 4, 16, 64, 256),
        "side": (16, 32, 64, 128, 256),
        "size": (1, 2, 3, 4, 5),
        "codes": (2, 5, 10, 25, 50, 100),
    },
    "cuda": {
        "batch": (1, 16, 256, 4096, 16384, 65536),
        "side": (16, 32, 64, 128, 256, 512),
        "size": (1, 2, 3, 4, 5),
        "codes": (2, 5, 10, 25, 50, 100),
    },
}


@dataclass(frozen=True)
class Point:
    """One setting changed from the base, the others as they are."""

    axis: str
    value: int
    workload: Workload
    batch: int
    threads: int


def points(device: torch.device, threads: tuple[int, ...], base: Workload = BASE) -> Iterator[Point]:
    """All points, axis by axis."""
    usual = base.batches(device)[0]
    most = max(threads)
    for axis, values in _AXES[device.type].items():
        for value in values:
            if axis == "batch":
                yield Point(axis, value, base, value, most)
            elif axis == "side":  # about as many pixels in all, so that memory stays what it was
                batch = max(1, usual * base.side**2 // value**2)
                yield Point(axis, value, replace(base, side=value), batch, most)
            else:
                yield Point(axis, value, replace(base, **{axis: value}), usual, most)  # type: ignore[arg-type]
    for count in threads if device.type == "cpu" else ():
        yield Point("threads", count, base, usual, count)


def grow(point: Point, implementation: Implementation, device: torch.device, budget: float) -> dict[str, Any]:
    """The whole defense's speed at that point, ten iterations from a random start."""
    images = pictures(point.workload, point.batch, device)
    with limited_threads(point.threads):
        call: Callable[[], torch.Tensor] = implementation.defense(point.workload, images, "ten")
        _, timing = measure(call, device=device, budget=budget)
    return {
        "axis": point.axis,
        "value": point.value,
        "implementation": implementation.name,
        "images_per_second": point.batch / timing.median,
        "seconds_a_call": timing.median,
        "flops_an_image": point.workload.flops("defense"),
        "batch": point.batch,
        "threads": point.threads,
    }

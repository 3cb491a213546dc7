"""How speed changes with the batch, the image's side, s, k and the threads; and memory with many images."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from vqshield.bench.implementations import Implementation
from vqshield.bench.record import GrowthRow, MemoryRow
from vqshield.bench.timing import limited_threads, measure
from vqshield.bench.workloads import Workload, pictures, workload

BASE = workload("cifar-swrd-3-25")
MANY = 100_000  # images of the one call whose memory is measured
_BATCHES = {"cpu": (1, 4, 16, 64, 256), "cuda": (1, 16, 256, 4096, 16384, 65536)}
_SIDES = {"cpu": (16, 32, 64, 128, 256), "cuda": (16, 32, 64, 128, 256, 512)}
_SIZES = (1, 2, 3, 4, 5)
_CODES = (2, 5, 10, 25, 50, 100)


@dataclass(frozen=True)
class Point:
    """One setting (axis) changed from the base, the others as they are."""

    axis: str
    value: int
    workload: Workload
    batch: int
    threads: int


def list_points(device: torch.device, threads: tuple[int, ...]) -> Iterator[Point]:
    """All points, axis by axis."""
    usual, most = BASE.batches(device)[0], max(threads)
    for batch in _BATCHES[device.type]:
        yield Point("batch", batch, BASE, batch, most)
    for side in _SIDES[device.type]:  # about as many pixels in all, so that memory stays what it was
        yield Point("side", side, replace(BASE, side=side), max(1, usual * BASE.side**2 // side**2), most)
    for size in _SIZES:
        yield Point("size", size, replace(BASE, size=size), usual, most)
    for codes in _CODES:
        yield Point("codes", codes, replace(BASE, codes=codes), usual, most)
    for count in threads if device.type == "cpu" else ():
        yield Point("threads", count, BASE, usual, count)


def measure_point(
    point: Point, implementation: Implementation, device: torch.device, *, budget: float
) -> GrowthRow:
    """The whole defense's speed at that point, ten iterations from a random start."""
    assert implementation.defense is not None
    images = pictures(point.workload, point.batch, device)
    with limited_threads(point.threads):
        call = implementation.defense(point.workload, images, "ten")
        _, timing = measure(call, device=device, budget=budget)
    return GrowthRow(
        axis=point.axis,
        value=point.value,
        implementation=implementation.name,
        images_per_second=point.batch / timing.median,
        seconds_a_call=timing.median,
        flops_an_image=round(point.workload.flops("defense")),
        batch=point.batch,
        threads=point.threads,
    )


def measure_memory(implementation: Implementation, device: torch.device) -> MemoryRow:
    """GPU memory of the whole defense with default settings, all images in one call."""
    assert implementation.defense is not None
    images = pictures(BASE, MANY, device)
    call = implementation.defense(BASE, images, "default")
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    output = call()
    torch.cuda.synchronize(device)
    most = torch.cuda.max_memory_allocated(device)
    return MemoryRow(
        workload=BASE.name,
        implementation=implementation.name,
        images=MANY,
        input_bytes=images.nbytes,
        output_bytes=output.nbytes,
        workspace_bytes=most - before - output.nbytes,
        peak_bytes=most,
    )

"""GPU memory of one call with very many images. How speed and memory grow: benchmarks/growth.py."""

import torch

from vqshield_paper.speed.implementations import Implementation
from vqshield_paper.speed.record import MemoryRow
from vqshield_paper.speed.workloads import pictures, workload

BASE = workload("cifar-swrd-3-25")
MANY = 100_000  # images of the one call whose memory is measured


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

"""How much GPU memory the whole defense takes for a very large batch."""

from typing import Any

import torch

from vqshield.bench.implementation import Implementation
from vqshield.bench.workloads import Workload, pictures

IMAGES = 100_000


def peak_memory(implementation: Implementation, workload: Workload, device: torch.device) -> dict[str, Any]:
    """Bytes of input, output and, above both, of what a call needs besides; all images in one call."""
    images = pictures(workload, IMAGES, device)
    call = implementation.defense(workload, images, "default")
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    output = call()
    torch.cuda.synchronize(device)
    most = torch.cuda.max_memory_allocated(device)
    size = output.numel() * output.element_size()
    return {
        "workload": workload.name,
        "implementation": implementation.name,
        "images": IMAGES,
        "input_bytes": images.numel() * images.element_size(),
        "output_bytes": size,
        "workspace_bytes": most - before - size,
        "peak_bytes": most,
    }

"""What a figure was measured with: versions and the kind of machine, never its name or paths."""

import os
import platform
from pathlib import Path

import torch

import vqshield
from vqshield.core.serialization import Json


def environment(device: str | torch.device = "cpu") -> dict[str, Json]:
    """Versions, processor and, for a GPU, its name: stands in every record the program writes."""
    place = torch.device(device)
    return {
        "vqshield": vqshield.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(place) if place.type == "cuda" else place.type,
    }


def _processor() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()

"""Which device to compute on, and what a result was measured with: versions and hardware, never paths."""

import os
import platform
from pathlib import Path

import torch

import vqshield
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json


def device_name(name: str) -> str:
    """The name of a device that need not be on this machine; "auto" is the GPU where there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def pick_device(name: str) -> torch.device:
    """The device of that name, which works; "auto" is the GPU where there is one."""
    name = device_name(name)
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]  # torch's message has many more lines
        raise InvalidInputError(f"device={name!r} cannot be used, try cpu, cuda or auto: {reason}") from error
    return device


def environment(device: str | torch.device = "cpu") -> dict[str, Json]:
    """Versions, processor and, for a GPU, its name: part of every record that the program writes."""
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
    """The processor's own name where the system knows it, else its architecture."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()

"""Which device to compute on."""

import torch

from vqshield.core.errors import InvalidInputError


def device_name(name: str) -> str:
    """That name, of a device that need not be here; for "auto" the GPU's where there is one."""
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
        reason = str(error).splitlines()[0].split(". ")[0]  # torch goes on for pages
        raise InvalidInputError(f"device={name!r} cannot be used, try cpu, cuda or auto: {reason}") from error
    return device

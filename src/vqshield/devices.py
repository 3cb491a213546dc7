"""Which device to compute on."""

import torch

from vqshield.errors import InvalidInputError


def pick_device(name: str) -> torch.device:
    """The device of that name; "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]  # torch goes on for pages
        raise InvalidInputError(f"device={name!r} cannot be used, try cpu, cuda or auto: {reason}") from error
    return device

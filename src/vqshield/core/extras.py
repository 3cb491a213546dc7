"""Libraries that vqshield needs for some of its work only: imported when they are needed."""

from importlib import import_module
from typing import Any

import torch

from vqshield.core.errors import MissingExtraError


def require(module: str, extra: str, package: str | None = None) -> Any:
    """A module of another library.

    Args:
        module: its name for import.
        extra: vqshield's extra that installs it.
        package: what pip calls the library, where that is not the module's first name.

    Raises:
        MissingExtraError: it is not installed, or does not fit the torch that is.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and itself lacks something: its own message says what
        raise MissingExtraError(package or module.partition(".")[0], extra) from error
    except RuntimeError as error:  # a torchvision that was built for another torch
        wanted = package or module.partition(".")[0]
        raise MissingExtraError(f"a {wanted} that imports beside torch {torch.__version__}", extra) from error

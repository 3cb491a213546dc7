"""Libraries that vqshield needs for some of its work only: imported when they are needed."""

from importlib import import_module
from typing import Any

import torch

from vqshield.core.errors import MissingExtraError


def require(module: str, extra: str, package: str | None = None) -> Any:
    """Import a module of another library, or raise a MissingExtraError that names the extra that installs it;
    package: the library's name for pip (default: the module's first name).
    """
    name = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != name:
            raise  # the library is installed, but a module that it needs is not
        raise MissingExtraError(package or name, extra) from error
    except RuntimeError as error:  # a torchvision for another torch
        wanted = f"a {package or name} that imports with torch {torch.__version__}"
        raise MissingExtraError(wanted, extra) from error

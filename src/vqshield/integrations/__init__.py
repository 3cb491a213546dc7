"""Adapters to other libraries, one a file or folder, imported only when asked for.

Importing one whose library is not installed raises a MissingExtraError that names the extra.
"""

from importlib import import_module
from types import ModuleType

from vqshield.errors import MissingExtraError


def require(module: str, extra: str, package: str | None = None) -> ModuleType:
    """A module of another library.

    Args:
        module: its name for import.
        extra: vqshield's extra that installs it.
        package: what pip calls the library, where that is not the module's first name.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != module.partition(".")[0]:
            raise  # it is there, and itself lacks something: its own message says what
        raise MissingExtraError(package or module.partition(".")[0], extra) from error

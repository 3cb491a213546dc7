"""What a text such as mine:net names: something in a user's module, imported when it is asked for."""

import hashlib
import re
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from vqshield.errors import InvalidInputError, VqshieldError
from vqshield.settings import did_you_mean

_NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def names_function(text: str) -> bool:
    """Whether a text is written as package.module:function, with nothing behind it.

    Example:
        >>> from vqshield.functions import names_function
        >>> names_function("mine:net"), names_function("swrd:size=3"), names_function("swrd")
        (True, False, False)
    """
    return _NAMED.fullmatch(text) is not None


def find_function(text: str, *, called: str) -> Callable[..., Any]:
    """What package.module:function names. The module is looked for where Python looks, and then in the
    current directory: a file there never hides an installed package.

    Args:
        text: the module and the function.
        called: what the text is called where it was given, for messages.

    Raises:
        InvalidInputError: the text has another form, or there is no such module or function.
    """
    module, _, function = text.partition(":")
    if not names_function(text):
        raise InvalidInputError(
            f"{called}={text!r} is no module and function; write them as in mine:net, for net in mine.py"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # for good: the function may import more when it is called
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"{called}={text}: no module {module!r} can be imported ({error}); it is looked for among the "
            f"installed packages, in PYTHONPATH and in the current directory, {here}"
        ) from error
    except Exception as error:  # whatever stands in a user's file
        raise InvalidInputError(f"{called}={text}: importing {module} failed: {_told(error)}") from error
    named: Callable[..., Any] | None = getattr(found, function, None)
    if not callable(named):
        functions = [name for name, value in vars(found).items() if callable(value)]
        raise InvalidInputError(
            f"{called}={text}: {module} has no function {function!r}{did_you_mean(function, functions)}"
        )
    return named


def call_function(make: Callable[[], Any], text: str, *, called: str) -> Any:
    """What it returns when it is called without arguments; whatever goes wrong in it is told in a line.

    Raises:
        InvalidInputError: it failed.
    """
    try:
        return make()
    except VqshieldError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"{called}={text}: {text.partition(':')[2]}() failed: {_told(error)}"
        ) from error


def function_digest(text: str) -> str | None:
    """SHA-256 of the file that package.module:function is written in, once it was imported."""
    found = sys.modules.get(text.partition(":")[0])
    path = getattr(found, "__file__", None)
    if path is None or not Path(path).is_file():
        return None
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _told(error: Exception) -> str:
    """What went wrong, and the last line of the user's code (or of what it called) that it went wrong in."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"

"""What a text such as mine:net names: something in a user's module, imported when it is asked for."""

import ast
import hashlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from typing import Any

from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.settings import did_you_mean

_NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_NOT_USERS = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parent


def names_function(text: str) -> bool:
    """Whether a text is written as package.module:function, with nothing behind it.

    Example:
        >>> from vqshield.core.entry_points import names_function
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
    """SHA-256 of the code behind package.module:function, once it was imported; None where it has no file.

    It covers the module and every file that the module imports, at any depth and inside functions too, from
    outside the standard library, site-packages and vqshield. Imports are read from the sources, so that the
    digest does not depend on what a process has loaded; names computed at run time are not seen.
    """
    first = text.partition(":")[0]
    files, waiting = dict[str, Path](), {first}
    while waiting:
        module = waiting.pop()
        path = _file_of(module)
        if path is not None and (module == first or _is_users(path)):
            files[module] = path
            waiting |= _imported(module, path) - files.keys() if _is_users(path) else set()
    if first not in files:
        return None
    sums = [f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in files.items()]
    return hashlib.sha256("\n".join(sorted(sums)).encode()).hexdigest()


def _file_of(module: str) -> Path | None:
    """Where a module came from, or would come from; nothing is imported here."""
    if module in sys.modules:
        loaded = getattr(sys.modules[module], "__file__", None)
        places = [Path(loaded)] if loaded else []
    else:
        below = module.replace(".", "/")
        places = [Path(folder, below + end) for folder in sys.path for end in ("/__init__.py", ".py")]
    return next((path for path in places if path.is_file()), None)


def _is_users(path: Path) -> bool:
    return not (
        {"site-packages", "dist-packages"}.intersection(path.parts)
        or any(path.is_relative_to(folder) for folder in _NOT_USERS)
    )


def _imported(module: str, path: Path) -> set[str]:
    """The names that a file imports and the packages that they are in; some may not be modules."""
    package, names = module if path.name == "__init__.py" else module.rpartition(".")[0], {module}
    with suppress(SyntaxError, ValueError):  # a compiled module, or a file that cannot be imported either
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # a file may try a relative import before an absolute one
                    source = resolve_name("." * node.level + (node.module or ""), package)
                    names |= {f"{source}.{each.name}" for each in node.names}
    return {each for name in names for each in accumulate(name.split("."), "{}.{}".format)}


def _told(error: Exception) -> str:
    """What went wrong, and the last line of the user's code (or of what it called) that it went wrong in."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"

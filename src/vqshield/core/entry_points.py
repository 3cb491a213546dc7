"""Import by name, when it is needed: functions of a user's module (mine:net), and optional libraries."""

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
from types import ModuleType
from typing import Any, TypeVar

from vqshield.core.errors import InvalidInputError, MissingExtraError, VqshieldError
from vqshield.core.files import file_sha256
from vqshield.core.settings import did_you_mean

Made = TypeVar("Made")
_NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_NOT_USERS = sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), Path(__file__).parent


def require(module: str, extra: str, package: str | None = None) -> ModuleType:
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
        import torch

        wanted = f"a {package or name} that imports with torch {torch.__version__}"
        raise MissingExtraError(wanted, extra) from error


def names_function(text: str) -> bool:
    """Whether a text has the form package.module:function, as "mine:net" and not "swrd:size=3"."""
    return _NAMED.fullmatch(text) is not None


def find_function(text: str, *, called: str) -> Callable[..., Any]:
    """The function package.module:function. The module is searched on Python's path, then in the current
    directory: a file there never hides an installed package. called: the name of the argument, for errors.
    """
    module, _, function = text.partition(":")
    if not names_function(text):
        raise InvalidInputError(
            f"{called}={text!r} is not a module and function; write them as in mine:net, for net in mine.py"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # for good: the function may import more when it is called
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"{called}={text}: no module {module!r} can be imported ({error}); it is looked for among the "
            f"installed packages, in PYTHONPATH and in the current directory, {here}"
        ) from error
    except Exception as error:  # a user's file may raise anything
        raise InvalidInputError(f"{called}={text}: importing {module} failed: {_reason(error)}") from error
    named: Callable[..., Any] | None = getattr(imported, function, None)
    if not callable(named):
        functions = [name for name, value in vars(imported).items() if callable(value)]
        raise InvalidInputError(
            f"{called}={text}: {module} has no function {function!r}{did_you_mean(function, functions)}"
        )
    return named


def call_function(make: Callable[[], Made], text: str, *, called: str) -> Made:
    """What a user's function returns without arguments; any error in it becomes an InvalidInputError."""
    try:
        return make()
    except VqshieldError:
        raise
    except Exception as error:
        function = text.partition(":")[2]
        raise InvalidInputError(f"{called}={text}: {function}() failed: {_reason(error)}") from error


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
    sums = [f"{name} {file_sha256(path)}" for name, path in files.items()]
    return hashlib.sha256("\n".join(sorted(sums)).encode()).hexdigest()


def _file_of(module: str) -> Path | None:
    """The file of a module, which is not imported here."""
    if module in sys.modules:
        loaded = getattr(sys.modules[module], "__file__", None)
        places = [Path(loaded)] if loaded else []
    else:
        below = module.replace(".", "/")
        places = [Path(folder, below + end) for folder in sys.path for end in ("/__init__.py", ".py")]
    return next((path for path in places if path.is_file()), None)


def _is_users(path: Path) -> bool:
    installed = {"site-packages", "dist-packages"}.intersection(path.parts)
    return not installed and not any(path.is_relative_to(folder) for folder in _NOT_USERS)


def _imported(module: str, path: Path) -> set[str]:
    """The names that a file imports and the packages that they are in; some may not be modules."""
    package, names = module if path.name == "__init__.py" else module.rpartition(".")[0], {module}
    with suppress(SyntaxError, ValueError):  # a compiled module, or a file that cannot be imported either
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                with suppress(ImportError):  # a file may try a relative import before an absolute one
                    source = resolve_name("." * node.level + (node.module or ""), package)
                    names |= {f"{source}.{alias.name}" for alias in node.names}
    return {part for name in names for part in accumulate(name.split("."), "{}.{}".format)}


def _reason(error: Exception) -> str:
    """The error, and the last line of code on its way."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"

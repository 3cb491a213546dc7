"""The CUDA kernels on a CPU: a C++ compiler builds their sources with emulated.hpp."""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from vqshield.quantization.kernels.cuda import program

FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-Wno-unknown-pragmas")


@cache
def compiler() -> str | None:
    """A C++ compiler's name, where there is one."""
    for name in ("c++", "g++", "clang++"):
        try:
            subprocess.run([name, "--version"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return name
    return None


class EmulatedProgram:
    """As program.Program, for images on a CPU."""

    def __init__(self, source: str, constants: dict[str, int], device: torch.device) -> None:
        self._library = _compiled(source, constants)

    @contextmanager
    def launching(self, argument: ctypes.Structure) -> Iterator[Callable[..., None]]:
        place = ctypes.byref(argument)

        def launch(name: str, width: int, height: int = 1, *, shared: int = 0, divided: int = 100) -> None:
            getattr(self._library, name)(place, width, height, shared)

        yield launch


def emulate(set_attribute: Callable[[object, str, object], None] = setattr) -> None:
    """From here on CUDA kernels serve images on a CPU, where there is a compiler."""
    set_attribute(program, "_can_run", lambda device: compiler() is not None)
    set_attribute(program, "most_shared", lambda device: 2**17)
    set_attribute(program, "Program", EmulatedProgram)


def _compiled(source: str, constants: dict[str, int]) -> ctypes.CDLL:
    """The kernels of a source for a CPU; what was loaded stays loaded when its file is gone."""
    name = compiler()
    assert name is not None
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        macros = [f"-D{key}={value}" for key, value in constants.items()]
        done = subprocess.run(
            [name, *FLAGS, *macros, "-x", "c++", str(program.SOURCES / source), "-o", str(library)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{source} could not be compiled for a CPU:\n{done.stderr}")
        return ctypes.CDLL(str(library))

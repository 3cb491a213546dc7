"""CUDA C++ kernels: compiled at run time for the GPU by NVRTC, which torch brings, and launched."""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

SOURCES = Path(__file__).parent
HEADERS = ("device.cuh", "noise.cuh", "products.cuh", "clusters.cuh")
_LEAST_CAPABILITY = (8, 0)  # of the matrix instructions
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_DIVIDED = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT


class Program:
    """The kernels of one source, compiled with some constants for one GPU.

    A kernel's argument is one structure. Blocks of all its kernels have as many threads as the constant
    THREADS says.
    """

    def __init__(self, source: str, constants: dict[str, int], device: torch.device) -> None:
        self.device, self._threads = device, constants["THREADS"]
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._library = _driver()
        with torch.cuda.device(device):
            major, minor = torch.cuda.get_device_capability(device)
            code = _compiled(source, constants, f"sm_{major}{minor}")
            self._module = ctypes.c_void_p()
            self._check(self._library.cuModuleLoadData(ctypes.byref(self._module), code))

    @contextmanager
    def launching(self, argument: ctypes.Structure) -> Iterator[Callable[..., None]]:
        """A function that launches kernels with that argument, which may change in between, on the stream
        that is current now.

        It takes a kernel's name, the width and height of its grid of blocks, and the bytes of shared memory
        of a block. `divided` is the percentage of a multiprocessor's memory that is shared memory and not
        cache, as the kernel's first launch has it; changing it between kernels takes time.
        """
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))

        def launch(name: str, width: int, height: int = 1, *, shared: int = 0, divided: int = 100) -> None:
            function = self._functions.get(name) or self._function(name, divided)
            size = width, height, 1, self._threads, 1, 1, shared
            self._check(self._library.cuLaunchKernel(function, *size, stream, arguments, None))

        with torch.cuda.device(self.device):
            stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
            yield launch

    def _function(self, name: str, divided: int) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self._check(self._library.cuModuleGetFunction(ctypes.byref(found), self._module, name.encode()))
        self._check(self._library.cuFuncSetAttribute(found, _MOST_SHARED, most_shared(self.device)))
        self._check(self._library.cuFuncSetAttribute(found, _DIVIDED, divided))
        self._functions[name] = found
        return found

    def _check(self, result: int) -> None:
        if result != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(result, ctypes.byref(text))
            said = text.value.decode() if text.value else f"error {result}"
            raise RuntimeError(f"a CUDA kernel could not be loaded or launched on {self.device}: {said}")


def compiled(source: str, constants: dict[str, int], device: torch.device) -> Program:
    """The program, compiled once."""
    return _program(source, tuple(constants.items()), device)


@cache
def _program(source: str, constants: tuple[tuple[str, int], ...], device: torch.device) -> Program:
    return Program(source, dict(constants), device)


def can_run(device: torch.device) -> bool:
    """Whether kernels can be compiled for that device; VQSHIELD_CUDA=off says no."""
    return os.environ.get("VQSHIELD_CUDA") != "off" and _can_run(device)


@cache
def _can_run(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    major, minor = torch.cuda.get_device_capability(device)
    return (major, minor) >= _LEAST_CAPABILITY and 10 * major + minor in _architectures()


def _architectures() -> list[int]:
    """The GPUs that the compiler knows, as in 90; empty without a compiler."""
    library = _nvrtc()
    if library is None:
        return []
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    known = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(known)
    return list(known)


@cache
def most_shared(device: torch.device) -> int:
    """Bytes of shared memory that one block may have."""
    most: int = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0)
    return most


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@cache
def _nvrtc() -> ctypes.CDLL | None:
    """The compiler of the CUDA version that torch was built with, if it is installed."""
    major = str(torch.version.cuda).partition(".")[0]
    if sys.platform == "win32":
        names = [f"nvrtc64_{major}0_0.dll"]
    else:
        name = f"libnvrtc.so.{major}"
        packages = Path(torch.__file__).parents[1] / "nvidia"
        names = [name, *map(str, packages.glob(f"*/lib/{name}"))]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _compiled(source: str, constants: dict[str, int], architecture: str) -> bytes:
    """The machine code of a source for an architecture."""
    library = _nvrtc()
    assert library is not None, "can_run says whether there is a compiler"
    texts = [(SOURCES / name).read_bytes() for name in HEADERS]
    # No value here is so small that flushing it to zero matters, nor is a root's last bit.
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "--ftz=true", "--prec-sqrt=false"]
    options += [f"--define-macro={name}={value}" for name, value in constants.items()]
    program = ctypes.c_void_p()
    count = len(HEADERS)
    library.nvrtcCreateProgram(
        ctypes.byref(program), (SOURCES / source).read_bytes(), source.encode(), count,
        (ctypes.c_char_p * count)(*texts), (ctypes.c_char_p * count)(*(name.encode() for name in HEADERS)),
    )  # fmt: skip
    try:
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if library.nvrtcCompileProgram(program, len(options), encoded) != 0:
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"{source} could not be compiled for {architecture}:\n{log.value.decode()}")
        size = ctypes.c_size_t()
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))

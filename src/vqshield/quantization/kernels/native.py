"""The CPU backend: the C++ kernel of native/, the same random bits, float32 results.

The package's build compiles one source for several processors into files next to this one; the best that the
processor runs is loaded at the first use. Threads work on different images, as many as
torch.get_num_threads() says, and over all callers at most one per core at a time.

After a fork the kernel makes new threads in the child. Nothing here uses torch's threads, which do not
survive a fork (see `vqshield.core.processes`).

The kernel checks the values of tensors in its threads. Where it refuses some, they are read here again to
name the value.
"""

import ctypes
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.fixed_point import FixedPoint
from vqshield.quantization.kernels.base import Backend, Recipe, Wanted, check_magnitudes, check_soft
from vqshield.quantization.noise import LARGEST_NORMAL, Draw
from vqshield.quantization.patches import Sliding

ISAS = ("generic", "avx2", "avx512")
"""The builds, each faster than the one before; "generic" is NEON on ARM."""

_FOLDER = Path(__file__).parent
_SUFFIX = EXTENSION_SUFFIXES[-1]  # as setup.py names them: without the version of Python
_DONE, _OUT_OF_MEMORY, _INVALID = 0, 1, 3
_INTERFACE = 4  # kInterface of native/kernel.hpp
MESSAGE = 160
_ANY_MEMORY = 2**62  # more than there is anywhere, and less than the interface's integers hold
_KINDS = {torch.float32: 0, torch.uint8: 1, torch.float16: 2, torch.bfloat16: 3}  # Pixels of pixels.hpp
_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}
_SHORT = 5e8  # multiply-adds: a call of at most a quarter of a second on one slow core


class _Job(ctypes.Structure):
    """VqJob of native/worker.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("images", "streams", "centres", "output", "labels", "stop")),
        *((name, ctypes.c_int64) for name in ("threads", "keep", "pixels", "batch", "channels")),
        *((name, ctypes.c_int64) for name in ("height", "width")),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("sliding", "size", "codes", "iterations")),
        *((name, ctypes.c_int64) for name in ("plus_plus", "noisy_weights", "bits")),
        *((name, ctypes.c_double) for name in ("bound", "tolerance", "sigma", "tau", "beta")),
        *((f"{name}_bytes", ctypes.c_int64) for name in ("images", "output")),
        *((f"{name}_count", ctypes.c_int64) for name in ("streams", "centres", "labels")),
        ("message", ctypes.c_char * MESSAGE),
    )


class _SoftJob(ctypes.Structure):
    """VqSoftJob of native/soft.hpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("images", "assigned", "streams", "centres", "slopes")),
        *((name, ctypes.c_void_p) for name in ("output", "stop")),
        *((name, ctypes.c_int64) for name in ("threads", "batch", "channels", "height", "width")),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("sliding", "size", "codes", "means", "noisy_weights")),
        *((name, ctypes.c_double) for name in ("tau", "beta", "temperature")),
        *((f"{name}_count", ctypes.c_int64) for name in ("images", "assigned", "streams", "centres")),
        *((f"{name}_count", ctypes.c_int64) for name in ("slopes", "output")),
        ("message", ctypes.c_char * MESSAGE),
    )


class Native(Backend):
    """The compiled kernel; isa picks a build, None the best for this processor.

    Normal values are float32 (error below 1e-6), so about one noisy value in a hundred is rounded to the grid
    point next to the reference's, 2^-23 away. From there on labels and sums are as exact as the reference's:
    16-bit numbers (on x86) decide which centre is nearest where they safely can, then float32, then float64.

    The builds avx2 and avx512 give the same bits. "generic" has no fused multiply-add, so the last bits of
    its normal values differ: of codebooks of natural images fewer than one value in 200 is another, by at
    most 1e-6. Without noise its codebooks are the same, bit for bit.

    Besides input and output each thread takes at most its share of recipe.memory for noisy patches; 12 bytes
    a patch, 20 with noisy weights; 48 bytes times codes times the values of a patch; of bytes and halves the
    image as float32; and less than 8 MiB.
    """

    name = "native"
    dtypes = (*checks.IMAGE_DTYPES, *checks.NARROW_DTYPES)
    looks_at_values = True

    def __init__(self, isa: str | None = None) -> None:
        self._isa = isa

    def missing(self, device: torch.device) -> str | None:
        if device.type != "cpu":
            return "its kernel runs on the CPU"
        try:
            self._library()
        except OSError as error:
            return f"no compiled kernel: {error}"
        return None

    def kernel_name(self, device: torch.device) -> str:
        return f"{self.name} {self._library().vq_isa().decode()}"

    def soft_gradient(
        self,
        padded: Tensor,
        assigned: Tensor,
        centres: Tensor,
        slopes: Tensor,
        recipe: Recipe,
        draw: Draw,
        *,
        temperature: float,
        means: bool,
    ) -> Tensor:
        """The gradient of the soft surrogate towards the padded images, of any number of centres (B, k, d).

        Forward and backward in one pass over the rows of patches, in float32: the only memory that grows with
        the number of patches n is 4·n bytes a thread. The builds' results differ in their last bits.

        Args:
            padded: images (B, q, h, w).
            assigned: the same images as the assignment sees them; recipe.tau adds noise to their patches.
            slopes: the gradient towards the smooth images, of the shape of padded.
            recipe: only its grid, tau, beta and weights_from are used.
            temperature: T of the softmax.
            means: whether a centre moves as the mean of the clean patches nearest to it does.
        """
        self._check_place(padded)
        check_soft(padded, assigned, centres, slopes, recipe, draw)
        images = plain(padded)
        tensors = {
            "images": images, "assigned": images if assigned is padded else plain(assigned),
            "streams": draw.streams.contiguous(), "centres": plain(centres), "slopes": plain(slopes),
            "output": torch.empty_like(images),
        }  # fmt: skip
        batch, channels, height, width = images.shape
        codes = centres.shape[1]
        job = _SoftJob(
            **places("count", tensors),
            threads=torch.get_num_threads(), batch=batch, channels=channels, height=height, width=width,
            seed=draw.seed, sliding=isinstance(recipe.grid, Sliding), size=recipe.grid.size, codes=codes,
            means=means, noisy_weights=recipe.weights_from == "noisy", tau=recipe.tau, beta=recipe.beta,
            temperature=temperature,
        )  # fmt: skip
        values = batch * recipe.count(padded) * recipe.dimensions(padded)
        try:
            self._call("vq_soft", job, 6 * values * codes, tensors)
        except InvalidInputError:
            check_magnitudes(images=padded, centres=centres)
            raise
        return _of_type(tensors["output"], padded.dtype)

    def _run(
        self, wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw
    ) -> Tensor:
        images, narrow = plain(padded), padded.dtype in checks.NARROW_DTYPES
        batch, channels, height, width = images.shape
        dimensions, count = recipe.dimensions(padded), recipe.count(padded)
        codes, threads = recipe.codes if centres is None else centres.shape[1], torch.get_num_threads()
        bound = 1 + LARGEST_NORMAL * max(recipe.sigma, recipe.tau)
        pixels, others = {"images": images}, {"streams": draw.streams.contiguous()}
        if centres is not None:
            others["centres"] = plain(centres)
        if wanted == "centres":
            result = others["centres"] = torch.empty(batch, codes, dimensions)
        else:
            result = pixels["output"] = torch.empty(images.shape, dtype=images.dtype)
        if wanted == "labels":
            result = others["labels"] = torch.empty(batch, count, dtype=torch.int32)
        job = _Job(
            **places("bytes", pixels), **places("count", others),
            threads=threads, keep=min(recipe.memory, _ANY_MEMORY) // threads, pixels=_KINDS[images.dtype],
            batch=batch, channels=channels, height=height, width=width, seed=draw.seed,
            sliding=isinstance(recipe.grid, Sliding), size=recipe.grid.size, codes=codes,
            iterations=recipe.iterations, plus_plus=recipe.init == "kmeans++",
            noisy_weights=recipe.weights_from == "noisy", bits=FixedPoint.fitting(dimensions, bound).bits,
            bound=bound, tolerance=recipe.tolerance, sigma=recipe.sigma, tau=recipe.tau, beta=recipe.beta,
        )  # fmt: skip
        finds = "vq_codebook" if wanted == "centres" else "vq_shield"
        function = "vq_quantize" if centres is not None else finds
        work = batch * count * dimensions * (codes * (recipe.iterations + 2) + 100)  # some 100 for the noise
        try:
            self._call(function, job, work, pixels | others)
        except InvalidInputError:
            checks.pixel_values(padded)
            if centres is not None:
                check_magnitudes(centres=centres)
            raise
        if wanted == "labels":
            return _of_type(result, torch.int64)
        return result if narrow else _of_type(result, padded.dtype)

    def _call(self, name: str, job: Any, work: float, memory: Mapping[str, Tensor]) -> None:
        """Call the kernel. A long call runs in a thread; this thread stays awake for Ctrl-C and stops it."""
        function = getattr(self._library(), name)
        if work <= _SHORT or threading.current_thread() is not threading.main_thread():
            _check(function(ctypes.byref(job)), job.message)
            return
        stop, done, status = ctypes.c_int32(0), threading.Event(), []
        job.stop = ctypes.addressof(stop)

        def run(_alive: object = (memory, stop)) -> None:  # holds what the kernel writes to until it ends
            status.append(function(ctypes.byref(job)))
            done.set()

        try:
            threading.Thread(target=run, name="vqshield-native").start()
            while not done.wait(0.2):  # where a signal does not end a wait, as on Windows, the timeout does
                pass
        finally:
            stop.value = 1
        _check(status[0], job.message)

    def _library(self) -> ctypes.CDLL:
        return _load(self._isa) if self._isa else _best()


def _check(status: int, message: bytes = b"") -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("the native kernel found no memory for its workspace")
    if status == _INVALID:
        raise InvalidInputError(message.decode(errors="replace"))
    assert status == _DONE, status


def plain(values: Tensor) -> Tensor:
    """Contiguous: bytes and halves as they are, others as float32. By numpy, here and below: torch's threads
    hang after a fork."""
    values = values.detach().resolve_neg()
    if values.dtype in _KINDS and values.is_contiguous():
        return values
    if values.dtype in checks.NARROW_DTYPES:  # numpy has no bfloat16, but whole numbers of its size
        whole = values.view(torch.uint8 if values.dtype == torch.uint8 else torch.int16)
        return torch.from_numpy(np.ascontiguousarray(whole.numpy())).view(values.dtype)
    with np.errstate(over="ignore"):  # the kernel refuses infinity
        return torch.from_numpy(np.ascontiguousarray(values.numpy(), dtype=np.float32))


def _of_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    if values.dtype == dtype:
        return values
    return torch.from_numpy(values.numpy().astype(_NUMPY_TYPES[dtype]))


def places(unit: Literal["bytes", "count"], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """A job's fields for tensors: the address of each, and its bytes or the count of its values."""
    fields = {}
    for name, tensor in tensors.items():
        fields[name] = tensor.data_ptr()
        fields[f"{name}_{unit}"] = tensor.nbytes if unit == "bytes" else tensor.numel()
    return fields


def available() -> list[str]:
    """The builds that this processor runs, the fastest last; an OSError if there is none."""
    builds = []
    for isa in ISAS[: int(_load("generic").vq_level()) + 1]:
        with suppress(OSError):  # left out where the compiler knew only older processors
            _load(isa)
            builds.append(isa)
    return builds


@cache
def _best() -> ctypes.CDLL:
    return _load(available()[-1])


@cache
def _load(isa: str) -> ctypes.CDLL:
    """One build, or an OSError that says why not."""
    path = _FOLDER / f"_native_{isa}{_SUFFIX}"
    if not path.is_file():
        raise OSError("no C++ compiler was at hand when vqshield was installed; get one and install it again")
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "vq_interface") or library.vq_interface() != _INTERFACE:
        raise OSError(f"{path.name} was built from another version's source; install vqshield again")
    jobs = {"codebook": _Job, "quantize": _Job, "shield": _Job, "soft": _SoftJob}
    for name, job in jobs.items():
        function = getattr(library, f"vq_{name}")
        function.argtypes, function.restype = [ctypes.POINTER(job)], ctypes.c_int32
    library.vq_isa.restype = ctypes.c_char_p
    return library

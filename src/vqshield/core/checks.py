"""Checks of settings and tensors; every message names the value found and what would be valid."""

import math
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import did_you_mean

IMAGE_DTYPES = (torch.float32, torch.float64)
NARROW_DTYPES = (torch.uint8, torch.float16, torch.bfloat16)
"""Bytes and halves, which are computed with as float32 (vqshield.quantization.pixels)."""
_ROUNDING = 1e-4  # a fortieth of a byte's step; attacks and resizes in single precision are far more exact
_ROUNDING_STEPS = 4  # of a dtype's own next to 1: a few operations in half precision

# How far the settings of a quantizer reach. Noise of 1 is as wide as a pixel's whole range, and up to there
# the float32 kernels agree with the exact reference.
MOST_CODES = 2**20
MOST_ITERATIONS = 10**6
MOST_NOISE = 1.0
MOST_BETA = 1e6


def whole(name: str, value: object, *, least: int, below: int | None = None) -> int:
    """An int (not a bool) in least … below−1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(f"{name}={value!r} should be a whole number, not {type(value).__name__}")
    if value < least or (below is not None and value >= below):
        limit = f">= {least}" if below is None else f"from {least} to {below - 1}"
        raise InvalidInputError(f"{name}={value} should be {limit}")
    return value


def real(name: str, value: object, *, least: float = 0.0, most: float = math.inf) -> float:
    """A finite number in least … most."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInputError(f"{name}={value!r} should be a number, not {type(value).__name__}")
    if not least <= value <= min(most, sys.float_info.max):
        limit = f">= {least:g} and finite" if math.isinf(most) else f"from {least:g} to {most:g}"
        raise InvalidInputError(f"{name}={value} should be {limit}")
    return float(value)


def flag(name: str, value: object) -> bool:
    """True or False, and no other type."""
    if not isinstance(value, bool):
        raise InvalidInputError(f"{name}={value!r} should be true or false")
    return value


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """One of the choices."""
    known = sorted(choices)
    if not isinstance(value, str) or value not in known:
        raise InvalidInputError(
            f"{name}={value!r} is unknown; choose one of {', '.join(known)}{did_you_mean(value, known)}"
        )
    return value


def as_tensor(name: str, values: object) -> Tensor:
    """A tensor as it is; a NumPy array or a list of numbers as a tensor."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"{name} of type {type(values).__name__} should be numbers in a tensor, a NumPy array or a list"
        ) from error


def labels(values: object) -> Tensor:
    """Labels as an int64 tensor on the CPU; whole numbers of any width are taken, and nothing else."""
    labels = as_tensor("labels", values)
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.is_complex():
        raise InvalidInputError(
            f"labels of dtype {labels.dtype} should be whole numbers, the class of each image; convert them "
            "with labels.long() if they are class numbers"
        )
    return labels.detach().cpu().long()


def image_batch(images: object, dtypes: tuple[torch.dtype, ...] = IMAGE_DTYPES) -> Tensor:
    """Images as (B, q, h, w), of one of the dtypes; pixel_values looks at what they hold."""
    if not isinstance(images, Tensor):
        raise InvalidInputError(f"images should be a torch tensor, not {type(images).__name__}")
    if images.dtype not in dtypes:
        advice = "; divide bytes by 255" if not images.is_floating_point() else ""
        valid = " or ".join(map(str, dtypes))
        raise InvalidInputError(f"images of dtype {images.dtype} should be {valid}{advice}")
    if images.dim() != 4:
        raise InvalidInputError(f"images of shape {tuple(images.shape)} should have 4 dimensions: B, q, h, w")
    if min(images.shape[1:]) == 0:
        raise InvalidInputError(f"images of shape {tuple(images.shape)} have no pixels")
    return images


def fits(name: str, side: int, images: Tensor) -> None:
    """A side in pixels that is no longer than the images'."""
    if side > min(images.shape[2:]):
        raise InvalidInputError(f"{name}={side} should be at most min(h, w)={min(images.shape[2:])}")


def rounding(dtype: torch.dtype) -> float:
    """How far outside of [0, 1] a value of a dtype may lie and still count as rounded."""
    return max(_ROUNDING, _ROUNDING_STEPS * torch.finfo(dtype).eps)


def pixel_values(images: Tensor) -> None:
    """All values in [0, 1], none of them nan; of bytes any."""
    if images.dtype != torch.uint8:
        _judge_range(*_extremes(images)[0], images.dtype, 0.0)


def inside(images: Tensor, *centres: Tensor, limit: float = math.inf) -> Tensor:
    """The images, with values a rounding error outside of [0, 1] clamped; bytes always lie inside.

    Centers that are given as well are checked with the same GPU sync: at most limit in size.

    Raises:
        InvalidInputError: a value further outside, or nan; `later` defers the error.
    """
    if images.dtype == torch.uint8 and not centres:
        return images
    waits = [*(_put_off("centres", each, limit) for each in centres), _put_off("images", images)]
    if all(waits):
        return images.clamp(0, 1).nan_to_num_(0.0)
    (low, high), *others = _extremes(images, *centres)
    for ends in others:
        _judge_within("centres", *ends, limit)
    _judge_range(low, high, images.dtype, rounding(images.dtype))
    return images if low >= 0 and high <= 1 else images.clamp(0, 1)


def within(name: str, values: Tensor, limit: float) -> None:
    """All values finite, and at most limit in size."""
    if not _put_off(name, values, limit):
        _judge_within(name, *_extremes(values)[0], limit)


def finite(name: str, values: Tensor) -> None:
    """No nan and no infinity."""
    if not bool(torch.isfinite(values).all()):
        raise InvalidInputError(f"{name} contain nan or infinity; every value should be finite")


def per_image(name: str, values: object, images: Tensor) -> Tensor:
    """Whole numbers (labels, streams) as an int64 tensor (B,), one per image, on the images' device."""
    if not isinstance(values, Tensor) or values.dtype != torch.int64:
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise InvalidInputError(f"{name} of type {kind} should be an int64 tensor")
    if values.shape != images.shape[:1]:
        shape = tuple(values.shape)
        raise InvalidInputError(f"{name} of shape {shape} should be ({len(images)},): one per image")
    return values.to(images.device)


def _judge_range(low: float, high: float, dtype: torch.dtype, slack: float) -> None:
    if math.isnan(low) or math.isnan(high):
        raise InvalidInputError("images contain nan; every value should lie in [0, 1]")
    if low < -slack or high > 1 + slack:
        wrong = low if low < -slack else high
        digits = 17 if dtype == torch.float64 else 9  # enough to distinguish it from every other number
        raise InvalidInputError(f"images contain {wrong:.{digits}g}; every value should lie in [0, 1]")


def _judge_within(name: str, low: float, high: float, limit: float) -> None:
    wrong = low if not low >= -limit else high  # nan is never >= anything
    if not -limit <= wrong <= limit:
        raise InvalidInputError(f"{name} contain {wrong:g}; all values should lie in ±{limit:g}")


def _extremes(*tensors: Tensor) -> list[tuple[float, float]]:
    """The least and the largest value of each, 0 and 0 of an empty one; nan where there is one."""
    filled = [each.detach() for each in tensors if each.numel()]
    together = len({each.device for each in filled}) == 1
    pairs = iter(_read(filled) if together else [_read([each])[0] for each in filled])
    return [next(pairs) if each.numel() else (0.0, 0.0) for each in tensors]


def _read(tensors: list[Tensor]) -> list[tuple[float, float]]:
    """The least and the largest value of each of these on one device, with one GPU sync for all."""
    if tensors[0].device.type == "cpu":
        return [_ends(each) for each in tensors]
    pairs = torch.stack([torch.stack(torch.aminmax(each)) for each in tensors]).tolist()
    return [(low, high) for low, high in pairs]


def _ends(values: Tensor) -> tuple[float, float]:
    if values.dtype in (torch.float16, torch.bfloat16):
        low, high = torch.aminmax(values)
        return float(low), float(high)
    array = values.numpy()  # torch's threads would keep spinning for a moment and slow the kernel's threads
    return float(array.min()), float(array.max())


class _State(threading.local):
    later: "Later | None" = None


_state = _State()


class Later:
    """The deferred checks of images and centers on a GPU."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, float, torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}

    def note(self, name: str, values: Tensor, limit: float) -> None:
        """Defer the check of images, or of others that should be at most limit in size."""
        if values.numel():
            key = name, limit, values.dtype, values.device
            self._noted.setdefault(key, []).append(torch.aminmax(values.detach()))

    def settle(self) -> None:
        """Check everything noted since the last call; waits for the GPU.

        Raises:
            InvalidInputError: as `inside` and `within` would have raised at once.
        """
        noted, self._noted = self._noted, {}
        for (name, limit, dtype, _), pairs in noted.items():
            lows, highs = zip(*pairs, strict=True)
            low, high = torch.stack([torch.stack(lows).amin(), torch.stack(highs).amax()]).tolist()
            if name == "images":
                _judge_range(low, high, dtype, rounding(dtype))
            else:
                _judge_within(name, low, high, limit)


@contextmanager
def later() -> Iterator[Later]:
    """Within this context and thread, images and centers on a GPU are checked when `settle` is called, and at
    the end: reading values forces a GPU sync. Until then images are clamped to [0, 1], with nan as 0.

    On a CPU nothing is deferred.
    """
    before, _state.later = _state.later, Later()
    try:
        yield _state.later
        _state.later.settle()
    finally:
        _state.later = before


def _put_off(name: str, values: Tensor, limit: float = math.inf) -> bool:
    """Whether the values will be checked later."""
    if _state.later is None or not _waits(values):
        return False
    _state.later.note(name, values, limit)
    return True


def _waits(values: Tensor) -> bool:
    """Whether reading values waits for a GPU."""
    return values.device.type != "cpu"

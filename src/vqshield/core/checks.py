"""Checks of settings and tensors; every message names the value found and what would be valid."""

import math
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import did_you_mean

IMAGE_DTYPES = (torch.float32, torch.float64)
NARROW_DTYPES = (torch.uint8, torch.float16, torch.bfloat16)
"""Bytes and halves, which are computed with as float32 (vqshield.quantization.pixels)."""
_ROUNDING = 1e-4  # a fortieth of a byte's step; attacks and resizes in single precision leave far less
_ROUNDING_STEPS = 4  # of a dtype's own beside 1: what a few operations in half precision leave

# How far the settings of a quantizer reach. Noise of 1 is as wide as a pixel's whole range, and up to there
# the float32 kernels agree with the exact reference.
MOST_CODES = 2**20
MOST_ITERATIONS = 10**6
MOST_NOISE = 1.0
MOST_BETA = 1e6


def whole(name: str, value: object, *, least: int, below: int | None = None) -> int:
    """An int (no bool, no float) in least … below−1."""
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
    """True or False, nothing that merely counts as one of them."""
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
    found = as_tensor("labels", values)
    if found.dtype == torch.bool or found.is_floating_point() or found.is_complex():
        raise InvalidInputError(
            f"labels of dtype {found.dtype} should be whole numbers, the class of each image; convert them "
            "with labels.long() if they are class numbers"
        )
    return found.detach().cpu().long()


def image_batch(images: object, dtypes: tuple[torch.dtype, ...] = IMAGE_DTYPES) -> Tensor:
    """Images as (B, q, h, w), of one of the dtypes; pixel_values looks at what they hold."""
    if not isinstance(images, Tensor):
        raise InvalidInputError(f"images should be a torch tensor, not {type(images).__name__}")
    if images.dtype not in dtypes:
        advice = "; divide bytes by 255" if not images.is_floating_point() else ""
        raise InvalidInputError(
            f"images of dtype {images.dtype} should be {' or '.join(map(str, dtypes))}{advice}"
        )
    if images.dim() != 4:
        raise InvalidInputError(
            f"images of shape {tuple(images.shape)} should have 4 dimensions: (B, q, h, w)"
        )
    if min(images.shape[1:]) == 0:
        raise InvalidInputError(f"images of shape {tuple(images.shape)} have no pixels")
    return images


def rounding(dtype: torch.dtype) -> float:
    """How far outside of [0, 1] values of a dtype may lie to count as rounded: what is further out is meant.

    Example:
        >>> from vqshield.core.checks import rounding
        >>> rounding(torch.float32), rounding(torch.bfloat16)
        (0.0001, 0.03125)
    """
    return max(_ROUNDING, _ROUNDING_STEPS * torch.finfo(dtype).eps)


def pixel_values(images: Tensor) -> None:
    """All values in [0, 1], none of them nan; of bytes any."""
    if images.dtype != torch.uint8:
        _check_range(images, 0.0)


def inside(images: Tensor) -> Tensor:
    """The images, with values a rounding outside of [0, 1] clamped; they are themselves where all lie inside,
    as bytes always do.

    Raises:
        InvalidInputError: a value further outside, or nan; `later` puts that off.
    """
    if images.dtype == torch.uint8:
        return images
    if _put_off("images", images):
        return _clamped_for_now(images)
    within_unit = _check_range(images, rounding(images.dtype))
    return images if within_unit else images.clamp(0, 1)


def inside_with_centres(images: Tensor, centres: Tensor) -> tuple[Tensor, tuple[float, float] | None]:
    """As `inside`, and the least and the largest value of the centres: one look, where two wait twice.

    Raises:
        InvalidInputError: as of `inside`, or centres that are not finite; `later` puts both off, and what the
            centres hold is then not known: None.
    """
    if _put_off("centres", centres) and _put_off("images", images):
        return _clamped_for_now(images), None
    of_images, of_centres = _extremes(images, centres)
    _judge_finite("centres", *of_centres)
    within_unit = _judge_range(*of_images, images.dtype, rounding(images.dtype))
    return images if within_unit else images.clamp(0, 1), of_centres


def _check_range(images: Tensor, slack: float) -> bool:
    """Whether all values lie in [0, 1]; raises where one is further outside than that much."""
    (found,) = _extremes(images)
    return _judge_range(*found, images.dtype, slack)


def _judge_range(low: float, high: float, dtype: torch.dtype, slack: float) -> bool:
    if math.isnan(low) or math.isnan(high):
        raise InvalidInputError("images contain nan; every value should lie in [0, 1]")
    if low < -slack or high > 1 + slack:
        wrong = low if low < -slack else high
        digits = 17 if dtype == torch.float64 else 9  # enough to tell it from every other number
        raise InvalidInputError(f"images contain {wrong:.{digits}g}; every value should lie in [0, 1]")
    return low >= 0 and high <= 1


def _judge_finite(name: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidInputError(f"{name} contain nan or infinity; every value should be finite")


def _extremes(*tensors: Tensor) -> list[tuple[float, float]]:
    """The least and the largest value of each, 0 and 0 of an empty one; nan where there is one."""
    found = {id(each): _state.known.get(id(each), (0.0, 0.0)) for each in tensors}
    unknown = [each for each in tensors if each.numel() and id(each) not in _state.known]
    for device in dict.fromkeys(each.device for each in unknown):
        here = [each for each in unknown if each.device == device]
        found |= zip(map(id, here), _read([each.detach() for each in here]), strict=True)
    return [found[id(each)] for each in tensors]


def _read(tensors: list[Tensor]) -> list[tuple[float, float]]:
    """The least and the largest value of each of these on one device, for which a GPU is waited for once."""
    if tensors[0].device.type == "cpu":
        # Not torch's own: its threads would go on spinning for a moment, in the way of the kernel's threads.
        return [_ends(each) for each in tensors]
    pairs = torch.stack([torch.stack(torch.aminmax(each)) for each in tensors]).tolist()
    return [(low, high) for low, high in pairs]


def _ends(values: Tensor) -> tuple[float, float]:
    if values.dtype not in (torch.float16, torch.bfloat16):
        array = values.numpy()
        return float(array.min()), float(array.max())
    # Halves, of which numpy knows one kind, and that slowly. Their bits are in the order of the numbers where
    # none has a sign, and infinity and nan are behind them.
    bits = values.view(torch.int16).numpy()
    least, most = bits.min(), bits.max()
    if least < 0:
        bits = _in_order(bits)
        least, most = bits.min(), bits.max()
    low, high = torch.from_numpy(_in_order(np.array([least, most]))).view(values.dtype).tolist()
    return low, high


def _in_order(bits: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    """The bits of halves, those with a sign turned round: then the order is right with these as well. Twice
    turned is as before."""
    return bits ^ (bits >> 15 & 0x7FFF)


class _State(threading.local):
    known: Mapping[int, tuple[float, float]] = {}  # by identity
    later: "Later | None" = None


_state = _State()


@contextmanager
def known(*extremes: tuple[Tensor, tuple[float, float]]) -> Iterator[None]:
    """In here, in this thread, these very tensors are known to hold values from the least to the largest
    given: checks of them take these, and do not wait for the device to look again."""
    before = _state.known
    _state.known = {**before, **{id(tensor): pair for tensor, pair in extremes}}
    try:
        yield
    finally:
        _state.known = before


class Later:
    """What is still to be looked at: the values of images, and of centres given with them, on a GPU."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, float, torch.dtype, torch.device], list[tuple[Tensor, Tensor]]] = {}

    def note(self, name: str, values: Tensor, limit: float) -> None:
        """Values of images, or others that should be at most limit in size (infinite: finite)."""
        if values.numel():
            key = name, limit, values.dtype, values.device
            self._noted.setdefault(key, []).append(torch.aminmax(values.detach()))

    def settle(self) -> None:
        """Look at everything since the last look, and wait for it.

        Raises:
            InvalidInputError: as `inside` and its kin would have raised at once.
        """
        noted, self._noted = self._noted, {}
        for (name, limit, dtype, _), pairs in noted.items():
            lows, highs = zip(*pairs, strict=True)
            low, high = torch.stack([torch.stack(lows).amin(), torch.stack(highs).amax()]).tolist()
            if name == "images":
                _judge_range(low, high, dtype, rounding(dtype))
            elif math.isinf(limit):
                _judge_finite(name, low, high)
            else:
                _judge_within(name, low, high, limit)


@contextmanager
def later() -> Iterator[Later]:
    """In here, in this thread, images and centres on a GPU are looked at when `settle` is called, and at the
    end: looking waits for all that the GPU has to do before, which then has nothing to do until the next
    work arrives. Until then they are computed with, their values clamped to [0, 1] and nan as 0.

    On a CPU there is nothing to wait for, and wrong values are refused at once, as ever.
    """
    before, _state.later = _state.later, Later()
    try:
        yield _state.later
        _state.later.settle()
    finally:
        _state.later = before


def _put_off(name: str, values: Tensor, limit: float = math.inf) -> bool:
    """Whether the values will be looked at later."""
    if _state.later is None or not _waits(values):
        return False
    _state.later.note(name, values, limit)
    return True


def _waits(values: Tensor) -> bool:
    """Whether looking at values waits for anything."""
    return values.device.type != "cpu"


def _clamped_for_now(images: Tensor) -> Tensor:
    return images.clamp(0, 1).nan_to_num_(0.0)


def within(name: str, values: Tensor, limit: float) -> None:
    """All values finite, and at most limit in size."""
    if not values.numel() or (id(values) not in _state.known and _put_off(name, values, limit)):
        return
    ((low, high),) = _extremes(values)
    _judge_within(name, low, high, limit)


def _judge_within(name: str, low: float, high: float, limit: float) -> None:
    wrong = low if not low >= -limit else high  # nan is never >= anything
    if not -limit <= wrong <= limit:
        raise InvalidInputError(
            f"{name} contain {wrong:g}; every value should lie in [{-limit:g}, {limit:g}]"
        )


def finite(name: str, values: Tensor) -> None:
    """No nan and no infinity."""
    if not bool(torch.isfinite(values).all()):
        raise InvalidInputError(f"{name} contain nan or infinity; every value should be finite")


def per_image(name: str, values: object, images: Tensor) -> Tensor:
    """Whole numbers (labels, streams) as an int64 tensor (B,), one per image, on the images' device."""
    if not isinstance(values, Tensor) or values.dtype != torch.int64:
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise InvalidInputError(f"{name} of type {found} should be an int64 tensor")
    if values.shape != images.shape[:1]:
        raise InvalidInputError(
            f"{name} of shape {tuple(values.shape)} should be ({len(images)},): one per image"
        )
    return values.to(images.device)

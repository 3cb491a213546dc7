"""Any function from images to images as a defense: how to use a defense from elsewhere."""

import copy
import hashlib
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from vqshield.core import checks
from vqshield.core.entry_points import call_function, find_function, function_digest
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed, torch_seeded
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, DefenseOptions, ImageFunction
from vqshield.models.calling import evaluating
from vqshield.quantization import operators

_PROBED = 2  # images that show whether there is a gradient
_DIGITS = 16  # of the source's checksum, enough to tell versions apart


class Preprocessor(Defense):
    """A module or function of your own from images to images, random or not, differentiable or not.

    Its gradient is that of an attribute `surrogate`, a differentiable function images → images, if it has
    one; else torch's own, where a probe finds one (finite, and not zero everywhere); else the identity
    (surrogate "ste"), or a network that learned to imitate it (surrogate "learned").

    Torch's, NumPy's and Python's global generators are seeded from the seed and the stream numbers for each
    call, and restored after it: a run repeats. An image's draw depends on the batch around it; a function
    with a generator of its own cannot be repeated. A module is called in eval mode.

    Args:
        function: takes float images (B, q, h, w) in [0, 1], returns images of that shape, dtype and device.
        name: its name in records (default: the function's own name).
        **options: seed, streams, range, surrogate, as of every `Defense`.

    Raises:
        InvalidInputError: the function cannot be called; at a call, it returns something else than images.

    Example:
        >>> def darker(images):
        ...     return images * 0.9
        >>> defense = vq.Preprocessor(darker, seed=0)
        >>> vq.Defended(classifier, defense)(images).shape  # or Defended(classifier, darker)
        torch.Size([8, 10])
    """

    def __init__(
        self, function: ImageFunction, *, name: str | None = None, **options: Unpack[DefenseOptions]
    ) -> None:
        super().__init__(**options)
        if not callable(function):
            raise InvalidInputError(
                f"a preprocessor should be a module or a function from images to images, not "
                f"{type(function).__name__}"
            )
        surrogate = getattr(function, "surrogate", None)
        if surrogate is not None and not callable(surrogate):
            raise InvalidInputError(
                f"surrogate of {_name_of(function)} should be a function from images to images, not "
                f"{type(surrogate).__name__}"
            )
        self.function = function
        self.name = _name_of(function) if name is None else name
        self._differentiable: bool | None = None
        self._text: str | None = None  # `preprocessor_from` knows it

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        streams = self.streams(images, streams)
        images = operators.inside(images.detach())
        if len(images) == 0:
            return images.clone()
        with torch.no_grad():
            shielded = self._called(self.function, images, streams)
        low, high = (float(end) for end in torch.aminmax(self._check_shape(shielded, images, "it")))
        slack = checks.rounding(shielded.dtype)
        if not (low >= -slack and high <= 1 + slack):  # nan is neither
            raise InvalidInputError(
                f"defense {self.name} gave values from {low:.6g} to {high:.6g}; every value should lie in "
                "[0, 1]: clamp them, or divide bytes by 255; normalisation belongs inside the classifier"
            )
        return shielded.detach()

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor | None:
        """Its author's surrogate, or the function itself where torch can differentiate it."""
        own: ImageFunction | None = getattr(self.function, "surrogate", None)
        if own is None and self._differentiable is None:  # tried once, with the first images
            points = images[:_PROBED].detach().clone().requires_grad_()
            self._differentiable = self._has_gradient(points, streams[:_PROBED])
        if own is None and not self._differentiable:
            return None
        with torch.enable_grad():
            shielded = self._called(own or self.function, images, streams)
        return self._check_shape(shielded, images, "its surrogate" if own else "it")

    @property
    def spec(self) -> str | None:
        """The package.module:function that it was made from; None for a function that was passed itself."""
        return self._text

    def settings(self) -> dict[str, Setting]:
        settings: dict[str, Setting] = {"function": self.name}
        digest = _digest_of(self.name, self.function)
        return settings if digest is None else {**settings, "source": digest[:_DIGITS]}

    def reseeded(self, seed: int) -> Self:
        """The same function with another seed; a copy of it would start its own counters again."""
        other = copy.deepcopy(self, {id(self.function): self.function})
        other._take_seed(seed)
        return other

    def _called(self, function: ImageFunction, images: Tensor, streams: Tensor) -> Tensor:
        seed = derived_seed(self.seed, *streams.tolist())
        with evaluating(function), _seeded(seed, images.device):
            return function(images)

    def _has_gradient(self, points: Tensor, streams: Tensor) -> bool:
        """Whether torch differentiates the function there."""
        weights = torch.linspace(0.5, 1.5, points.numel(), dtype=points.dtype, device=points.device)
        with torch.enable_grad():
            try:
                shielded = self._called(self.function, points, streams)
                if not shielded.requires_grad:
                    return False
                loss = (shielded * weights.view_as(shielded)).sum()
                (slope,) = torch.autograd.grad(loss, points, allow_unused=True)
            except Exception:  # it works without gradients, so it is gradients that it cannot take
                return False
        return slope is not None and bool(slope.isfinite().all()) and bool((slope != 0).any())

    def _check_shape(self, shielded: object, images: Tensor, what: str) -> Tensor:
        if not isinstance(shielded, Tensor):
            raise InvalidInputError(
                f"defense {self.name}: {what} gave a {type(shielded).__name__}; it should give images, "
                "a tensor"
            )
        for part, found, expected in (
            ("shape", tuple(shielded.shape), tuple(images.shape)),
            ("dtype", shielded.dtype, images.dtype),
            ("device", shielded.device, images.device),
        ):
            if found != expected:
                raise InvalidInputError(
                    f"defense {self.name}: {what} gave images of {part} {found}; they should have {part} "
                    f"{expected}, like its input"
                )
        return shielded


def preprocessor_from(text: str, *, seed: int | None) -> Defense:
    """The defense that package.module:function names.

    Args:
        text: as in mine:jpeg, for jpeg in mine.py. A function that needs no arguments is called, and what it
            returns is the preprocessor; any other function or module is the preprocessor itself.
        seed: of the defense; None takes one from the operating system.

    Raises:
        InvalidInputError: there is no such function, it fails, or it returns no function.

    Example:
        >>> vq.defenses.preprocessor_from("torch:round", seed=0)
        Preprocessor(function='torch:round', source='...', seed=0)
    """
    named = find_function(text, called="defense")
    function = _call_once(named, text) if _needs_no_arguments(named) else named
    if isinstance(function, Defense):
        return function if seed is None else function.reseeded(seed)
    if not callable(function):
        raise InvalidInputError(
            f"defense={text} returned {type(function).__name__}; it should return a module or a function "
            "from images to images, or take images itself"
        )
    if isinstance(function, nn.Module):
        function.requires_grad_(False)
    defense = Preprocessor(function, name=text, seed=seed)
    defense._text = text
    return defense


@lru_cache(maxsize=16)
def _call_once(make: Callable[[], object], text: str) -> object:
    """What it returns; kept, since a run makes its defense many times, and making it may read weights."""
    return call_function(make, text, called="defense")


def _needs_no_arguments(named: Callable[..., object]) -> bool:
    if isinstance(named, nn.Module):
        return False
    try:
        inspect.signature(named).bind()
    except (TypeError, ValueError):  # it needs some, or is written in C and does not say
        return False
    return True


def _name_of(function: object) -> str:
    kind = function if hasattr(function, "__qualname__") else type(function)
    return str(getattr(kind, "__qualname__", "function")).rpartition(".")[2].strip("<>")


def _digest_of(name: str, function: object) -> str | None:
    """Of the user's files for package.module:function, else of the source, where Python knows it."""
    if ":" in name:
        return function_digest(name)
    try:
        kind = function if inspect.isroutine(function) else type(function)
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError):
        return None


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed all global generators, and restore them afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch_seeded(seed, device):
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)

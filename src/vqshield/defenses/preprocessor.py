"""Any function from images to images as a defense: the door for what others have written."""

import hashlib
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from vqshield.core import checks
from vqshield.core.entry_points import call_function, find_function, function_digest
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, Gradient
from vqshield.models.calling import evaluating
from vqshield.quantization import operators

ImageFunction = Callable[[Tensor], Tensor]
"""Images (B, q, h, w) in [0, 1] → images of that shape, dtype and device, in [0, 1]."""
_PROBED = 2  # images that show whether there is a gradient
_DIGITS = 16  # of the source's checksum, enough to tell versions apart


class Preprocessor(Defense):
    """A module or function of your own from images to images, random or not, differentiable or not.

    Its gradient is, in this order: that of its own `surrogate`, a function images → images that can be
    differentiated, where the function or module has such an attribute; torch's own, where a probe shows that
    there is one (finite, and not zero everywhere); none, and then the identity stands in (surrogate "ste"),
    or a network that learned to imitate it (surrogate "learned").

    Its randomness is its own. Torch's, NumPy's and Python's global generators are seeded from the seed and
    the stream numbers for each call, and are afterwards as they were: a run repeats. An image's draw depends
    on the batch around it, since nobody else can hand out the draws of a function; one that has a generator
    of its own cannot be repeated. A module is asked in eval mode.

    Args:
        function: takes float images (B, q, h, w) in [0, 1], returns images of that shape, dtype and device.
        name: what records call it; without it, the function's own name.
        seed, streams, range, surrogate: as of every Defense.

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
        self,
        function: ImageFunction,
        *,
        name: str | None = None,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        if not callable(function):
            raise InvalidInputError(
                f"a preprocessor should be a module or a function from images to images, not "
                f"{type(function).__name__}"
            )
        given = getattr(function, "surrogate", None)
        if given is not None and not callable(given):
            raise InvalidInputError(
                f"surrogate of {_name_of(function)} should be a function from images to images, not "
                f"{type(given).__name__}"
            )
        self.function = function
        self.name = _name_of(function) if name is None else name
        self._differentiable: bool | None = None
        self._text: str | None = None  # `preprocessor_from` knows it

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """What the function makes of the images, checked; given stream numbers repeat a draw."""
        streams = self.streams(images, streams)
        images = operators.inside(images.detach())
        if len(images) == 0:
            return images.clone()
        with torch.no_grad():
            found = self._called(self.function, images, streams)
        self._check_output(found, images)
        return found.detach()

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor | None:
        """What its author gives, or the function itself where torch can differentiate it."""
        given: ImageFunction | None = getattr(self.function, "surrogate", None)
        if given is None and not self._has_gradient(images, streams):
            return None
        with torch.enable_grad():
            found = self._called(given or self.function, images, streams)
        self._check_shape(found, images, "its surrogate" if given else "it")
        return found

    @property
    def spec(self) -> str | None:
        """The package.module:function that it was made from; None for a function that was passed itself."""
        return self._text

    def settings(self) -> dict[str, Setting]:
        """Which function; the checksum of its source tells versions apart."""
        settings: dict[str, Setting] = {"function": self.name}
        digest = _digest_of(self.name, self.function)
        if digest is not None:
            settings["source"] = digest[:_DIGITS]
        return settings

    def reseeded(self, seed: int) -> Self:
        """The same function with another seed; not a copy of it, in which a count of its calls would begin
        again.
        """
        other = type(self)(
            self.function, name=self.name, seed=seed, streams=self._streams_from, range=self._range,
            surrogate=self._given_surrogate,
        )  # fmt: skip
        other._differentiable, other._text = self._differentiable, self._text
        return other

    def _called(self, function: ImageFunction, images: Tensor, streams: Tensor) -> Tensor:
        seed = derived_seed(self.seed, *streams.tolist())
        with evaluating(function), _seeded(seed, images.device):
            return function(images)

    def _has_gradient(self, images: Tensor, streams: Tensor) -> bool:
        """Found out once, with the first images."""
        if self._differentiable is None:
            points = images[:_PROBED].detach().clone().requires_grad_()
            self._differentiable = self._probe(points, streams[:_PROBED])
        return self._differentiable

    def _probe(self, points: Tensor, streams: Tensor) -> bool:
        weights = torch.linspace(0.5, 1.5, points.numel(), dtype=points.dtype, device=points.device)
        with torch.enable_grad():
            try:
                found = self._called(self.function, points, streams)
                if not found.requires_grad:
                    return False
                loss = (found * weights.view_as(found)).sum()
                (slope,) = torch.autograd.grad(loss, points, allow_unused=True)
            except Exception:  # it works without gradients, so it is gradients that it cannot take
                return False
        return slope is not None and bool(slope.isfinite().all()) and bool((slope != 0).any())

    def _check_output(self, found: object, images: Tensor) -> None:
        checked = self._check_shape(found, images, "it")
        low, high = (float(each) for each in torch.aminmax(checked))
        slack = checks.rounding(checked.dtype)
        if not (low >= -slack and high <= 1 + slack):  # nan is neither
            raise InvalidInputError(
                f"defense {self.name} gave values from {low:.6g} to {high:.6g}; every value should lie in "
                "[0, 1]: clamp them, or divide bytes by 255; normalisation belongs inside the classifier"
            )

    def _check_shape(self, found: object, images: Tensor, what: str) -> Tensor:
        if not isinstance(found, Tensor):
            raise InvalidInputError(
                f"defense {self.name}: {what} gave a {type(found).__name__}; it should give images, a tensor"
            )
        for part in ("shape", "dtype", "device"):
            is_, should = getattr(found, part), getattr(images, part)
            if is_ != should:
                shown = [tuple(each) if part == "shape" else each for each in (is_, should)]
                raise InvalidInputError(
                    f"defense {self.name}: {what} gave images of {part} {shown[0]}; they should have {part} "
                    f"{shown[1]}, as they came"
                )
        return found


def preprocessor_from(text: str, *, seed: int | None, called: str = "defense") -> Defense:
    """The defense that package.module:function names.

    What the name stands for is called without arguments where that is possible, and what it returns is the
    preprocessor; otherwise it is the preprocessor itself. A module (not its class) is always itself.

    Args:
        text: as in mine:jpeg, for jpeg in mine.py.
        seed: of the defense; None takes one from the operating system.
        called: what the text is called where it was given, for messages.

    Raises:
        InvalidInputError: there is no such function, it fails, or it returns no function.

    Example:
        >>> vq.defenses.preprocessor_from("torch:round", seed=0)
        Preprocessor(function='torch:round', source='...', seed=0)
    """
    named = find_function(text, called=called)
    found = _made(named, text, called) if _is_maker(named) else named
    if isinstance(found, Defense):
        return found if seed is None else found.reseeded(seed)
    if not callable(found):
        raise InvalidInputError(
            f"{called}={text} returned {type(found).__name__}; it should return a module or a function from "
            "images to images, or take images itself"
        )
    if isinstance(found, nn.Module):
        found.requires_grad_(False)
    made = Preprocessor(found, name=text, seed=seed)
    made._text = text
    return made


@lru_cache(maxsize=16)
def _made(make: Callable[[], Any], text: str, called: str) -> Any:
    """What it returns, once: a run asks for its defense again and again, and it may read weights."""
    return call_function(make, text, called=called)


def _is_maker(named: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments; a module is the preprocessor itself."""
    if isinstance(named, nn.Module):
        return False
    try:
        inspect.signature(named).bind()
    except TypeError:  # it needs some
        return False
    except ValueError:  # nobody knows what it takes, as of functions written in C
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
        kind: Any = function if inspect.isroutine(function) else type(function)
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError):
        return None


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """All global generators begin at that seed here, and are afterwards as they were."""
    on_gpu = [device] if device.type == "cuda" else []
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=on_gpu):
        torch.default_generator.manual_seed(seed)
        for each in on_gpu:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)

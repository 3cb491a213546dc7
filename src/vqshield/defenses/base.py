"""What a defense is: images in, images of the same shape out, with randomness that a seed decides."""

import copy
import importlib
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Required, Self, TypedDict, cast, get_args

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from vqshield.core import checks, processes
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting
from vqshield.quantization import operators
from vqshield.quantization.pixels import Range, batch_of, restore_dtype_and_shape, widened

Streams = Literal["fresh", "content"]
ImageFunction = Callable[[Tensor], Tensor]
"""Images (B, q, h, w) in [0, 1] → images of that shape, dtype and device, in [0, 1]."""


class CertificateTerms(TypedDict, total=False):
    """What a worst-case certificate depends on: the arguments of `vqshield.certificates.Coverage.of`.

    Example:
        >>> vq.GaussianNoise(sigma=0.1).certificate_terms()["tau"]
        0.1
    """

    kind: Required[str]
    size: Required[int]
    sigma: Required[float]
    tau: Required[float]
    weights_from: str
    beta: float
    padding: str
    noise: str
    shared: bool


@dataclass(frozen=True)
class Shielding:
    """One draw of a defense.

    Args:
        images: the defense's input, (B, q, h, w).
        quantized: its output, of the same shape.
        defense: the defense.
        streams: the stream number of each image, (B,).
        centres: a quantizer's codebook of this draw, (B, k, d); None: a surrogate that needs it finds it.

    Example:
        >>> defense, streams = vq.PRD(seed=0), torch.arange(8)
        >>> quantized = defense(images, streams=streams)
        >>> draw = vq.surrogates.Shielding(images, quantized, defense, streams)
        >>> torch.equal(vq.surrogates.StraightThrough().attach(draw), quantized)
        True
    """

    images: Tensor
    quantized: Tensor
    defense: "Defense"
    streams: Tensor
    centres: Tensor | None = None


class Gradient(Protocol):
    """What a defense knows of a surrogate: `vqshield.surrogates.ImageSurrogate`.

    Example:
        >>> vq.PRD(surrogate="ste").gradient
        StraightThrough()
    """

    def attach(self, shielding: Shielding) -> Tensor:
        """A tensor equal to the quantized images, with a gradient towards the images."""


class DefenseOptions(TypedDict, total=False):
    """The settings of every defense; `Defense` describes them.

    Example:
        >>> options: vq.defenses.DefenseOptions = {"seed": 0, "range": "clamp"}
        >>> vq.defenses.BitDepth(bits=1, **options)(images * 2).unique()
        tensor([0., 1.])
    """

    seed: int | None
    streams: Streams
    range: Range
    surrogate: str | Gradient | None


class Defense(nn.Module, ABC):
    """Changes images before a classifier sees them: images in, images of the same kind out.

    A call takes batches (B, q, h, w) and single images (q, h, w): bytes (uint8), or floating point of any
    precision in [0, 1]. The output has the shape and dtype of the input. Values that a rounding put outside
    of [0, 1] are clamped, and keep their gradient.

    A defense of your own needs `forward`, and `surrogate` where an attacker could follow a better gradient
    than the identity's. Its constructor keeps each setting as an attribute of that name, or it has
    `settings`. A random one draws its noise from `self.seed` and
    `self.streams(images)` (see `vqshield.quantization.noise.Draw`), so that an image's result depends only on
    the image, the settings, the seed and its stream number. `Preprocessor` makes a defense of any function.

    Args:
        seed: 64-bit key of all randomness. None takes the seed, and the stream numbers of every call, from
            the operating system's entropy: unpredictable, and independent in every copy, thread and process.
        streams: where an image's stream number comes from. "fresh": every image of every call has its own.
            "content": it follows from the image's bytes, so that the same image always gets the same draw,
            for caches and for attacks that compare outputs; repeated draws and EOT then show nothing.
        range: what happens to values further outside of [0, 1] than a rounding: "raise" refuses the images,
            "clamp" moves them to its ends, with their gradient.
        surrogate: the gradient of a call, by a name of `vqshield.surrogates` ("soft:temperature=0.1"), for a
            defense in a pipeline without `Defended`; "score" needs a classifier. None: a call has no gradient
            beyond what `forward` itself has. In `Defended`, it is what surrogate="own" follows.

    With a seed, fresh streams are 0, 1, 2, … in the order of the calls. A copy in another process (a
    DataLoader worker in each epoch, a fork, a rank of a distributed job) counts elsewhere. So no stream
    repeats within a program, and all repeat when the program is run again the same way. Separate programs and
    copies made on purpose (deepcopy, pickle) repeat them; give those other seeds, with `reseeded`.

    Noise stays on in eval(). The global torch RNG is neither read nor advanced. Reverse-mode gradients go
    through a surrogate, under torch.func (grad, jacrev, vmap) as well; forward-mode derivatives
    (torch.func.jvp) are refused. A state_dict holds neither the seed nor the next stream number: a checkpoint
    that is loaded twice would repeat draws, and its readers could predict them.

    Example:
        >>> class Darken(vq.Defense):
        ...     def forward(self, images, *, streams=None):
        ...         return images / 2
        >>> vq.Defended(classifier, Darken())(images).shape
        torch.Size([8, 10])
    """

    NAME: ClassVar[str]
    """What a registered class is called in spec strings; a class without one has no spec string."""

    def __init_subclass__(cls, **options: object) -> None:
        """Give a class that computes something else no certificate of its base."""
        super().__init_subclass__(**options)
        own = {name for name, value in vars(cls).items() if callable(value) or isinstance(value, property)}
        changed = [
            name for name in own - {"__init__", "settings", "surrogate"} if hasattr(super(cls, cls), name)
        ]
        if changed and "certificate_terms" not in own and not cls.__module__.startswith("vqshield."):
            cls.certificate_terms = Defense.certificate_terms  # type: ignore[method-assign]

    def __init__(
        self,
        *,
        seed: int | None = None,
        streams: Streams = "fresh",
        range: Range = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__()
        self._streams_from = cast(Streams, checks.one_of("streams", streams, get_args(Streams)))
        self._range = cast(Range, checks.one_of("range", range, get_args(Range)))
        self._given_surrogate = surrogate
        self.gradient: Gradient | None = None
        if surrogate is not None:  # imported here: surrogates are built on defenses
            self.gradient = importlib.import_module("vqshield.surrogates").of_images(surrogate)
        self._take_seed(seed)

    def __call__(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Shielded images of the shape and dtype of those given; what `forward` gets are pixels."""
        return self._with_gradient(self.gradient, images, streams)

    def _with_gradient(self, gradient: Gradient | None, images: Tensor, streams: Tensor | None) -> Tensor:
        batch = self._for_forward(images)
        if gradient is None or not batch.requires_grad or not torch.is_grad_enabled():
            arguments = {} if streams is None else {"streams": streams}
            return restore_dtype_and_shape(super().__call__(batch, **arguments), images)
        pixels = self.pixels(batch)
        streams = self.streams(pixels, streams)
        shielded = super().__call__(pixels.detach(), streams=streams)
        return restore_dtype_and_shape(gradient.attach(Shielding(pixels, shielded, self, streams)), images)

    @abstractmethod
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Images of the same shape, dtype and device.

        Args:
            images: (B, q, h, w) in [0, 1] up to a rounding, float32 or float64: a call makes them so.
            streams: stream numbers (B,), int64, that repeat a draw; None takes the defense's own.
        """

    def settings(self) -> dict[str, Setting]:
        """What decides the output besides seed and streams: keyword arguments of the constructor.

        By default the attributes that are named as they are.

        Raises:
            InvalidInputError: there is no attribute of such a name.
        """
        common = inspect.signature(Defense).parameters
        own = inspect.signature(type(self)).parameters.values()
        names = [each.name for each in own if each.name not in common and each.kind is not each.VAR_KEYWORD]
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            raise InvalidInputError(
                f"{type(self).__name__} has no attribute {missing[0]!r} to tell its setting from; assign "
                f"self.{missing[0]} in the constructor, or define settings()"
            )
        return {name: getattr(self, name) for name in names}

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor | None:
        """The defense once more, as a function that can be differentiated: what surrogate="own" follows.

        Args:
            images: as of `forward`, with a gradient.
            streams: the stream numbers of the draw.

        Returns:
            Images of that shape with a gradient towards `images`. Their values do not matter: the forward
            pass is always the true one. None: there is no such function, and the identity replaces it.
        """
        return None

    @property
    def spec(self) -> str | None:
        """The spec string that makes this defense, without its seed; None for a class of your own.

        Example:
            >>> vq.SWRD(codes=16, seed=3).spec
            'swrd:codes=16'
        """
        kind = type(self)
        if "NAME" not in vars(kind):
            return None
        usual = {name: each.default for name, each in constructor_parameters(kind).items()}
        settings = {**self.settings(), "backend": getattr(self, "backend", "auto")}
        chosen = {key: value for key, value in settings.items() if value != usual.get(key, "auto")}
        # A default of None follows from the other settings: it is written only where it does not.
        short = {key: value for key, value in chosen.items() if usual[key] is not None}
        make: Callable[..., Defense] = kind
        if make(**short).settings() == self.settings():
            chosen = short
        pairs = ",".join(f"{key}={value}" for key, value in chosen.items())
        return f"{kind.NAME}:{pairs}" if pairs else kind.NAME

    def certificate_terms(self) -> CertificateTerms:
        """What a worst-case certificate may assume of this defense. A subclass that changes more than
        constructor, settings and surrogate does not inherit it.

        Raises:
            InvalidInputError: no certificate is known for it.
        """
        raise InvalidInputError(
            f"no certificate is known for {type(self).__name__}; use certificate 'draws' for error bounds on "
            "given images, or state the defense's noise in certificate_terms"
        )

    def check(self, images: Tensor) -> None:
        """Raise InvalidInputError where images of this shape or dtype cannot be taken."""
        checks.image_batch(images, (*checks.IMAGE_DTYPES, *checks.NARROW_DTYPES))

    def pixels(self, images: Tensor) -> Tensor:
        """The images as `forward` takes them: (B, q, h, w), float32 or float64, with their gradient."""
        return widened(batch_of(images), range=self._range)

    def _for_forward(self, images: Tensor) -> Tensor:
        """What a call hands to `forward`: pixels, unless a defense of ours can do without that copy."""
        return self.pixels(images)

    def streams(self, images: Tensor, given: Tensor | None = None) -> Tensor:
        """The stream number of each image (B,): those given, or the defense's own. Checks the images."""
        images = self._for_forward(images)
        self.check(images)
        tangent = None if torch.compiler.is_compiling() else forward_ad.unpack_dual(images).tangent  # type: ignore[no-untyped-call]
        if tangent is not None:
            raise InvalidInputError(
                "images carry a forward-mode tangent (torch.func.jvp, dual tensors), which a defense would "
                "silently turn into zero; use reverse mode (torch.autograd.grad)"
            )
        if given is not None:
            return checks.per_image("streams", given, images)
        if self._streams_from == "content":
            own: Tensor = operators.content_streams(images.detach())
            return own
        entropy = self._given_seed is None
        fresh: Tensor = operators.fresh_streams(self._next_stream, images.detach(), entropy, self._born)
        return fresh

    def reseeded(self, seed: int) -> Self:
        """A copy with another seed, its streams from the start."""
        other = copy.deepcopy(self)
        other._take_seed(seed)
        return other

    def extra_repr(self) -> str:
        """The settings; the seed only where it was given, so that no log reveals a random one."""
        shown: dict[str, object] = {**self.settings()}
        shown |= {} if self._given_seed is None else {"seed": self.seed}
        shown |= {} if self._streams_from == "fresh" else {"streams": self._streams_from}
        shown |= {} if self._range == "raise" else {"range": self._range}
        shown |= {} if self.gradient is None else {"surrogate": self._given_surrogate}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def _take_seed(self, seed: int | None) -> None:
        self._given_seed = None if seed is None else checks.whole("seed", seed, least=0, below=2**64)
        self.seed = int.from_bytes(os.urandom(8)) if seed is None else seed
        self._born = processes.identity()
        self._count_from(0)

    def _count_from(self, number: int) -> None:
        # No buffer: it stays on the CPU, in memory of this process alone, whatever happens to the module.
        self._next_stream = torch.full((1,), number, dtype=torch.int64, device="cpu")

    def __getstate__(self) -> dict[str, object]:
        # As a number: a pickled tensor may travel in shared memory, where processes would count together.
        return {**self.__dict__, "_next_stream": int(self._next_stream)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._count_from(state["_next_stream"])


def constructor_parameters(kind: type[Defense]) -> Mapping[str, inspect.Parameter]:
    """The keyword arguments of a constructor; its `**options` are those of every defense."""
    own, common = inspect.signature(kind).parameters, inspect.signature(Defense).parameters
    return {name: each for name, each in {**own, **common}.items() if each.kind is each.KEYWORD_ONLY}

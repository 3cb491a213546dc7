"""What a defense is: images in, images of the same shape out, with randomness that a seed decides."""

import copy
import os
from abc import ABC, abstractmethod
from typing import Required, Self, TypedDict

import torch
from torch import Tensor, nn

from vqshield import checks, operators
from vqshield.errors import InvalidInputError
from vqshield.settings import Setting


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


class Defense(nn.Module, ABC):
    """Changes images before a classifier sees them: float images in [0, 1] in, images of that shape out.

    The quantizers (`Quantizer`: RandDisc, PRD, SWRD) and GaussianNoise are defenses. One of your own needs
    `forward` and `settings`; if it is random, it draws its noise from `self.seed` and `self.streams(images)`
    (see `vqshield.noise.Draw`), so that an image's result depends on nothing but the image, the settings,
    the seed and its stream number.

    Args:
        seed: 64-bit key of all randomness. None takes the seed, and the stream numbers of every call, from
            the operating system's entropy: unpredictable, and independent in every copy, thread and process.

    Noise stays on in eval(). The global torch RNG is neither read nor advanced.

    Example:
        >>> class Darken(vq.Defense):
        ...     def forward(self, images, *, streams=None):
        ...         return images / 2
        ...
        ...     def settings(self):
        ...         return {}
        >>> vq.Defended(classifier, Darken())(images).shape
        torch.Size([8, 10])
    """

    def __init__(self, *, seed: int | None = None) -> None:
        super().__init__()
        self._next_stream: Tensor
        self.register_buffer("_next_stream", torch.zeros(1, dtype=torch.int64), persistent=False)
        self._take_seed(seed)

    @abstractmethod
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Images of the same shape, dtype and device.

        Args:
            images: (B, q, h, w) in [0, 1], float32 or float64.
            streams: stream numbers (B,), int64, that repeat a draw; None takes fresh ones.
        """

    @abstractmethod
    def settings(self) -> dict[str, Setting]:
        """What decides the output besides seed and streams: keyword arguments of the constructor."""

    def certificate_terms(self) -> CertificateTerms:
        """What a worst-case certificate may assume of this defense.

        Raises:
            InvalidInputError: none is known for it.
        """
        raise InvalidInputError(
            f"no certificate is known for {type(self).__name__}; a defense that one covers says how in "
            "certificate_terms"
        )

    def check(self, images: Tensor) -> None:
        """Raise InvalidInputError where images of this shape or dtype cannot be taken."""
        checks.image_batch(images)

    def streams(self, images: Tensor, given: Tensor | None = None) -> Tensor:
        """The stream number of each image (B,): those given, or ones not used before. Checks the images."""
        self.check(images)
        if given is not None:
            return checks.per_image("streams", given, images)
        entropy = self._given_seed is None
        fresh: Tensor = operators.fresh_streams(self._next_stream, images.detach(), entropy)
        return fresh

    def reseeded(self, seed: int) -> Self:
        """A copy with another seed, its streams from the start."""
        other = copy.deepcopy(self)
        other._take_seed(seed)
        return other

    def extra_repr(self) -> str:
        """The settings; the seed only where it was given, so that no log gives a random one away."""
        shown = self.settings() | ({} if self._given_seed is None else {"seed": self.seed})
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def _take_seed(self, seed: int | None) -> None:
        self._given_seed = None if seed is None else checks.whole("seed", seed, least=0, below=2**64)
        self.seed = int.from_bytes(os.urandom(8)) if seed is None else seed
        self._next_stream.zero_()

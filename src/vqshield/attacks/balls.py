"""The sets an attack may move in: all images within eps of the original, and within [0, 1]."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vqshield import checks


@dataclass(frozen=True)
class Ball(ABC):
    """All images at a distance of at most eps from one, in a norm, and within [0, 1].

    Args:
        eps: the radius, in units of [0, 1].

    Raises:
        InvalidInputError: an eps that is negative, not finite, or larger than images can be apart.

    Example:
        >>> ball = vq.attacks.L2(0.5)
        >>> distances = ball.distance(ball.project(images + 0.1, images), images)
        >>> round(float(distances.max()), 4)
        0.5
    """

    eps: float
    norm: ClassVar[str]
    most: ClassVar[float]  # no two images are farther apart, or no limit worth naming

    def __post_init__(self) -> None:
        checks.real("eps", self.eps, most=self.most)

    @abstractmethod
    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        """Allowed images near the moved ones; those allowed already stay."""

    @abstractmethod
    def start(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """A point of the ball from values uniform in (0, 1) of the images' shape."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of unit length that raises the loss most; zero where the gradient is."""

    @abstractmethod
    def length(self, change: Tensor) -> Tensor:
        """The norm of each image's change, (B,)."""

    def distance(self, moved: Tensor, images: Tensor) -> Tensor:
        """How far each image was moved, (B,)."""
        return self.length(moved - images)


@dataclass(frozen=True)
class Linf(Ball):
    """Every pixel value may change by at most eps.

    Args:
        eps: from 0 to 1.

    Example:
        >>> moved = vq.attacks.Linf(8 / 255).project(images + 0.5, images)
        >>> round(float((moved - images).abs().max()) * 255)
        8
    """

    norm = "linf"
    most = 1.0

    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        return moved.clamp(images - self.eps, images + self.eps).clamp_(0, 1)

    def start(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Uniform in the ball, cut off at [0, 1]."""
        return self.project(images + (2 * uniforms - 1).to(images.dtype) * self.eps, images)

    def steepest(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def length(self, change: Tensor) -> Tensor:
        return change.abs().flatten(1).amax(1)


@dataclass(frozen=True)
class L2(Ball):
    """The changes of all pixel values, squared and summed, may reach eps².

    Args:
        eps: from 0 to a million.

    Example:
        >>> moved = vq.attacks.L2(0.5).project(images + 0.5, images)
        >>> round(float((moved - images).flatten(1).norm(dim=1).max()), 4)
        0.5
    """

    norm = "l2"
    most = 1e6

    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        """Back along the line to the image, then into [0, 1]: that only brings them nearer still."""
        change = moved - images
        length = self.length(change)[:, None, None, None]
        # A hair less than eps, for the rounding of such a long sum.
        change = change * (self.eps * (1 - 5e-7) / length)
        nearer = images + change
        # In a picture with few colours all sums may be rounded the same way, and together leave the ball by
        # more than the rounding that attacks are allowed.
        left = self.length(nearer - images)[:, None, None, None] > self.eps + 5e-7
        outward = left & ((nearer - images).abs() > change.abs())
        nearer = torch.where(outward, torch.nextafter(nearer, images), nearer)
        return torch.where(length > self.eps, nearer, moved).clamp(0, 1)

    def start(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Uniform on the sphere, near which nearly all of a ball of many dimensions lies."""
        normals = torch.erfinv(2 * uniforms - 1).to(images.dtype)
        return self.project(images + self.steepest(normals) * self.eps, images)

    def steepest(self, gradient: Tensor) -> Tensor:
        length = self.length(gradient).clamp(min=torch.finfo(gradient.dtype).tiny)
        return gradient / length[:, None, None, None]

    def length(self, change: Tensor) -> Tensor:
        return change.flatten(1).square().sum(1).sqrt()


_BALLS: dict[str, type[Ball]] = {kind.norm: kind for kind in (Linf, L2)}


def list_norms() -> list[str]:
    """The names of the norms.

    Example:
        >>> vq.attacks.list_norms()
        ['linf', 'l2']
    """
    return list(_BALLS)


def ball(norm: str, eps: float) -> Ball:
    """The ball of a norm.

    Args:
        norm: one of `list_norms()`.
        eps: its radius.

    Raises:
        InvalidInputError: an unknown norm or an impossible radius.

    Example:
        >>> vq.attacks.ball("l2", 0.5)
        L2(eps=0.5)
    """
    return _BALLS[checks.one_of("norm", norm, _BALLS)](eps)

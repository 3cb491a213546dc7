"""The sets that attacks search: all images within eps of the original, and within [0, 1]."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.settings import format_value


@dataclass(frozen=True)
class Ball(ABC):
    """All images at a distance of at most eps from one, in a norm, and within [0, 1].

    Args:
        eps: the radius, in units of [0, 1].

    Example:
        >>> ball = vq.attacks.L2(0.5)
        >>> round(float(ball.distance(ball.project(images + 0.1, images), images).max()), 4)
        0.5
    """

    eps: float
    norm: ClassVar[str]
    most: ClassVar[float]  # the largest eps
    usual: ClassVar[float]  # the budget of most published results on CIFAR-10
    common: ClassVar[tuple[float, float]]  # budgets of published results, from MNIST to ImageNet

    def __post_init__(self) -> None:
        checks.real("eps", self.eps, most=self.most)

    @property
    def budget(self) -> str:
        """The norm and eps as tables show them: "linf, eps 8/255", "l2, eps 0.5"."""
        return f"{self.norm}, eps {self._format(self.eps)}"

    @property
    def caveat(self) -> str | None:
        """A sentence for the reader of results with an unusual budget; None where the budget is usual."""
        if self.eps == 0 or self.common[0] <= self.eps <= self.common[1]:
            return None
        least, most, usual = map(self._format, (*self.common, self.usual))
        return (
            f"{self.budget} is outside the usual budgets of {self.norm}, {least} to {most}; "
            f"most results on CIFAR-10 have eps {usual}"
        )

    def _format(self, eps: float) -> str:
        return format_value(float(eps)) if self.norm == Linf.norm else f"{eps:g}"

    @abstractmethod
    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        """Allowed images near the moved ones; allowed images stay."""

    @abstractmethod
    def start(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """A point of the ball from values uniform in (0, 1) of the images' shape."""

    @abstractmethod
    def steepest(self, gradient: Tensor) -> Tensor:
        """The direction of unit length that raises the loss most; zero where the gradient is zero."""

    @abstractmethod
    def length(self, change: Tensor) -> Tensor:
        """The norm of each image's change, (B,)."""

    def distance(self, moved: Tensor, images: Tensor) -> Tensor:
        """How far each image was moved, (B,)."""
        return self.length(moved - images)


class Linf(Ball):
    """Every pixel value may change by at most eps.

    Example:
        >>> moved = vq.attacks.Linf(8 / 255).project(images + 0.5, images)
        >>> round(float((moved - images).abs().max()) * 255)
        8
    """

    norm = "linf"
    most = 1.0
    usual = 8 / 255
    common = (1 / 255, 0.35)

    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        return moved.clamp(images - self.eps, images + self.eps).clamp_(0, 1)

    def start(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Uniform in the ball, cut off at [0, 1]."""
        return self.project(images + (2 * uniforms - 1).to(images.dtype) * self.eps, images)

    def steepest(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def length(self, change: Tensor) -> Tensor:
        return change.abs().flatten(1).amax(1)


class L2(Ball):
    """The changes of all pixel values, squared and summed, may reach eps².

    Example:
        >>> moved = vq.attacks.L2(0.5).project(images + 0.5, images)
        >>> round(float((moved - images).flatten(1).norm(dim=1).max()), 4)
        0.5
    """

    norm = "l2"
    most = 1e6
    usual = 0.5
    common = (0.1, 5.0)

    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        """Back along the line to the image, then into [0, 1], which only brings them nearer."""
        change = moved - images
        length = self.length(change)[:, None, None, None]
        change = change * (self.eps * (1 - 5e-7) / length)  # the rest of eps is for rounding
        nearer = images + change
        # In a picture with few colours all sums may be rounded the same way, and together leave the ball.
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


class L1(Ball):
    """The changes of all pixel values may add up to eps.

    Example:
        >>> moved = vq.attacks.L1(2.0).project(images + 0.5, images)
        >>> round(float((moved - images).abs().flatten(1).sum(1).max()), 4)
        2.0
    """

    norm = "l1"
    most = 1e6
    usual = 12.0
    common = (1.0, 100.0)

    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        """The nearest point, in L2, in both the ball and [0, 1] (Croce and Hein 2021)."""
        change = (moved.double() - images.double()).flatten(1)
        room = torch.where(change > 0, 1 - images.double().flatten(1), images.double().flatten(1))
        size = shrink_into(change.abs(), room, self.eps).copysign(change).view(images.shape)
        nearer = (images.double() + size).to(images.dtype).clamp_(0, 1)
        # Thousands of values, all rounded outwards, would leave the ball.
        outward = (nearer.double() - images.double()).abs() > size.abs()
        nearer = torch.where(outward, torch.nextafter(nearer, images), nearer)
        inside = self.distance(moved, images) <= self.eps
        return torch.where(inside[:, None, None, None], moved.clamp(0, 1), nearer)

    def start(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Uniform on the sphere, as in L2."""
        signed = 2 * uniforms - 1
        sizes = -torch.log(signed.abs().clamp(min=torch.finfo(signed.dtype).tiny))
        share = sizes / sizes.flatten(1).sum(1)[:, None, None, None]
        return self.project(images + (share.copysign(signed) * self.eps).to(images.dtype), images)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The value with the largest slope alone, the first of several."""
        flat = gradient.flatten(1)
        place = flat.abs().argmax(1, keepdim=True)
        direction = torch.zeros_like(flat).scatter_(1, place, flat.gather(1, place).sign())
        return direction.view_as(gradient)

    def length(self, change: Tensor) -> Tensor:
        return change.double().abs().flatten(1).sum(1).to(change.dtype)

    def distance(self, moved: Tensor, images: Tensor) -> Tensor:
        return self.length(moved.double() - images.double()).to(moved.dtype)


def shrink_into(sizes: Tensor, room: Tensor, total: float) -> Tensor:
    """min(max(sizes − μ, 0), room), with the least μ ≥ 0 for which each row adds up to total or less.

    That is the nearest such point to the sizes (B, values), float64. The sum is piecewise linear in μ and
    bends where a value starts to shrink (sizes − room) or reaches 0 (sizes): all bends are sorted, and μ lies
    on the piece that crosses the total.
    """
    begins = (sizes - room).clamp(min=0)
    bends, order = torch.cat([begins, sizes], 1).sort(1)
    turns = torch.cat([torch.ones_like(sizes), -torch.ones_like(sizes)], 1).gather(1, order)
    falling = turns.cumsum(1)  # the slope right of each bend
    gaps = bends.diff(dim=1, prepend=bends.new_zeros(len(bends), 1))
    before = torch.cat([falling.new_zeros(len(falling), 1), falling[:, :-1]], 1)  # and left of it
    first = torch.minimum(sizes, room).sum(1, keepdim=True)
    sums = first - (before * gaps).cumsum(1)  # at each bend
    place = (sums > total).sum(1, keepdim=True).clamp(max=bends.shape[1] - 1)  # the first bend below
    left = (sums.gather(1, place) - total).clamp(max=0).neg()
    slope = before.gather(1, place)
    back = torch.where(slope > 0, left / slope.clamp(min=1), 0.0)
    level = torch.where(first > total, bends.gather(1, place) - back, 0.0)
    return torch.minimum((sizes - level).clamp(min=0), room)


_BALLS: dict[str, type[Ball]] = {kind.norm: kind for kind in (Linf, L2, L1)}


def list_norms() -> list[str]:
    """The names of the norms.

    Example:
        >>> vq.attacks.list_norms()
        ['linf', 'l2', 'l1']
    """
    return list(_BALLS)


def ball(norm: str, eps: float | None = None) -> Ball:
    """The ball of a norm.

    Args:
        norm: one of `list_norms()`.
        eps: its radius; None: the usual one for CIFAR-10, 8/255 for "linf", 0.5 for "l2", 12 for "l1".

    Example:
        >>> vq.attacks.ball("l2", 0.5)
        L2(eps=0.5)
        >>> vq.attacks.ball("linf").budget
        'linf, eps 8/255'
    """
    kind = _BALLS[checks.one_of("norm", norm, _BALLS)]
    return kind(kind.usual if eps is None else eps)

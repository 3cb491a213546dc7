"""Search bases: a wrapper that lets a gradient attack move only in some directions.

Quantization removes changes from pixel to pixel and keeps those of whole regions, so an attack may search
only among the latter. A new basis is a Basis here and a line in _BASES.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec, refuse_unknown, setting_names
from vqshield.models.calling import Model
from vqshield.quantization import kernels
from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.lloyd import nearest
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint


class Basis(ABC):
    """A space of directions for each image."""

    @abstractmethod
    def project(self, gradient: Tensor, images: Tensor) -> Tensor:
        """The part of each image's gradient (B, q, h, w) in its space: an orthogonal projection."""


@dataclass(frozen=True)
class Pixels(Basis):
    """All directions."""

    def project(self, gradient: Tensor, images: Tensor) -> Tensor:
        return gradient


@dataclass(frozen=True)
class LowFrequencies(Basis):
    """The lowest count × count coefficients of each channel's cosine transform (DCT-II)."""

    count: int = 8

    def __post_init__(self) -> None:
        checks.whole("count", self.count, least=1)

    def project(self, gradient: Tensor, images: Tensor) -> Tensor:
        """Low frequencies along the columns, then along the rows."""
        height, width = gradient.shape[2:]
        return self._filter(height).to(gradient) @ gradient @ self._filter(width).to(gradient)

    def _filter(self, length: int) -> Tensor:
        """C'C of the first rows C of the orthonormal cosine transform: (length, length)."""
        frequencies = torch.arange(min(self.count, length), dtype=torch.float64)[:, None]
        places = torch.arange(length, dtype=torch.float64)[None] + 0.5
        waves = (math.pi / length * frequencies * places).cos()
        waves = waves / waves.square().sum(1, keepdim=True).sqrt()
        return waves.T @ waves


@dataclass(frozen=True)
class Blocks(Basis):
    """Changes that are constant in each side × side block; the last of a row or column may be smaller."""

    side: int = 4

    def __post_init__(self) -> None:
        checks.whole("side", self.side, least=1)

    def project(self, gradient: Tensor, images: Tensor) -> Tensor:
        height, width = gradient.shape[2:]
        means = F.avg_pool2d(gradient, self.side, ceil_mode=True)
        spread = means.repeat_interleave(self.side, 2).repeat_interleave(self.side, 3)
        return spread[:, :, :height, :width]


@dataclass(frozen=True)
class Clusters(Basis):
    """Changes that all patches of a cluster share, so that their centre moves as a whole.

    k-means with codes centres runs on the disjoint size × size patches of the images at each step, without
    noise and with the same random numbers for all images: pRD without its secrets.
    """

    size: int = 2
    codes: int = 25

    def __post_init__(self) -> None:
        checks.whole("size", self.size, least=1)
        checks.whole("codes", self.codes, least=1)

    def project(self, gradient: Tensor, images: Tensor) -> Tensor:
        """The mean over each cluster, component by component of its patches."""
        grid = Disjoint(self.size)
        member = F.one_hot(self._labels(grid, images), self.codes).to(gradient)  # (B, n, k)
        values = _cut(grid, gradient)  # (B, n, d)
        inside = _cut(grid, torch.ones_like(gradient))
        counts = member.transpose(1, 2) @ inside  # (B, k, d)
        means = (member.transpose(1, 2) @ values) / counts.clamp(min=1)
        shared = (member @ means).transpose(1, 2)
        height, width = gradient.shape[2:]
        padded = tuple(count * self.size for count in grid.shape(height, width))
        return F.fold(shared, padded, self.size, stride=self.size)[:, :, :height, :width]

    def _labels(self, grid: Disjoint, images: Tensor) -> Tensor:
        padded = grid.pad(images.detach())
        codes = min(self.codes, grid.count(*padded.shape[2:]))
        recipe = Recipe(
            grid=grid, codes=codes, iterations=20, init="kmeans++", tolerance=0.0, sigma=0.0, tau=0.0
        )
        draw = Draw(0, torch.zeros(len(images), dtype=torch.int64, device=images.device))
        centres = kernels.get("auto", images.device).codebook(padded, recipe, draw)
        return nearest(_cut(grid, padded).double(), centres.double())


def _cut(grid: Disjoint, images: Tensor) -> Tensor:
    return F.unfold(grid.pad(images), grid.size, stride=grid.size).transpose(1, 2)


_BASES: dict[str, Callable[..., Basis]] = {
    "pixels": Pixels, "dct": LowFrequencies, "block": Blocks, "clusters": Clusters,
}  # fmt: skip


def list_bases() -> list[str]:
    """The names of the bases; all but pixels may be followed by a number: dct8, block4, clusters2.

    Example:
        >>> vq.attacks.list_bases()
        ['pixels', 'dct', 'block', 'clusters']
    """
    return list(_BASES)


def basis(name: str) -> Basis:
    """A basis by name.

    Args:
        name: one of `list_bases()`, optionally with a number and settings: "block8", "clusters2:codes=40".

    Example:
        >>> vq.attacks.basis("block8")
        Blocks(side=8)
    """
    if not isinstance(name, str):
        raise InvalidInputError(f"basis should be a name, not {type(name).__name__}")
    word, settings = parse_spec(name)
    parts = re.fullmatch(r"([a-z]+)(\d{0,9})", word)
    kind, number = parts.groups() if parts else (word, "")
    chosen = _BASES[checks.one_of("basis", kind, _BASES)]
    known = setting_names(chosen)
    if number and not known:
        raise InvalidInputError(f"basis={name!r} takes no number; write {kind}")
    refuse_unknown(kind, settings, known)
    return chosen(**({known[0]: int(number)} if number else {}), **settings)


_basis = basis  # InBasis has an argument of that name


class InBasis(nn.Module):
    """A model with the same logits, whose gradients lie in a basis; for every attack that uses gradients.

    The attack's step follows: a sign (Linf) keeps blocks and clusters and turns low frequencies into large
    areas. A random start is not in the basis; switch it off to stay inside.

    Args:
        model: images → logits.
        basis: a name as `basis` takes it, or a Basis.

    Example:
        >>> attack = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=2, random_start=False)
        >>> attack(vq.attacks.InBasis(classifier, "block4"), images, labels).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(self, model: Model, basis: str | Basis) -> None:
        super().__init__()
        self.model = model
        self.basis = basis if isinstance(basis, Basis) else _basis(basis)
        self.training = getattr(model, "training", False)

    def forward(self, images: Tensor) -> Tensor:
        if not (images.requires_grad and torch.is_grad_enabled()):
            return self.model(images)
        points = images.view_as(images)
        points.register_hook(lambda slope: self.basis.project(slope, images.detach()))  # type: ignore[no-untyped-call]
        return self.model(points)

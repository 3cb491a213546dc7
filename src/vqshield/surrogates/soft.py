"""Soft assignment: each patch a mixture of centres instead of the nearest one, in the backward pass."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.core import checks
from vqshield.defenses import Defense, Quantizer
from vqshield.defenses.base import Shielding
from vqshield.quantization import kernels
from vqshield.quantization.kernels import Recipe
from vqshield.quantization.kernels.gpu import Gpu
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import Sliding
from vqshield.surrogates.base import ImageSurrogate, as_quantizer, attach_own
from vqshield.surrogates.learned import Learned

CENTRES = ("constant", "means", "unrolled")
NOISES = ("none", "drawn")


@dataclass(frozen=True, kw_only=True)
class Soft(ImageSurrogate):
    """The gradient of sum_j softmax_j(−‖p − c_j‖²/T)·c_j in place of the nearest centre's.

    A defense other than a quantizer has no centres. There it is the gradient that the defense brings ("own"),
    or where it brings none, a learned one ("learned").

    Args:
        temperature: T, in squared units of [0, 1].
        centres: "constant" does not move the codebook; "means" differentiates every centre as the mean of
            the patches nearest to it, which is what k-means ends in; "unrolled" through rounds of soft
            k-means.
        rounds: how many of those.
        noise: "none" assigns the clean patches, "drawn" those with the draw's own omega.

    Example:
        >>> soft = vq.surrogates.Soft(temperature=0.1, centres="constant")
        >>> model = vq.Defended(classifier, vq.SWRD(seed=0), surrogate=soft)
        >>> points = images.clone().requires_grad_()
        >>> bool(torch.autograd.grad(model(points).sum(), points)[0].isfinite().all())
        True
    """

    temperature: float = 0.03
    centres: str = "means"
    rounds: int = 3
    noise: str = "none"

    def __post_init__(self) -> None:
        checks.real("temperature", self.temperature, least=1e-6)
        checks.one_of("centres", self.centres, CENTRES)
        checks.whole("rounds", self.rounds, least=1)
        checks.one_of("noise", self.noise, NOISES)

    def attach(self, shielding: Shielding) -> Tensor:
        if not isinstance(shielding.defense, Quantizer):
            return attach_own(shielding, otherwise=Learned())
        kernel = _kernel(self, shielding)
        if kernel is not None:
            arguments = shielding.images, _centres(shielding), self, shielding, kernel
            result: Tensor = _Softened.apply(*arguments)  # type: ignore[no-untyped-call]
            return result
        smooth = self._smooth(shielding)
        return shielding.quantized + (smooth - smooth.detach())

    def centres_first(self, defense: Defense) -> bool:
        return isinstance(defense, Quantizer)

    def _smooth(self, shielding: Shielding) -> Tensor:
        defense, images = as_quantizer("soft", shielding.defense), shielding.images
        patches = cut(defense, images)  # (B, n, d)
        centres = self._differentiable(_centres(shielding), patches)  # (B, k, d)
        assigned = patches if self.noise == "none" else patches + self._omega(defense, shielding, patches)
        mixed = torch.bmm(self._weights(assigned, centres), centres)
        return put_together(defense, mixed, patches, assigned, images)

    def _slopes(self, kernel: "SoftGradient", shielding: Shielding, slopes: Tensor) -> Tensor:
        """The kernel's gradient of the smooth images, in place of that of `_smooth`."""
        defense = as_quantizer("soft", shielding.defense)
        grid, images = defense.grid, shielding.images.detach()
        padded, recipe = grid.pad(images), defense.recipe()
        assigned = padded
        if self.noise == "none":
            recipe = replace(recipe, tau=0.0)
        elif defense.noise != "patch":
            assigned = grid.pad(defense.seen(images, Stage.ASSIGNMENT, streams=shielding.streams))
        if padded is not images:
            (height, width), (high, wide) = images.shape[2:], padded.shape[2:]
            slopes = F.pad(slopes, (0, wide - width, 0, high - height))
        draw = Draw(defense.seed, shielding.streams)
        gradient = kernel(padded, assigned, _centres(shielding), slopes, recipe, draw)
        if padded is images:
            return gradient
        with torch.enable_grad():  # the padding may be a copy of pixels inside
            inner = images.requires_grad_()
            return torch.autograd.grad(grid.pad(inner), inner, gradient)[0]

    def _omega(self, defense: Quantizer, shielding: Shielding, patches: Tensor) -> Tensor:
        """The noise that this draw's assignment saw."""
        if defense.noise != "patch":
            seen = defense.seen(shielding.images, Stage.ASSIGNMENT, streams=shielding.streams)
            return cut(defense, seen - shielding.images.detach())
        draw = Draw(defense.seed, shielding.streams)
        omega = draw.normals(Stage.ASSIGNMENT, 0, patches[0].numel())
        return (defense.tau * omega).view_as(patches).to(patches)

    def _weights(self, patches: Tensor, centres: Tensor) -> Tensor:
        return (_closeness(patches, centres) / self.temperature).softmax(-1)  # (B, n, k)

    def _differentiable(self, centres: Tensor, patches: Tensor) -> Tensor:
        """The centres, with the gradient that `self.centres` names."""
        if self.centres == "constant":
            return centres
        if self.centres == "means":
            nearest = _closeness(patches.detach(), centres).argmax(-1)
            numbers = torch.arange(centres.shape[1], device=centres.device)
            member = (nearest[..., None] == numbers).to(patches)  # (B, n, k); vmap knows no one_hot
            share = member / member.sum(1, keepdim=True).clamp(min=1)
            moving = torch.bmm(share.transpose(1, 2), patches)
        else:
            moving = centres
            for _ in range(self.rounds):
                weights = self._weights(patches, moving)
                total = weights.sum(1)[..., None].clamp(min=torch.finfo(weights.dtype).tiny)
                moving = torch.bmm(weights.transpose(1, 2), patches) / total
        return centres + (moving - moving.detach())


class _Softened(torch.autograd.Function):
    """The quantized images, with the kernel's gradient: the smooth images' values are never needed."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, centres: Tensor, soft: Soft, shielding: Shielding, kernel: "SoftGradient"
    ) -> Tensor:
        ctx.save_for_backward(images, centres)
        ctx.soft, ctx.shielding, ctx.kernel = soft, replace(shielding, images=images.detach()), kernel
        return shielding.quantized.view_as(shielding.quantized)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        images, centres = ctx.saved_tensors
        shielding = replace(ctx.shielding, images=images, centres=centres)
        if torch.is_grad_enabled():  # for a gradient of this gradient: the formula has one
            smooth = ctx.soft._smooth(shielding)
            slopes = torch.autograd.grad(smooth, images, gradients[0], create_graph=True)[0]
        else:
            slopes = ctx.soft._slopes(ctx.kernel, shielding, gradients[0])
        return slopes, None, None, None, None


SoftGradient = Callable[[Tensor, Tensor, Tensor, Tensor, Recipe, Draw], Tensor]
"""Padded images, the same as the assignment sees them, centres, slopes → the gradient towards the images."""


def _kernel(soft: Soft, shielding: Shielding) -> SoftGradient | None:
    """The kernel of the defense's backend, where it serves; torch.compile and torch.func need the formula."""
    images, defense = shielding.images, as_quantizer("soft", shielding.defense)
    if images.dtype != torch.float32:
        return None
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(images):
        return None
    backend = kernels.get(defense.backend, images.device)
    unrolled, means = soft.centres == "unrolled", soft.centres == "means"
    if isinstance(backend, Native) and not unrolled:
        return partial(backend.soft_gradient, temperature=soft.temperature, means=means)
    if not isinstance(backend, Gpu):
        return None
    from vqshield.quantization.kernels.triton import soft as on_gpu

    codes = defense.codes if shielding.centres is None else shielding.centres.shape[1]
    if not on_gpu.serves(defense.grid, images.shape[1], codes):
        return None
    rounds = soft.rounds if unrolled else 0
    return partial(on_gpu.soft_gradient, temperature=soft.temperature, means=means, rounds=rounds)


def _centres(shielding: Shielding) -> Tensor:
    if shielding.centres is not None:
        return shielding.centres
    return as_quantizer("soft", shielding.defense).codebook(shielding.images, streams=shielding.streams)


def _closeness(patches: Tensor, centres: Tensor) -> Tensor:
    """−‖p−c‖² plus ‖p‖², which all centres share and a softmax does not see: (B, n, k)."""
    return 2 * torch.bmm(patches, centres.transpose(1, 2)) - centres.square().sum(-1)[:, None]


def cut(defense: Quantizer, images: Tensor) -> Tensor:
    """The patches (B, n, d). Not PatchGrid.cut: this gradient is a sum in a fixed order on a GPU too."""
    padded = defense.grid.pad(images)
    return F.unfold(padded, defense.grid.size, stride=defense.grid.stride).transpose(1, 2)


def put_together(defense: Quantizer, mixed: Tensor, clean: Tensor, noisy: Tensor, images: Tensor) -> Tensor:
    """Images from quantized patches (B, n, d), weighted as the defense weights its windows."""
    height, width = images.shape[2:]
    if not isinstance(defense.grid, Sliding):
        padded, size = defense.grid.pad(images[:1]).shape[2:], defense.grid.size
        return F.fold(mixed.transpose(1, 2), padded, size, stride=size)[:, :, :height, :width]
    recipe = defense.recipe()
    windows = clean if recipe.weights_from == "clean" else noisy
    similarity = -recipe.beta * (mixed - windows).square().sum(-1)  # (B, n)
    return defense.grid.blend(mixed, similarity, height, width)

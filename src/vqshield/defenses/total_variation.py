"""Total variation denoising, as a control."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vqshield.core import checks
from vqshield.core.settings import Setting
from vqshield.defenses.base import Defense, Gradient
from vqshield.quantization import operators

_STEP = 0.25  # what is used in practice; convergence is proved up to 1/8
_TINY = 1e-12  # under a root, which has no gradient at zero


class TotalVariation(Defense):
    """The image u that makes ‖u − x‖²/2 + weight·TV(u) small: flat areas with sharp borders; a control.

    From *Countering Adversarial Images using Input Transformations* (Guo et al. 2018), without their random
    choice of pixels, each channel by itself. The problem is solved by Chambolle's projection (*An Algorithm
    for Total Variation Minimization and Applications*, 2004). It draws nothing. Its surrogate is torch's own
    gradient, through all rounds.

    Args:
        weight: of the variation; 0 changes nothing.
        rounds: of the projection.
        seed, streams, range, surrogate: as of every Defense; nothing depends on the first two.

    Example:
        >>> smooth = vq.defenses.TotalVariation(weight=0.1)(images)
        >>> float(smooth.diff(dim=3).abs().mean()) < float(images.diff(dim=3).abs().mean())
        True
    """

    NAME = "tv"

    def __init__(
        self,
        *,
        weight: float = 0.05,
        rounds: int = 20,
        seed: int | None = None,
        streams: str = "fresh",
        range: str = "raise",
        surrogate: str | Gradient | None = None,
    ) -> None:
        super().__init__(seed=seed, streams=streams, range=range, surrogate=surrogate)
        self.weight = checks.real("weight", weight, most=10.0)
        self.rounds = checks.whole("rounds", rounds, least=1)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        self.streams(images, streams)
        images = operators.inside(images.detach())
        return self._denoised(images.detach()).clamp(0, 1)

    def surrogate(self, images: Tensor, *, streams: Tensor) -> Tensor:
        """The projection itself: torch differentiates it."""
        return self._denoised(images)

    def settings(self) -> dict[str, Setting]:
        return {"weight": self.weight, "rounds": self.rounds}

    def _denoised(self, images: Tensor) -> Tensor:
        if self.weight == 0:
            return images
        down, right = torch.zeros_like(images), torch.zeros_like(images)  # the dual field
        for _ in range(self.rounds):
            below, beside = _slopes(_divergence(down, right) - images / self.weight)
            size = 1 + _STEP * (below.square() + beside.square() + _TINY).sqrt()
            down, right = (down + _STEP * below) / size, (right + _STEP * beside) / size
        return images - self.weight * _divergence(down, right)


def _slopes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Differences to the pixel below and to the one beside, 0 at the border."""
    return F.pad(values.diff(dim=2), (0, 0, 0, 1)), F.pad(values.diff(dim=3), (0, 1))


def _divergence(down: Tensor, right: Tensor) -> Tensor:
    """Minus the adjoint of the slopes; the last row and column of the field are 0."""
    vertical = F.pad(down[:, :, :-1], (0, 0, 0, 1)) - F.pad(down[:, :, :-1], (0, 0, 1, 0))
    horizontal = F.pad(right[:, :, :, :-1], (0, 1)) - F.pad(right[:, :, :, :-1], (1, 0))
    return vertical + horizontal

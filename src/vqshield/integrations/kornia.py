"""A shield among the augmentations of kornia."""

from typing import Any

from torch import Tensor

from vqshield.defenses import Defense
from vqshield.integrations import require
from vqshield.integrations.shield import Shield
from vqshield.surrogates import Attach, Surrogate

_Augmentation: Any = require("kornia.augmentation", "kornia").IntensityAugmentationBase2D


class ShieldAugmentation(_Augmentation):  # type: ignore[misc]
    """Shields images (B, q, h, w) in [0, 1], with the surrogate's gradient.

    The parameters of a call are the stream numbers, so `augment(images, params=augment._params)` repeats it.

    Args:
        defense: a spec string, "swrd:size=3", or a Defense.
        surrogate: its gradient, as of `vqshield.Defended`, except "score".
        seed: the seed of the samples.
        p: the probability that an image is shielded.
        same_on_batch: whether all images of a batch share one stream number.
        keepdim: whether a single image (q, h, w) stays one.
    """

    def __init__(
        self,
        defense: str | Defense = "swrd",
        *,
        surrogate: str | Surrogate | Attach = "ste",
        seed: int | None = None,
        p: float = 1.0,
        same_on_batch: bool = False,
        keepdim: bool = False,
    ) -> None:
        super().__init__(p=p, same_on_batch=same_on_batch, p_batch=1.0, keepdim=keepdim)
        self.shield = Shield(defense, surrogate=surrogate, seed=seed)

    def generate_parameters(self, batch_shape: tuple[int, ...]) -> dict[str, Tensor]:
        streams = self.shield.streams_for(tuple(batch_shape))
        return {"streams": streams[:1].expand(len(streams)) if self.same_on_batch else streams}

    def apply_transform(
        self, input: Tensor, params: dict[str, Tensor], flags: object, transform: Tensor | None = None
    ) -> Tensor:
        shielded: Tensor = self.shield(input, streams=params["streams"].to(input.device))
        return shielded

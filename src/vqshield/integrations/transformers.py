"""A shield inside an image processor of transformers: after rescaling, before normalisation."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense
from vqshield.integrations import require
from vqshield.integrations.shield import Shield

_backends = require("transformers.image_processing_backends", "transformers")


def shielded_processor(processor: Any, defense: str | Defense = "swrd", *, seed: int | None = None) -> Any:
    """A copy of an image processor that shields images once they are in [0, 1] and have their final size.

    It goes where the processor went: `pipeline("image-classification", model, image_processor=…)`.

    Args:
        processor: an image processor of transformers 5, of its torchvision or its PIL backend.
        defense: a spec string, "swrd:size=3", or a Defense.
        seed: the seed of the draws; None takes fresh entropy.

    Raises:
        InvalidInputError: it is none of these, or does not rescale its images to [0, 1].
    """
    kind = type(processor)
    if issubclass(kind, _backends.TorchvisionBackend):
        mixin: type = _ShieldTensors
    elif issubclass(kind, _backends.PilBackend):
        mixin = _ShieldArrays
    else:
        raise InvalidInputError(f"a {kind.__name__} should be an image processor of transformers 5")
    if not getattr(processor, "do_rescale", False):
        raise InvalidInputError(f"{kind.__name__} should have do_rescale=True: a shield takes [0, 1]")
    made = copy.copy(processor)
    made.__class__ = type(f"Shielded{kind.__name__}", (mixin, kind), {})
    made._shield = Shield(defense, seed=seed)
    return made


class _ShieldTensors:
    """The torchvision backend fuses rescaling and normalisation; here the shield comes between."""

    _shield: Shield

    def rescale_and_normalize(
        self, images: Tensor, do_rescale: bool, rescale_factor: float, *rest: object, **named: object
    ) -> Any:
        pixels = images.float() * rescale_factor if do_rescale else images.float()
        own: Any = super()
        return own.rescale_and_normalize(self._shield(pixels), False, rescale_factor, *rest, **named)


class _ShieldArrays:
    """The PIL backend works image by image, on arrays (q, h, w)."""

    _shield: Shield

    def rescale(self, image: object, scale: float, **options: object) -> object:
        own: Any = super()
        pixels = np.ascontiguousarray(own.rescale(image, scale, **options), dtype=np.float32)
        return self._shield(torch.from_numpy(pixels)).numpy()

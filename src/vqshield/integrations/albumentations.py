"""A shield among the transforms of albumentations."""

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense
from vqshield.integrations import require
from vqshield.integrations.shield import Shield

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would query a package index
_Transform: Any = require("albumentations.core.transforms_interface", "albumentations").ImageOnlyTransform
_Schema: Any = _Transform.InitSchema

Pixels = npt.NDArray[Any]


class ShieldTransform(_Transform):  # type: ignore[misc]
    """Shields images (h, w, q) or (h, w), uint8 or float32 in [0, 1]; masks and boxes stay as they are.

    Args:
        defense: a spec string, "swrd:size=3", or a Defense.
        seed: the seed of the samples; None takes fresh entropy.
        p: the probability that an image is shielded.
    """

    class InitSchema(_Schema):  # type: ignore[misc]
        defense: object
        seed: int | None

    def __init__(self, defense: str | Defense = "swrd", seed: int | None = None, p: float = 1.0) -> None:
        super().__init__(p=p)
        self.defense, self.seed = defense, seed
        self._shield = Shield(defense, seed=seed)

    def get_params_dependent_on_data(self, params: object, data: dict[str, Any]) -> dict[str, int]:
        """The stream number, which ReplayCompose keeps."""
        image = data["image"] if "image" in data else data["images"][0]
        return {"stream": int(self._shield.draw(_planes(image))[0])}

    def apply(self, img: Pixels, *args: object, **params: int) -> Pixels:
        shielded = self._shield(_planes(img), streams=torch.tensor([params["stream"]]))
        return np.ascontiguousarray(shielded.numpy().transpose(1, 2, 0)).reshape(img.shape)


def _planes(img: Pixels) -> Tensor:
    """(q, h, w)."""
    if img.ndim not in (2, 3) or img.dtype not in (np.uint8, np.float32):
        raise InvalidInputError(
            f"an image of {img.dtype} and shape {img.shape} should be uint8 or float32, (h, w, q) or (h, w)"
        )
    whole = img[:, :, None] if img.ndim == 2 else img
    return torch.from_numpy(np.ascontiguousarray(whole.transpose(2, 0, 1)))

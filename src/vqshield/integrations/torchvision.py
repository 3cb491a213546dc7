"""A shield among the transforms of torchvision (v2)."""

import math
from typing import Any

from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense
from vqshield.integrations import require
from vqshield.integrations.shield import Shield

_v2 = require("torchvision.transforms.v2", "torchvision")
_functional = require("torchvision.transforms.v2.functional", "torchvision")
_tv_tensors = require("torchvision.tv_tensors", "torchvision")
_image = require("PIL.Image", "torchvision", "pillow")
_Transform: Any = _v2.Transform

_MODES = ("L", "RGB", "LA", "RGBA")


class ShieldTransform(_Transform):  # type: ignore[misc]
    """Shields the images of a sample: tensors and PIL images, bytes and floats, but no boxes and masks.

    A sample's stream number is drawn in `make_params`. All images of one sample share it; frames of a video
    and images of a batch have one each. In DataLoader workers the draws differ between workers and epochs,
    and with a seed they repeat when the program is run again the same way.

    Args:
        defense: a spec string, "swrd:size=3", or a Defense.
        seed: the seed of the draws; None takes fresh entropy.
    """

    _transformed_types = (_tv_tensors.Image, _tv_tensors.Video, _v2._utils.is_pure_tensor, _image.Image)

    def __init__(self, defense: str | Defense = "swrd", *, seed: int | None = None) -> None:
        super().__init__()
        self.shield = Shield(defense, seed=seed)

    def make_params(self, flat_inputs: list[object]) -> dict[str, Tensor | None]:
        """The stream numbers: as many as the input with the most images needs."""
        if not flat_inputs:
            return {"streams": None}
        tensors = [_tensor(each)[0] for each in flat_inputs]
        return {"streams": self.shield.draw(max(tensors, key=_count))}

    def transform(self, inpt: object, params: dict[str, Tensor]) -> object:
        """One input, shielded, as what it came as."""
        images, alpha = _tensor(inpt)
        shielded = self.shield(images, streams=params["streams"][: _count(images)])
        if isinstance(inpt, _image.Image):
            picture = _functional.to_pil_image(shielded)
            if alpha is not None:
                picture.putalpha(alpha)
            return picture
        return _tv_tensors.wrap(shielded, like=inpt) if isinstance(inpt, _tv_tensors.TVTensor) else shielded


def _count(images: Tensor) -> int:
    """How many images a tensor (…, q, h, w) holds."""
    return math.prod(images.shape[:-3])


def _tensor(inpt: Any) -> tuple[Tensor, object]:
    """The input as a tensor, and the alpha channel of a picture that has one."""
    if not isinstance(inpt, _image.Image):
        return inpt.as_subclass(Tensor), None
    if inpt.mode not in _MODES:
        raise InvalidInputError(f"a picture of mode {inpt.mode!r} should be one of {', '.join(_MODES)}")
    alpha = inpt.getchannel("A") if inpt.mode.endswith("A") else None
    return _functional.pil_to_tensor(inpt if alpha is None else inpt.convert(inpt.mode[:-1])), alpha

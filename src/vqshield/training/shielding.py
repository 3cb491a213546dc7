"""The shield that a classifier is trained behind: fresh noise in every step, the same in a resumed run."""

import hashlib

import torch
from torch import Tensor

from vqshield.defenses import Defense, from_text


class TrainingShield:
    """A defense or Gaussian noise in front of the network in training and in tests.

    Streams are numbers of images since the first step, so they follow from the step alone. Tests have a seed
    of their own and use an image's number as its stream: the same one draw after every epoch.
    """

    def __init__(self, defense: str | Defense, *, seed: int, device: torch.device) -> None:
        def made(purpose: str) -> Defense:
            chosen = shield_seed(seed, purpose)
            if isinstance(defense, Defense):
                return defense.reseeded(chosen).to(device)
            return from_text(defense, seed=chosen).to(device)

        self._training, self._test = made("training"), made("test")
        self.attacked = made("attack")  # what the attacks of adversarial training go through

    def check(self, images: Tensor) -> None:
        """Raise where images of this size, as bytes, cannot be shielded."""
        self._training.streams(images[:1].float() / 255)

    @torch.no_grad()
    def training(self, images: Tensor, *, step: int) -> Tensor:
        """The images of a step, bytes or floats in [0, 1], shielded, as floats."""
        return self._draw(self._training, images, step * len(images))

    @torch.no_grad()
    def test(self, images: Tensor, *, first: int) -> Tensor:
        """Test images number first, first+1, …, given as bytes, shielded, as floats."""
        return self._draw(self._test, images, first)

    def _draw(self, chosen: torch.nn.Module, images: Tensor, first: int) -> Tensor:
        streams = torch.arange(first, first + len(images), device=images.device)
        floats = images if images.is_floating_point() else images.float() / 255
        shielded: Tensor = chosen(floats, streams=streams)
        return shielded


def shield_seed(seed: int, purpose: str) -> int:
    """64 bits that no other seed or purpose has."""
    return int.from_bytes(hashlib.sha256(f"vqshield shield {purpose} {seed}".encode()).digest()[:8])

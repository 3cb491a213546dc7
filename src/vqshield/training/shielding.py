"""The defense that a classifier is trained and tested behind: fresh noise in every step, repeatable."""

import hashlib

import torch
from torch import Tensor, nn

from vqshield.defenses import Defense, as_defense

TEST_BATCH = 1000


class TrainingShield:
    """A defense in front of the network in training and in tests.

    Streams are numbers of images since the first step, so they follow from the step alone. Tests have a seed
    of their own, and an image's number is its stream: every test sees the same sample of each image.
    """

    def __init__(self, defense: str | Defense, *, seed: int, device: torch.device) -> None:
        def seeded(purpose: str) -> Defense:
            return as_defense(defense, seed=shield_seed(seed, purpose)).to(device)

        self._training, self._test = seeded("training"), seeded("test")
        self.attacked = seeded("attack")  # what the attacks of adversarial training go through

    def check(self, images: Tensor) -> None:
        """Raise where images of this size, as bytes, cannot be shielded."""
        self._training.streams(images[:1].float() / 255)

    @torch.no_grad()
    def training(self, images: Tensor, *, step: int) -> Tensor:
        """The images of a step, bytes or floats in [0, 1], shielded, as floats."""
        return _sample(self._training, images, step * len(images))

    @torch.no_grad()
    def test(self, images: Tensor, *, first: int) -> Tensor:
        """Test images number first, first+1, …, given as bytes, shielded, as floats."""
        return _sample(self._test, images, first)


def _sample(defense: Defense, images: Tensor, first: int) -> Tensor:
    streams = torch.arange(first, first + len(images), device=images.device)
    floats = images if images.is_floating_point() else images.float() / 255
    shielded: Tensor = defense(floats, streams=streams)
    return shielded


def shield_seed(seed: int, purpose: str) -> int:
    """64 bits that no other seed or purpose has."""
    return int.from_bytes(hashlib.sha256(f"vqshield shield {purpose} {seed}".encode()).digest()[:8])


@torch.no_grad()
def accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    shield: TrainingShield | None = None,
    precision: str = "float32",
) -> float:
    """The fraction of byte images that the model, in eval mode, classifies correctly."""
    was_training = model.training
    model.eval()
    hits = torch.zeros((), device=images.device, dtype=torch.int64)
    for start in range(0, len(images), TEST_BATCH):
        part = slice(start, start + TEST_BATCH)
        floats = images[part].float() / 255 if shield is None else shield.test(images[part], first=start)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits = model(floats)
        hits += (logits.argmax(1) == labels[part]).sum()
    model.train(was_training)
    return int(hits) / len(images)

"""A defense for frameworks: with a gradient of its own, and for videos as well."""

import torch
from torch import Tensor, nn

from vqshield import surrogates
from vqshield.defenses import DefenseLike, as_defense
from vqshield.surrogates import Attach, Surrogate


class Shield(nn.Module):
    """A defense by itself, with a gradient of its own: what every adapter puts into its framework.

    Args:
        defense: a spec string, "swrd:size=3", or a Defense.
        surrogate: its gradient, as of `vqshield.Defended`, except "score", which needs a classifier.
        seed: the seed of the samples; None for the defense's own.
    """

    def __init__(
        self,
        defense: DefenseLike = "swrd",
        *,
        surrogate: str | Surrogate | Attach = "ste",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.defense = as_defense(defense, seed=seed)
        self._surrogate = surrogates.of_images(surrogate)
        self._surrogate.check(self.defense)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Images (…, q, h, w), shielded; streams: (B,) stream numbers that repeat a sample."""
        shielded = self.defense._with_gradient(self._surrogate, _one_batch(images), streams)
        return shielded.reshape(images.shape)

    def draw(self, images: Tensor) -> Tensor:
        """The stream number of each image, (B,), for a call or for several."""
        return self.defense.streams(_one_batch(images))

    def streams_for(self, shape: tuple[int, ...]) -> Tensor:
        """Fresh stream numbers for images of that shape (B, q, h, w), whatever they will show."""
        return self.defense.streams(torch.zeros(1, *shape[1:]).expand(shape))


def _one_batch(images: Tensor) -> Tensor:
    """Images of a framework's own class as plain ones, and batches of videos as one batch of images."""
    if not isinstance(images, Tensor):
        return images  # the defense says what is wrong with it
    plain = images.as_subclass(Tensor)
    return plain.flatten(0, -4) if plain.dim() > 4 else plain

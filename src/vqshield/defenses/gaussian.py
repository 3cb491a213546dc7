"""Plain Gaussian noise on the image, the baseline of every noisy quantizer; and any shield by its text.

It quantizes nothing, so it is no defense of the registry. A certificate treats both alike.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vqshield import checks, operators
from vqshield.defenses import Defense, create, list_defenses
from vqshield.errors import InvalidInputError
from vqshield.noise import Draw, Stage
from vqshield.settings import parse_spec

GAUSSIAN = "gaussian"
_AT_ONCE = 2**24  # values whose noise is made at once on a GPU; a Gaussian value takes about 128 bytes
_CACHE_FRIENDLY = 2**17  # and on a CPU


class GaussianNoise(nn.Module):
    """images + sigma·N(0, I), drawn anew for every image in every call: randomised smoothing as it stands.

    Nothing is clamped, as in Cohen et al. (2019): the classifier sees the Gaussian itself. Clamping would be
    post-processing, which no certificate minds, but it is not what others compare with. The noise is that of
    a defense with noise="shared" and the same seed, value for value, so the two differ by the quantizer (and
    its clamping) alone.
    """

    def __init__(self, *, sigma: float, seed: int) -> None:
        super().__init__()
        self.sigma = checks.real("sigma", sigma)
        self.seed = checks.whole("seed", seed, least=0, below=2**64)
        self._next_stream: Tensor
        self.register_buffer("_next_stream", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Noisy images of the same shape, dtype and device; given stream numbers repeat a draw."""
        streams = self.streams(images, streams)
        checks.pixel_values(images)
        flat = images.detach().flatten(1)
        noisy = torch.empty_like(flat)
        most = _CACHE_FRIENDLY if images.device.type == "cpu" else _AT_ONCE
        rows = max(1, most // flat.shape[1])
        for first in range(0, len(flat), rows):
            part = slice(first, first + rows)
            values = Draw(self.seed, streams[part]).normals(Stage.CODEBOOK, 0, flat.shape[1])
            noisy[part] = values.mul_(self.sigma).add_(flat[part])
        return noisy.view(images.shape)

    def streams(self, images: Tensor, given: Tensor | None = None) -> Tensor:
        """The stream number of each image (B,): those given, or ones not used before."""
        checks.image_batch(images)
        if given is not None:
            return checks.per_image("streams", given, images)
        fresh: Tensor = operators.fresh_streams(self._next_stream, images.detach(), False)
        return fresh

    def settings(self) -> dict[str, Any]:
        """What decides the output, besides seed and streams."""
        return {"sigma": self.sigma}

    def certificate_terms(self) -> dict[str, Any]:
        """As of single pixels that share one draw on the image: sigma_eff = sigma, and nothing is copied."""
        noise = {"sigma": self.sigma, "tau": self.sigma, "noise": "image", "shared": True}
        return {"kind": "disjoint", "size": 1, **noise}

    def reseeded(self, seed: int) -> "GaussianNoise":
        """The same noise with another seed, its streams from the start."""
        return GaussianNoise(sigma=self.sigma, seed=seed).to(self._next_stream.device)

    def extra_repr(self) -> str:
        """The settings."""
        return f"sigma={self.sigma!r}"


Shield = Defense | GaussianNoise


def shields() -> list[str]:
    """The names that `shield` knows."""
    return [*list_defenses(), GAUSSIAN]


def shield(text: str, *, seed: int, called: str = "shield") -> Shield:
    """A defense, or Gaussian noise, as typed: "swrd:noise=image,sigma=0.1" or "gaussian:sigma=0.1".

    called: what the text is to whoever typed it, for the message where the name is unknown.
    """
    name, settings = parse_spec(text)
    checks.one_of(called, name, shields())
    if "seed" in settings:
        raise InvalidInputError(
            f"seed={settings['seed']} in {text!r} would fix every draw; give the run a seed instead"
        )
    if name != GAUSSIAN:
        return create(name, **settings, seed=seed)
    if list(settings) != ["sigma"]:
        found = ", ".join(settings) or "none"
        raise InvalidInputError(f"{text!r} has the settings {found}; {GAUSSIAN} takes sigma and nothing else")
    return GaussianNoise(sigma=settings["sigma"], seed=seed)  # type: ignore[arg-type]

"""Defense: images in, quantized images out. What every vector-quantizing defense shares.

images → patches → noise → codebook (k-means) → assignment → rebuild → images, carried out by a backend
"""

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vqshield import checks, clustering, operators
from vqshield.clustering import Recipe
from vqshield.errors import InvalidInputError
from vqshield.noise import Stage
from vqshield.operators import Job
from vqshield.patches import Disjoint, Sliding

DEFAULT_NOISE = 4 / 255
NOISES = ("patch", "image", "shared")


class Defense(nn.Module, ABC):
    """Replaces every patch of an image by the nearest of k centres found in that image alone.

    Parameters, with the paper's symbols:
        codes: k, the number of centres.
        sigma: standard deviation of the noise epsilon_i on the patches that k-means sees, in units of [0, 1].
        tau: standard deviation of the noise omega_i on the patches when their nearest centre is sought.
        noise: "patch" draws both noises anew for every patch, as the paper does. "image" adds them to the
            image before it is cut: one draw for k-means, one for the assignment, and windows that overlap see
            the same noise. "shared" is one draw on the image for both, and needs sigma = tau. Noisy images
            are clamped to [0, 1].
        iterations: at most so many rounds of Lloyd's algorithm.
        init: "kmeans++" or "random", the patches that k-means starts from.
        tolerance: an image is done when at most this share of its patches changes label (0: none).
        backend: which implementation, "auto" or one of vqshield.clustering.list_backends().
        memory: bytes of temporaries that a call may use; larger batches are worked off in chunks.
        seed: 64-bit key of all randomness. None takes seed and streams from the operating system's entropy:
            unpredictable, and independent in every copy, thread and process.

    Noise stays on in eval(). The global torch RNG is neither read nor advanced.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init__(
        self,
        *,
        codes: int = 25,
        sigma: float = DEFAULT_NOISE,
        tau: float = DEFAULT_NOISE,
        noise: str = "patch",
        iterations: int = 20,
        init: str = "kmeans++",
        tolerance: float = 0.0,
        backend: str = "auto",
        memory: int = 2**30,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.codes = checks.whole("codes", codes, least=1, below=checks.MOST_CODES + 1)
        self.sigma = checks.real("sigma", sigma, most=checks.MOST_NOISE)
        self.tau = checks.real("tau", tau, most=checks.MOST_NOISE)
        self.noise = checks.one_of("noise", noise, NOISES)
        if noise == "shared" and self.sigma != self.tau:
            raise InvalidInputError(
                f"sigma={sigma} and tau={tau} should be equal for noise='shared': it is one draw for both"
            )
        self.iterations = checks.whole("iterations", iterations, least=1, below=checks.MOST_ITERATIONS + 1)
        self.init = checks.one_of("init", init, clustering.list_inits())
        self.tolerance = checks.real("tolerance", tolerance, most=1.0)
        self.backend = checks.one_of("backend", backend, ["auto", *clustering.list_backends()])
        self.memory = checks.whole("memory", memory, least=1)
        self._given_seed = None if seed is None else checks.whole("seed", seed, least=0, below=2**64)
        self.seed = int.from_bytes(os.urandom(8)) if seed is None else seed
        self._next_stream: Tensor
        self.register_buffer("_next_stream", torch.zeros(1, dtype=torch.int64), persistent=False)

    @classmethod
    def preset(cls, data: str, **changes: Any) -> Self:
        """The paper's settings for mnist, cifar10, cifar100 or imagenet, with changes of your own."""
        checks.one_of("preset", data, cls.PRESETS)
        return cls(**{**cls.PRESETS[data], **changes})

    @property
    @abstractmethod
    def grid(self) -> Disjoint | Sliding:
        """How images are cut."""

    def settings(self) -> dict[str, Any]:
        """What decides the output, besides seed and streams: keyword arguments of the constructor."""
        names = ("codes", "sigma", "tau", "noise", "iterations", "init", "tolerance")
        return {name: getattr(self, name) for name in names}

    def certificate_terms(self) -> dict[str, Any]:
        """What a worst-case certificate depends on: the arguments of vqshield.certificates.coverage."""
        on_image, grid = self.noise != "patch", self.grid
        return {
            "kind": "disjoint" if isinstance(grid, Disjoint) else "sliding",
            "size": grid.size,
            "sigma": self.sigma,
            "tau": self.tau,
            # Noise on the image comes before the padding, which then copies no pixel without its noise.
            "padding": grid.padding if isinstance(grid, Disjoint) and not on_image else "zero",
            "noise": "image" if on_image else "patch",
            "shared": self.noise == "shared",
        }

    def recipe(self) -> Recipe:
        """What a backend is told; noise that is on the image already is none of its business."""
        settings = Defense.settings(self)
        if settings.pop("noise") != "patch":
            settings |= {"sigma": 0.0, "tau": 0.0}
        return Recipe(grid=self.grid, memory=self.memory, **settings)

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Quantized images of the same shape, dtype and device; given stream numbers repeat a draw."""
        streams = self.streams(images, streams)
        if self.noise == "image":  # two different images: no backend does both stages in one go
            return self.quantize(images, self.codebook(images, streams=streams), streams=streams)
        seen = self.seen(images, Stage.CODEBOOK, streams=streams)
        result: Tensor = operators.shield(seen, streams, self._job())
        return result

    def codebook(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """The centres (B, k, d) that k-means finds in the noisy patches of each image."""
        streams = self.streams(images, streams)
        seen = self.seen(images, Stage.CODEBOOK, streams=streams)
        result: Tensor = operators.codebook(seen, streams, self._job())
        return result

    def quantize(self, images: Tensor, centres: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Assignment and rebuild with given centres (B, k, d), k any number."""
        streams = self.streams(images, streams)
        dimensions = images.shape[1] * self.grid.size**2
        if centres.dim() != 3 or (len(centres), centres.shape[2]) != (len(images), dimensions):
            expected = f"({len(images)}, k, {dimensions})"
            raise InvalidInputError(f"centres of shape {tuple(centres.shape)} should be {expected}")
        given = centres.detach().to(images)
        seen = self.seen(images, Stage.ASSIGNMENT, streams=streams)
        result: Tensor = operators.quantize(seen, given, streams, self._job())
        return result

    def seen(self, images: Tensor, stage: Stage, *, streams: Tensor) -> Tensor:
        """The images that a stage cuts into patches: with their noise, where that is on the image."""
        if self.noise == "patch":
            return images.detach()
        scale = self.sigma if stage == Stage.CODEBOOK else self.tau
        drawn = Stage.CODEBOOK if self.noise == "shared" else stage
        result: Tensor = operators.noisy_images(images.detach(), streams, self._job(), int(drawn), scale)
        return result

    def reseeded(self, seed: int) -> Self:
        """The same defense with another seed, its streams from the start."""
        other = type(self)(**self.settings(), backend=self.backend, memory=self.memory, seed=seed)
        return other.to(self._next_stream.device)

    def extra_repr(self) -> str:
        """The settings; the seed only where it was given, so that no log gives a random one away."""
        shown = self.settings() | ({} if self._given_seed is None else {"seed": self.seed})
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _job(self) -> str:
        return Job(self.recipe(), self.seed, self.backend).encode()

    def streams(self, images: Tensor, given: Tensor | None = None) -> Tensor:
        """The stream number of each image (B,): those given, or ones not used before. Checks the images."""
        checks.image_batch(images)
        height, width = images.shape[2:]
        size = self.grid.size
        if size > min(height, width):
            raise InvalidInputError(f"size={size} should be at most min(h, w)={min(height, width)}")
        count = self.grid.count(height, width)
        if self.codes > count:
            raise InvalidInputError(f"codes={self.codes} should be at most the number of patches n={count}")
        if given is not None:
            return checks.per_image("streams", given, images)
        entropy = self._given_seed is None
        fresh: Tensor = operators.fresh_streams(self._next_stream, images.detach(), entropy)
        return fresh

"""Defense: images in, quantized images out. The steps every vector-quantizing defense shares.

images → patches → noise → codebook (k-means) → assignment → rebuild → images
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from vqshield import checks, clustering
from vqshield.clustering import KMeans, NoisyPatches, nearest
from vqshield.errors import InvalidInputError
from vqshield.fixedpoint import FixedPoint
from vqshield.noise import LARGEST_NORMAL, Draw, Stage
from vqshield.patches import PatchGrid

DEFAULT_NOISE = 4 / 255
_CACHE_FRIENDLY = 2**26  # on a CPU a batch is cut so that a chunk's temporaries stay near the cores
_VALUE = 8  # bytes of a float64


class Defense(nn.Module, ABC):
    """Replaces every patch of an image by the nearest of k centres found in that image alone.

    Parameters, with the paper's symbols:
        codes: k, the number of centres.
        sigma: standard deviation of the noise epsilon_i on the patches that k-means sees, in units of [0, 1].
        tau: standard deviation of the noise omega_i on the patches when their nearest centre is sought.
        iterations: at most so many rounds of Lloyd's algorithm.
        init: "kmeans++" or "random", the patches that k-means starts from.
        tolerance: an image is done when at most this share of its patches changes label (0: none).
        backend: which implementation of k-means, "auto" or one of vqshield.clustering.backends().
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
        iterations: int = 20,
        init: str = "kmeans++",
        tolerance: float = 0.0,
        backend: str = "auto",
        memory: int = 2**30,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.codes = checks.whole("codes", codes, least=1)
        self.sigma = checks.real("sigma", sigma)
        self.tau = checks.real("tau", tau)
        self.iterations = checks.whole("iterations", iterations, least=1)
        self.init = checks.one_of("init", init, clustering.inits())
        self.tolerance = checks.real("tolerance", tolerance, most=1.0)
        self.backend = checks.one_of("backend", backend, ["auto", *clustering.backends()])
        self.memory = checks.whole("memory", memory, least=1)
        self._given_seed = None if seed is None else checks.whole("seed", seed, least=0, below=2**64)
        self.seed = int.from_bytes(os.urandom(8)) if seed is None else seed
        self._next_stream = 0

    @classmethod
    def preset(cls, data: str, **changes: Any) -> Self:
        """The paper's settings for mnist, cifar10, cifar100 or imagenet, with changes of your own."""
        checks.one_of("preset", data, cls.PRESETS)
        return cls(**{**cls.PRESETS[data], **changes})

    @property
    @abstractmethod
    def grid(self) -> PatchGrid:
        """How images are cut."""

    @abstractmethod
    def rebuild(self, images: Tensor, noisy: NoisyPatches, centres: Tensor, labels: Tensor) -> Tensor:
        """The images (float64) that the centres make when patch i is replaced by centre labels[i]."""

    def settings(self) -> dict[str, Any]:
        """What decides the output, besides seed and streams: keyword arguments of the constructor."""
        names = ("codes", "sigma", "tau", "iterations", "init", "tolerance")
        return {name: getattr(self, name) for name in names}

    def fresh_streams(self, count: int) -> Tensor:
        """Stream numbers not used before: random ones, or with a given seed the next ones in order."""
        if self._given_seed is None:
            return torch.frombuffer(bytearray(os.urandom(8 * count)) or bytearray(8), dtype=torch.int64)[
                :count
            ]
        first, self._next_stream = self._next_stream, self._next_stream + count
        return torch.arange(first, first + count)

    @torch.no_grad()
    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Quantized images of the same shape, dtype and device; given stream numbers repeat a draw."""
        draw = self._check(images, streams)
        output = torch.empty_like(images)
        for part in self._chunks(images):
            centres = self._fit(images[part], draw[part])
            output[part] = self._quantize(images[part], centres, draw[part])
        return output

    @torch.no_grad()
    def codebook(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """The centres (B, k, d) that k-means finds in the noisy patches of each image."""
        draw = self._check(images, streams)
        shape = len(images), self.codes, images.shape[1] * self.grid.size**2
        centres = images.new_empty(shape)
        for part in self._chunks(images):
            centres[part] = self._fit(images[part], draw[part])
        return centres

    @torch.no_grad()
    def quantize(self, images: Tensor, centres: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Assignment and rebuild with given centres (B, k, d), k any number."""
        draw = self._check(images, streams)
        dimensions = images.shape[1] * self.grid.size**2
        if centres.dim() != 3 or (len(centres), centres.shape[2]) != (len(images), dimensions):
            expected = f"({len(images)}, k, {dimensions})"
            raise InvalidInputError(f"centres of shape {tuple(centres.shape)} should be {expected}")
        if not bool(torch.isfinite(centres).all()):
            raise InvalidInputError("centres contain nan or infinity; every value should be finite")
        output = torch.empty_like(images)
        for part in self._chunks(images):
            output[part] = self._quantize(images[part], centres[part].double(), draw[part])
        return output

    def extra_repr(self) -> str:
        """The settings; the seed only where it was given, so that no log gives a random one away."""
        shown = self.settings() | ({} if self._given_seed is None else {"seed": self.seed})
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def _check(self, images: Tensor, streams: Tensor | None) -> Draw:
        checks.image_batch(images)
        height, width = images.shape[2:]
        size = self.grid.size
        if size > min(height, width):
            raise InvalidInputError(f"size={size} should be at most min(h, w)={min(height, width)}")
        count = self.grid.count(height, width)
        if self.codes > count:
            raise InvalidInputError(f"codes={self.codes} should be at most the number of patches n={count}")
        fresh = self.fresh_streams(len(images)) if streams is None else streams
        return Draw(self.seed, checks.per_image("streams", fresh, images))

    def _bytes_an_image(self, images: Tensor) -> int:
        """Temporaries of one image: patches with their random words, and scores of all centres."""
        values = self.grid.count(*images.shape[2:]) * images.shape[1] * self.grid.size**2
        scores = self.grid.count(*images.shape[2:]) * self.codes
        return _VALUE * (8 * values + 3 * scores)

    def _chunks(self, images: Tensor) -> Iterator[slice]:
        limit = min(self.memory, _CACHE_FRIENDLY) if images.device.type == "cpu" else self.memory
        step = max(1, limit // self._bytes_an_image(images))
        for start in range(0, len(images), step):
            yield slice(start, start + step)

    def _noisy(self, images: Tensor, scale: float, stage: Stage, draw: Draw) -> NoisyPatches:
        dimensions = images.shape[1] * self.grid.size**2
        fixed = FixedPoint.fitting(dimensions, bound=1 + LARGEST_NORMAL * max(self.sigma, self.tau))
        return NoisyPatches(self.grid.pad(images), self.grid, scale, stage, draw, fixed)

    def _fit(self, images: Tensor, draw: Draw) -> Tensor:
        patches = self._noisy(images, self.sigma, Stage.CODEBOOK, draw)
        if patches.bytes_if_kept <= self.memory:
            patches = patches.keep()
        settings = KMeans(self.codes, self.iterations, self.init, self.tolerance)
        return clustering.get(self.backend).fit(patches, settings)

    def _quantize(self, images: Tensor, centres: Tensor, draw: Draw) -> Tensor:
        noisy = self._noisy(images, self.tau, Stage.ASSIGNMENT, draw)
        on_grid = noisy.fixed.round(centres)
        labels = torch.cat([nearest(block, on_grid) for block in noisy], 1)
        return self.rebuild(images, noisy, centres, labels).clamp_(0, 1).to(images.dtype)

"""The interface of a backend (codebook, assignment and rebuild), and the checks that every call passes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint, Sliding

Init = Literal["kmeans++", "random"]
INITS: tuple[Init, ...] = get_args(Init)
WEIGHTS_FROM = ("clean", "noisy")
Wanted = Literal["centres", "images", "labels"]
"""What a call returns: centres (B, k, d), quantized images (B, q, h, w), or their patches' labels (B, n)."""
MOST_VALUE = 1e6
"""The largest absolute value of a centre or of a vector of `lloyd`: float32 squares are far from overflow."""
_MOST_PATCHES = 2**31 - 1  # labels are 32 bits wide in the kernels
_MOST_NOISE_VALUES = 2**34  # of a stream and stage: the counter has 32 bits, and four values each


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a defense's output besides the image, the seed and its stream.

    The names are those of the defenses' settings. memory does not change any value: it is the bytes for noisy
    patches that are kept from one pass over an image to the next. Patches that do not fit are drawn again.

    Raises:
        InvalidInputError: a setting beyond what the backends' arithmetic holds.
    """

    grid: Disjoint | Sliding
    codes: int
    iterations: int
    init: str
    tolerance: float = 0.0
    sigma: float = 0.0
    tau: float = 0.0
    beta: float = 0.0
    weights_from: str = "clean"
    memory: int = 2**30

    def __post_init__(self) -> None:
        if not isinstance(self.grid, Disjoint | Sliding):
            raise InvalidInputError(f"grid={self.grid!r} should be a Disjoint or a Sliding")
        checks.whole("size", self.grid.size, least=1)
        checks.whole("codes", self.codes, least=1, below=checks.MOST_CODES + 1)
        _check_rounds(self.iterations, self.tolerance)
        checks.one_of("init", self.init, INITS)
        checks.real("sigma", self.sigma, most=checks.MOST_NOISE)
        checks.real("tau", self.tau, most=checks.MOST_NOISE)
        checks.real("beta", self.beta, most=checks.MOST_BETA)
        checks.one_of("weights_from", self.weights_from, WEIGHTS_FROM)
        checks.whole("memory", self.memory, least=1)

    def count(self, padded: Tensor) -> int:
        """n, the number of patches in each of these images."""
        return self.grid.count(*padded.shape[2:])

    def dimensions(self, padded: Tensor) -> int:
        """d, the number of values in a patch of these images."""
        return self.grid.dimensions(padded.shape[1])


class Shape:
    """Images of one shape, with one recipe and number of codes, and what follows from them."""

    def __init__(self, recipe: Recipe, codes: int, channels: int, height: int, width: int) -> None:
        self.recipe, self.codes = recipe, codes
        self.channels, self.height, self.width = channels, height, width
        self.rows, self.columns = recipe.grid.shape(height, width)  # of patches
        self.patches = self.rows * self.columns
        self.dimensions = recipe.grid.dimensions(channels)  # d, the number of values in a patch
        self.is_sliding = isinstance(recipe.grid, Sliding)


class Backend(ABC):
    """One implementation of the quantizers, for images padded to what the grid needs.

    An image's result depends on the image, the recipe, the seed and its stream alone, never on its batch.
    Every call is checked here, once, before the implementation sees it.
    """

    name: str
    dtypes: tuple[torch.dtype, ...] = checks.IMAGE_DTYPES
    """Of images; those of checks.IMAGE_DTYPES at least."""
    looks_at_values = False
    """Whether its kernels refuse wrong values themselves; otherwise values are checked before."""

    @abstractmethod
    def missing(self, device: torch.device) -> str | None:
        """Why it cannot serve images on that device; None if it can."""

    def kernel_name(self, device: torch.device) -> str:
        """The implementation that runs there."""
        return self.name

    def codebook(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The centres (B, k, d) of k-means over the noisy patches of images (B, q, h, w); of bytes and halves
        they are float32."""
        return self._checked_run("centres", padded, recipe, draw)

    def quantize(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """Assignment and rebuild with given centres (B, k, d); clamped to [0, 1]."""
        return self._checked_run("images", padded, recipe, draw, centres)

    def shield(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The codebook and then the quantized images: equal to the two calls above."""
        return self._checked_run("images", padded, recipe, draw)

    def assignments(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The number (B, n) of the centre that quantize puts in place of each patch, int64."""
        return self._checked_run("labels", padded, recipe, draw, centres)

    def lloyd(self, patches: Tensor, start: Tensor, *, iterations: int, tolerance: float) -> Tensor:
        """Plain k-means from given centres: (B, n, d), (B, k, d) → (B, k, d)."""
        self._check_place("patches", patches)
        _check_vectors("patches", patches)
        batch, count, dimensions = patches.shape
        if not (1 <= count <= _MOST_PATCHES and dimensions >= 1):
            shape = tuple(patches.shape)
            raise InvalidInputError(
                f"patches of shape {shape} should have 1 to {_MOST_PATCHES} vectors, none empty"
            )
        _check_centres("start", start, batch, dimensions, "patches", patches)
        _check_rounds(iterations, tolerance)
        if not self.looks_at_values:
            check_magnitudes(patches=patches, start=start)
        return self._lloyd(patches, start, iterations, tolerance)

    def _checked_run(
        self, wanted: Wanted, padded: Tensor, recipe: Recipe, draw: Draw, *given: Tensor
    ) -> Tensor:
        """With the given centres, or without any, with those that k-means finds."""
        self._check_place("images", padded)
        check_images(padded, recipe, draw, self.dtypes)
        count = recipe.count(padded)
        for centres in given:
            _check_centres("centres", centres, len(padded), recipe.dimensions(padded), "images", padded)
        if not given and recipe.codes > count:
            raise InvalidInputError(f"codes={recipe.codes} should be at most the number of patches n={count}")
        if not self.looks_at_values:
            checks.pixel_values(padded)
            for centres in given:
                check_magnitudes(centres=centres)
        return self._run(wanted, padded, given[0] if given else None, recipe, draw)

    def _check_place(self, name: str, values: object) -> None:
        """Refuse tensors that the implementation cannot reach."""
        if isinstance(values, Tensor):
            reason = self.missing(values.device)
            if reason is not None:
                raise InvalidInputError(f"{name} on {values.device} cannot be served: {reason}")
            if values.layout != torch.strided:
                raise InvalidInputError(f"{name} of layout {values.layout} should be a dense tensor")

    @abstractmethod
    def _run(
        self, wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw
    ) -> Tensor:
        """The wanted tensor; without centres, of those that k-means finds."""

    @abstractmethod
    def _lloyd(self, patches: Tensor, start: Tensor, iterations: int, tolerance: float) -> Tensor:
        """As lloyd."""


def check_images(
    padded: Tensor, recipe: Recipe, draw: Draw, dtypes: tuple[torch.dtype, ...] = checks.IMAGE_DTYPES
) -> None:
    """Refuse images that the recipe's grid cannot cut, and streams that are not one number per image.

    checks.pixel_values looks at the values.
    """
    checks.image_batch(padded, dtypes)
    (height, width), size = padded.shape[2:], recipe.grid.size
    if size > min(height, width):
        raise InvalidInputError(f"size={size} should be at most min(h, w)={min(height, width)}")
    if isinstance(recipe.grid, Disjoint) and (height % size or width % size):
        raise InvalidInputError(
            f"images of {height}×{width} pixels should be padded to multiples of size={size}"
        )
    patches, values = recipe.count(padded), recipe.dimensions(padded)
    if patches > _MOST_PATCHES or patches * values > _MOST_NOISE_VALUES:
        raise InvalidInputError(
            f"n={patches} patches of d={values} values should be at most {_MOST_PATCHES}, and n·d at most "
            f"{_MOST_NOISE_VALUES}"
        )
    checks.whole("seed", draw.seed, least=0, below=2**64)
    _check_device("streams", draw.streams, "images", padded)
    checks.per_image("streams", draw.streams, padded)


def check_soft(
    padded: Tensor, assigned: Tensor, centres: Tensor, slopes: Tensor, recipe: Recipe, draw: Draw
) -> None:
    """Check the arguments of a soft gradient; assigned and slopes have the shape of the images."""
    for name, values in (("assigned", assigned), ("slopes", slopes)):
        _check_device(name, values, "images", padded)
        if values.shape != padded.shape:
            raise InvalidInputError(
                f"{name} of shape {tuple(values.shape)} should be as the images, {tuple(padded.shape)}"
            )
    check_images(padded, recipe, draw)
    _check_centres("centres", centres, len(padded), recipe.dimensions(padded), "images", padded)


def check_magnitudes(**tensors: Tensor) -> None:
    """Centres or vectors whose values are finite and not too large."""
    for name, values in tensors.items():
        checks.within(name, values, MOST_VALUE)


def _check_rounds(iterations: int, tolerance: float) -> None:
    checks.whole("iterations", iterations, least=1, below=checks.MOST_ITERATIONS + 1)
    checks.real("tolerance", tolerance, most=1.0)


def _check_centres(
    name: str, centres: Tensor, batch: int, dimensions: int, other: str, expected: Tensor
) -> None:
    """Centres (B, k, d), k any number, on the device of the tensor `other`."""
    _check_vectors(name, centres)
    if (len(centres), centres.shape[2]) != (batch, dimensions):
        shape = f"({batch}, k, {dimensions})"
        raise InvalidInputError(f"{name} of shape {tuple(centres.shape)} should be {shape}")
    if not 1 <= centres.shape[1] <= checks.MOST_CODES:
        raise InvalidInputError(
            f"{name} of shape {tuple(centres.shape)} should have from 1 to {checks.MOST_CODES} centres"
        )
    _check_device(name, centres, other, expected)


def _check_vectors(name: str, values: object) -> None:
    if not isinstance(values, Tensor) or values.dtype not in checks.IMAGE_DTYPES:
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise InvalidInputError(f"{name} of type {kind} should be a torch.float32 or torch.float64 tensor")
    if values.dim() != 3:
        raise InvalidInputError(f"{name} of shape {tuple(values.shape)} should have 3 dimensions")


def _check_device(name: str, values: object, other: str, expected: Tensor) -> None:
    if isinstance(values, Tensor) and (values.device, values.layout) != (expected.device, expected.layout):
        raise InvalidInputError(
            f"{name} on {values.device} ({values.layout}) should be on {expected.device} "
            f"({expected.layout}), as the {other} are"
        )

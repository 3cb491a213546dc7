"""The interface of a backend (codebook, assignment and rebuild), and the checks that every call passes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint, Sliding

Init = Literal["kmeans++", "random"]
INITS: tuple[Init, ...] = get_args(Init)
WeightsFrom = Literal["clean", "noisy"]
RECIPE_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "codes": partial(checks.whole, least=1, below=checks.MOST_CODES + 1),
    "sigma": partial(checks.real, most=checks.MOST_NOISE),
    "tau": partial(checks.real, most=checks.MOST_NOISE),
    "iterations": partial(checks.whole, least=1, below=checks.MOST_ITERATIONS + 1),
    "init": partial(checks.one_of, choices=INITS),
    "tolerance": partial(checks.real, most=1.0),
    "beta": partial(checks.real, most=checks.MOST_BETA),
    "weights_from": partial(checks.one_of, choices=get_args(WeightsFrom)),
    "memory": partial(checks.whole, least=1),
}
"""What a value of each setting must be, for recipes and defenses; each check returns the value."""
Wanted = Literal["centres", "images", "labels"]
"""What a call returns: centres (B, k, d), quantized images (B, q, h, w), or their patches' labels (B, n)."""
MOST_VALUE = 1e6
"""The largest absolute value in a centre: float32 squares are far from overflow."""
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
        for name, check in RECIPE_CHECKS.items():
            check(name, getattr(self, name))

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
        return self.run("centres", padded, recipe, draw)

    def quantize(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """Assignment and rebuild with given centres (B, k, d); clamped to [0, 1]."""
        return self.run("images", padded, recipe, draw, centres)

    def shield(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The codebook and then the quantized images: equal to the two calls above."""
        return self.run("images", padded, recipe, draw)

    def assignments(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The number (B, n) of the centre that quantize puts in place of each patch, int64."""
        return self.run("labels", padded, recipe, draw, centres)

    def run(
        self,
        wanted: Wanted,
        padded: Tensor,
        recipe: Recipe,
        draw: Draw,
        *given: Tensor,
        trusted: bool = False,
    ) -> Tensor:
        """The wanted tensor, of the given centres, or without any, of those that k-means finds.

        trusted: values were checked already: pixels in [0, 1], centres of at most MOST_VALUE.
        """
        self._check_place(padded)
        check_images(padded, recipe, draw, self.dtypes)
        for centres in given:
            _check_centres(centres, padded, recipe)
        if not given:
            check_codes(recipe.codes, recipe.count(padded))
        if not (trusted or self.looks_at_values):
            checks.pixel_values(padded)
            for centres in given:
                check_magnitudes(centres=centres)
        return self._run(wanted, padded, given[0] if given else None, recipe, draw)

    def _check_place(self, images: object) -> None:
        """Refuse tensors that the implementation cannot reach."""
        if isinstance(images, Tensor):
            reason = self.missing(images.device)
            if reason is not None:
                raise InvalidInputError(f"images on {images.device} cannot be served: {reason}")
            if images.layout != torch.strided:
                raise InvalidInputError(f"images of layout {images.layout} should be a dense tensor")

    @abstractmethod
    def _run(
        self, wanted: Wanted, padded: Tensor, centres: Tensor | None, recipe: Recipe, draw: Draw
    ) -> Tensor:
        """As `run`, after the checks."""


def check_images(
    padded: Tensor, recipe: Recipe, draw: Draw, dtypes: tuple[torch.dtype, ...] = checks.IMAGE_DTYPES
) -> None:
    """Refuse images that the recipe's grid cannot cut, and streams that are not one number per image.

    checks.pixel_values looks at the values.
    """
    checks.image_batch(padded, dtypes)
    (height, width), size = padded.shape[2:], recipe.grid.size
    checks.fits("size", size, padded)
    if isinstance(recipe.grid, Disjoint) and (height % size or width % size):
        raise InvalidInputError(f"images of {height}×{width} should be padded to multiples of size={size}")
    patches, values = recipe.count(padded), recipe.dimensions(padded)
    if patches > _MOST_PATCHES or patches * values > _MOST_NOISE_VALUES:
        raise InvalidInputError(
            f"n={patches} patches of d={values} values should be at most {_MOST_PATCHES}, and n·d at most "
            f"{_MOST_NOISE_VALUES}"
        )
    checks.whole("seed", draw.seed, least=0, below=2**64)
    _check_device("streams", draw.streams, padded)
    checks.per_image("streams", draw.streams, padded)


def check_codes(codes: int, patches: int) -> None:
    """At most as many centres as patches."""
    if codes > patches:
        raise InvalidInputError(f"codes={codes} should be at most the number of patches n={patches}")


def check_soft(
    padded: Tensor, assigned: Tensor, centres: Tensor, slopes: Tensor, recipe: Recipe, draw: Draw
) -> None:
    """Check the arguments of a soft gradient; assigned and slopes have the shape of the images."""
    for name, values in (("assigned", assigned), ("slopes", slopes)):
        _check_device(name, values, padded)
        if values.shape != padded.shape:
            raise InvalidInputError(
                f"{name} of shape {tuple(values.shape)} should be as the images, {tuple(padded.shape)}"
            )
    check_images(padded, recipe, draw)
    _check_centres(centres, padded, recipe)


def check_magnitudes(**tensors: Tensor) -> None:
    """Centres or vectors whose values are finite and not too large."""
    for name, values in tensors.items():
        checks.within(name, values, MOST_VALUE)


def _check_centres(centres: object, padded: Tensor, recipe: Recipe) -> None:
    """Centres (B, k, d) of the images, k any number."""
    if not isinstance(centres, Tensor) or centres.dtype not in checks.IMAGE_DTYPES:
        kind = centres.dtype if isinstance(centres, Tensor) else type(centres).__name__
        raise InvalidInputError(f"centres of type {kind} should be a torch.float32 or torch.float64 tensor")
    shape, batch, dimensions = tuple(centres.shape), len(padded), recipe.dimensions(padded)
    if len(shape) != 3 or (shape[0], shape[2]) != (batch, dimensions):
        raise InvalidInputError(f"centres of shape {shape} should be ({batch}, k, {dimensions})")
    if not 1 <= shape[1] <= checks.MOST_CODES:
        raise InvalidInputError(f"centres of shape {shape} should have from 1 to {checks.MOST_CODES} centres")
    _check_device("centres", centres, padded)


def _check_device(name: str, values: object, images: Tensor) -> None:
    if isinstance(values, Tensor) and (values.device, values.layout) != (images.device, images.layout):
        raise InvalidInputError(
            f"{name} on {values.device} ({values.layout}) should be on {images.device} "
            f"({images.layout}), as the images are"
        )

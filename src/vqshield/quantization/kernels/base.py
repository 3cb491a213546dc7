"""What a backend is: an implementation of codebook, assignment and rebuild; and what is checked before it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels.starts import START
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint, Sliding

WEIGHTS_FROM = ("clean", "noisy")
Wanted = Literal["centres", "images", "labels"]
"""What a call returns: centres (B, k, d), quantized images (B, q, h, w), or their patches' labels (B, n)."""
MOST_VALUE = 1e6
"""No centre and no vector of `lloyd` is larger in size: float32 squares of them are far from overflow."""
_MOST_PATCHES = 2**31 - 1  # labels are 32 bits wide in the kernels
_MOST_NOISE_VALUES = 2**34  # of a stream and stage: the counter has 32 bits, and four values each


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a defense's output besides the image, the seed and its stream.

    The names are those of the defenses' settings. memory decides no value: bytes for noisy patches that are
    kept from one pass over an image to the next; an image whose patches do not fit has them drawn again.
    """

    grid: Disjoint | Sliding
    codes: int
    iterations: int
    init: str
    tolerance: float
    sigma: float
    tau: float
    beta: float = 0.0
    weights_from: str = "clean"
    memory: int = 2**30

    def count(self, padded: Tensor) -> int:
        """n, the number of patches in each of these images."""
        return self.grid.count(*padded.shape[2:])

    def dimensions(self, padded: Tensor) -> int:
        """d, the number of values in a patch of these images."""
        return self.grid.dimensions(padded.shape[1])


class Backend(ABC):
    """One implementation of the quantizers, for images padded to what the grid needs.

    An image's result depends on the image, the recipe, the seed and its stream alone, never on its batch.
    Every call is checked here, once, before the implementation sees it.
    """

    name: str
    dtypes: tuple[torch.dtype, ...] = checks.IMAGE_DTYPES
    """Of images; those of checks.IMAGE_DTYPES at least."""
    looks_at_values = False
    """Whether its kernels refuse wrong values themselves: then nothing looks at them before."""

    @abstractmethod
    def missing(self, device: torch.device) -> str | None:
        """Why it cannot serve images on that device; None if it can."""

    def kernel_name(self, device: torch.device) -> str:
        """The implementation that runs there."""
        return self.name

    def codebook(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The centres (B, k, d) of k-means over the noisy patches of images (B, q, h, w); of bytes and halves
        they are float32."""
        return self._found("centres", padded, recipe, draw)

    def quantize(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """Assignment and rebuild with given centres (B, k, d); clamped to [0, 1]."""
        return self._assigned("images", padded, centres, recipe, draw)

    def shield(self, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The codebook and then the quantized images: equal to the two calls above."""
        return self._found("images", padded, recipe, draw)

    def assignments(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The number (B, n) of the centre that quantize puts in place of each patch, int64."""
        return self._assigned("labels", padded, centres, recipe, draw)

    def lloyd(self, patches: Tensor, start: Tensor, *, iterations: int, tolerance: float) -> Tensor:
        """Plain k-means from given centres: (B, n, d), (B, k, d) → (B, k, d)."""
        self._check_place("patches", patches)
        _check_lloyd(patches, start, iterations=iterations, tolerance=tolerance)
        if not self.looks_at_values:
            check_magnitude("patches", patches)
            check_magnitude("start", start)
        return self._lloyd(patches, start, iterations, tolerance)

    def _found(self, wanted: Wanted, padded: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """By centres that k-means finds."""
        self._check_images(padded, recipe, draw)
        _check_codes(padded, recipe)
        return self._run(wanted, padded, None, recipe, draw)

    def _assigned(
        self, wanted: Wanted, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw
    ) -> Tensor:
        """By given centres."""
        self._check_images(padded, recipe, draw)
        _check_centres(centres, padded, recipe)
        if not self.looks_at_values:
            check_magnitude("centres", centres)
        return self._run(wanted, padded, centres, recipe, draw)

    def _check_images(self, padded: Tensor, recipe: Recipe, draw: Draw) -> None:
        self._check_place("images", padded)
        check_images(padded, recipe, draw, self.dtypes)
        if not self.looks_at_values:
            checks.pixel_values(padded)

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
        """What is wanted, of given centres or, where there are none, of those that k-means finds."""

    @abstractmethod
    def _lloyd(self, patches: Tensor, start: Tensor, iterations: int, tolerance: float) -> Tensor:
        """As lloyd."""


def check_recipe(recipe: Recipe) -> None:
    """Settings within what the backends' arithmetic holds; a recipe that has passed passes at once."""
    try:
        _check_settings(recipe)
    except TypeError:  # a setting without a hash is wrong as well, and the check says which
        _check_settings.__wrapped__(recipe)


@lru_cache(maxsize=256)
def _check_settings(recipe: Recipe) -> None:
    if not isinstance(recipe.grid, Disjoint | Sliding):
        raise InvalidInputError(f"grid={recipe.grid!r} should be a Disjoint or a Sliding")
    checks.whole("size", recipe.grid.size, least=1)
    checks.whole("codes", recipe.codes, least=1, below=checks.MOST_CODES + 1)
    checks.whole("iterations", recipe.iterations, least=1, below=checks.MOST_ITERATIONS + 1)
    checks.one_of("init", recipe.init, START)
    checks.real("tolerance", recipe.tolerance, most=1.0)
    checks.real("sigma", recipe.sigma, most=checks.MOST_NOISE)
    checks.real("tau", recipe.tau, most=checks.MOST_NOISE)
    checks.real("beta", recipe.beta, most=checks.MOST_BETA)
    checks.one_of("weights_from", recipe.weights_from, WEIGHTS_FROM)
    checks.whole("memory", recipe.memory, least=1)


def check_images(
    padded: Tensor, recipe: Recipe, draw: Draw, dtypes: tuple[torch.dtype, ...] = checks.IMAGE_DTYPES
) -> None:
    """A sound recipe, images that its grid can cut, and one stream number for each.

    checks.pixel_values looks at the values.
    """
    check_recipe(recipe)
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
    _on_device_of("streams", draw.streams, "images", padded)
    checks.per_image("streams", draw.streams, padded)


def _check_codes(padded: Tensor, recipe: Recipe) -> None:
    """No more centres than patches to start from."""
    if recipe.codes > recipe.count(padded):
        raise InvalidInputError(
            f"codes={recipe.codes} should be at most the number of patches n={recipe.count(padded)}"
        )


def _check_centres(centres: Tensor, padded: Tensor, recipe: Recipe) -> None:
    """Centres (B, k, d) of the images, k any number; check_magnitude looks at the values."""
    dimensions = recipe.dimensions(padded)
    _check_vectors("centres", centres)
    if (len(centres), centres.shape[2]) != (len(padded), dimensions):
        expected = f"({len(padded)}, k, {dimensions})"
        raise InvalidInputError(f"centres of shape {tuple(centres.shape)} should be {expected}")
    _check_codes_of("centres", centres)
    _on_device_of("centres", centres, "images", padded)


def _check_lloyd(patches: Tensor, start: Tensor, *, iterations: int, tolerance: float) -> None:
    """Vectors (B, n, d) and the centres (B, k, d) to start from; check_magnitude looks at the values."""
    _check_vectors("patches", patches)
    _check_vectors("start", start)
    batch, count, dimensions = patches.shape
    if not (1 <= count <= _MOST_PATCHES and dimensions >= 1):
        raise InvalidInputError(
            f"patches of shape {tuple(patches.shape)} should have 1 to {_MOST_PATCHES} vectors, none empty"
        )
    if (len(start), start.shape[2]) != (batch, dimensions):
        expected = f"({batch}, k, {dimensions}), as the patches are {tuple(patches.shape)}"
        raise InvalidInputError(f"start of shape {tuple(start.shape)} should be {expected}")
    _check_codes_of("start", start)
    _on_device_of("start", start, "patches", patches)
    checks.whole("iterations", iterations, least=1, below=checks.MOST_ITERATIONS + 1)
    checks.real("tolerance", tolerance, most=1.0)


def check_soft(
    padded: Tensor, assigned: Tensor, centres: Tensor, slopes: Tensor, recipe: Recipe, draw: Draw
) -> None:
    """What a soft gradient is asked for: images, the same as the assignment sees them, and slopes alike."""
    for name, values in (("assigned", assigned), ("slopes", slopes)):
        _on_device_of(name, values, "images", padded)
        if values.shape != padded.shape:
            raise InvalidInputError(
                f"{name} of shape {tuple(values.shape)} should be as the images, {tuple(padded.shape)}"
            )
    check_images(padded, recipe, draw)
    _check_centres(centres, padded, recipe)


def check_magnitude(name: str, values: Tensor) -> None:
    """Centres or vectors whose values are finite and not too large."""
    checks.within(name, values, MOST_VALUE)


def _check_vectors(name: str, values: object) -> None:
    if not isinstance(values, Tensor) or values.dtype not in checks.IMAGE_DTYPES:
        found = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise InvalidInputError(f"{name} of type {found} should be a torch.float32 or torch.float64 tensor")
    if values.dim() != 3:
        raise InvalidInputError(f"{name} of shape {tuple(values.shape)} should have 3 dimensions")


def _check_codes_of(name: str, centres: Tensor) -> None:
    if not 1 <= centres.shape[1] <= checks.MOST_CODES:
        raise InvalidInputError(
            f"{name} of shape {tuple(centres.shape)} should have from 1 to {checks.MOST_CODES} centres"
        )


def _on_device_of(name: str, values: object, other: str, expected: Tensor) -> None:
    if isinstance(values, Tensor) and (values.device, values.layout) != (expected.device, expected.layout):
        raise InvalidInputError(
            f"{name} on {values.device} ({values.layout}) should be on {expected.device} "
            f"({expected.layout}), as the {other} are"
        )

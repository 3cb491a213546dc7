"""What every vector-quantizing defense shares: each patch becomes the nearest of k centres.

images → patches → noise → codebook (k-means) → assignment → rebuild → images, carried out by a backend
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack, get_args

from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting
from vqshield.defenses.base import CertificateTerms, Defense, Gradient, Streams
from vqshield.quantization import kernels, operators
from vqshield.quantization.kernels.base import RECIPE_CHECKS, Init, Recipe, WeightsFrom, check_codes
from vqshield.quantization.noise import Stage
from vqshield.quantization.operators import Job
from vqshield.quantization.patches import Disjoint, Padding, Sliding
from vqshield.quantization.pixels import Range, batch_of, restore_dtype_and_shape

DEFAULT_NOISE = 4 / 255
Noise = Literal["patch", "image", "shared"]
NOISES: tuple[Noise, ...] = get_args(Noise)


class QuantizerSettings(TypedDict, total=False):
    """The settings that decide what quantizers return, in the order of spec strings."""

    size: int
    codes: int
    sigma: float
    tau: float
    noise: Noise
    iterations: int
    init: Init
    tolerance: float
    sample: int | None
    padding: Padding
    beta: float
    weights_from: WeightsFrom | None


class DefenseSettings(QuantizerSettings, total=False):
    """Every setting of every quantizer except `surrogate`, which `defend` takes itself, for the whole model.

    Which quantizer has which is in their signatures.

    Example:
        >>> settings: vq.defenses.DefenseSettings = {"size": 2, "codes": 25}
        >>> vq.defend(classifier, "prd", **settings).defense.codes
        25
    """

    backend: str
    memory: int
    seed: int | None
    streams: Streams
    range: Range


class Quantizer(Defense):
    """Replaces every patch of an image by the nearest of k centres found in that image alone.

    Args:
        codes: k, the number of centres.
        sigma: standard deviation of the noise epsilon_i on the patches that k-means sees, in units of [0, 1].
        tau: standard deviation of the noise omega_i on the patches when their nearest centre is sought.
        noise: "patch" draws both noises for every patch separately, as the paper does. "image" adds them to
            the image before it is cut: one draw for k-means, one for the assignment, and windows that overlap
            see the same noise. "shared" is one draw on the image for both, and needs sigma = tau. Noisy
            images are clamped to [0, 1].
        iterations: the most rounds of Lloyd's algorithm.
        init: "kmeans++" or "random", the patches that k-means starts from.
        tolerance: an image is done when at most this share of its patches changes label (0: none).
        sample: how many patches k-means sees at most, spread over the image at random; None is all, as in the
            paper. Large images are shielded several times as fast with a few thousand.
        backend: which implementation, "auto" or one of vqshield.quantization.kernels.list_backends().
        memory: bytes for noisy patches that are kept between passes; patches that do not fit are drawn again.
            Kernels take 16 to 20 more bytes per patch, the torch backend far more.
        seed, streams, range, surrogate: as of every Defense.

    Settings are attributes, and may be assigned to: `defense.sigma = 0.1`. They are checked then as in the
    constructor, and a compiled model notices. Only size and padding are fixed.

    Raises:
        InvalidInputError: a setting that cannot work, here and in every quantizer.

    Example:
        >>> defense = vq.PRD(size=2, codes=4, seed=0)
        >>> defense.codebook(images).shape  # a codebook per image: 4 centres of 3·2·2 values
        torch.Size([8, 4, 12])
    """

    PRESETS: ClassVar[Mapping[str, DefenseSettings]] = {}
    _CHECKS: ClassVar[Mapping[str, Callable[[str, object], Any]]] = {
        **RECIPE_CHECKS,
        "noise": partial(checks.one_of, choices=NOISES),
        "sample": lambda name, value: (
            None if value is None else checks.whole(name, value, least=1, below=2**31)
        ),
        "backend": lambda _, value: kernels.backend_name(value),
        "seed": partial(checks.whole, least=0, below=2**64),
    }
    codes: int
    sigma: float
    tau: float
    noise: Noise
    iterations: int
    init: Init
    tolerance: float
    sample: int | None
    backend: str
    memory: int
    _job: str
    """All arguments of an operator, always up to date. An attribute, because a compiled model guards on
    those: it is not taken for another defense's, and does not outlive a change of a setting."""

    def __init__(
        self,
        grid: Disjoint | Sliding,
        *,
        surrogate: str | Gradient | None = None,
        **settings: Unpack[DefenseSettings],
    ) -> None:
        super().__init__(
            seed=settings.pop("seed", None), streams=settings.pop("streams", "fresh"),
            range=settings.pop("range", "raise"), surrogate=surrogate,
        )  # fmt: skip
        self._grid = grid
        for name, value in settings.items():
            setattr(self, name, value)
        self._prepare()

    @classmethod
    def preset(cls, data: str, **changes: Unpack[DefenseSettings]) -> Self:
        """The paper's settings for a data set.

        Args:
            data: "mnist", "cifar10", "cifar100" or "imagenet".
            **changes: settings that differ from the paper's.

        Example:
            >>> vq.SWRD.preset("cifar10", codes=70).settings()["codes"]
            70
        """
        checks.one_of("preset", data, cls.PRESETS)
        make: Callable[..., Self] = cls
        return make(**{**cls.PRESETS[data], **changes})

    @property
    def grid(self) -> Disjoint | Sliding:
        """How images are cut."""
        return self._grid

    @property
    def size(self) -> int:
        """s, the side of a patch."""
        return self.grid.size

    def __setattr__(self, name: str, value: Any) -> None:
        before: Any = self.__dict__.get(name)
        check = self._CHECKS.get(name)
        super().__setattr__(name, value if check is None else check(name, value))
        if check is not None and "_job" in self.__dict__:  # the constructor has set everything
            try:
                self._prepare()
            except InvalidInputError:
                super().__setattr__(name, before)
                raise

    def _prepare(self) -> None:
        """Check the settings together, and hand them to the operators."""
        self._check_together()
        self._job = Job(self.recipe(), self.seed, self.backend, self.sample).encode()

    def _check_together(self) -> None:
        """Raise where settings that are valid by themselves do not go together."""
        if self.noise == "shared" and self.sigma != self.tau:
            raise InvalidInputError(
                f"sigma={self.sigma} and tau={self.tau} should be equal for noise='shared': "
                "it is one draw for both"
            )
        if self.sample is not None and self.sample < self.codes:
            raise InvalidInputError(f"sample={self.sample} should be at least codes={self.codes}")

    def settings(self) -> dict[str, Setting]:
        values = {name: getattr(self, name, None) for name in QuantizerSettings.__annotations__}
        return {name: value for name, value in values.items() if value is not None}

    def certificate_terms(self) -> CertificateTerms:
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
        """What a backend needs to know; noise that is on the image already is not part of it."""
        names = (field.name for field in fields(Recipe))
        values: dict[str, Any] = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return Recipe(**values if self.noise == "patch" else {**values, "sigma": 0.0, "tau": 0.0})

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        streams = self.streams(images, streams)
        if self.noise == "image":  # two different images: no backend does both stages in one go
            return self.quantize(images, self.codebook(images, streams=streams), streams=streams)
        seen = self.seen(images, Stage.CODEBOOK, streams=streams)
        result: Tensor = operators.shield(seen, streams, self._job)
        return result

    def _for_forward(self, images: Tensor) -> Tensor:
        """Bytes and halves unchanged: the native kernel makes pixels of one image at a time. Noise on the
        image needs them all, and what a user has added expects them."""
        direct = self.noise == "patch" and self._range == "raise" and self._is_plain()
        if direct and isinstance(images, Tensor) and images.dtype in checks.NARROW_DTYPES:
            return batch_of(images)
        return super()._for_forward(images)

    def _is_plain(self) -> bool:
        """Whether a call is nothing but its codebook and what is quantized by that: no user's own forward,
        and no hooks that a call would run."""
        hooked = bool(self._forward_hooks or self._forward_pre_hooks)
        return type(self).forward is Quantizer.forward and not hooked

    def codebook(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """The centres (B, k, d) that k-means finds in the noisy patches; (k, d) of a single image."""
        pixels = self.pixels(images)
        streams = self.streams(pixels, streams)
        seen = self.seen(pixels, Stage.CODEBOOK, streams=streams)
        result: Tensor = operators.codebook(seen, streams, self._job)
        return result if images.dim() == 4 else result[0]

    def quantize(self, images: Tensor, centres: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Assignment and rebuild with given centres (B, k, d), k any number; (k, d) for a single image."""
        pixels = self.pixels(images)
        streams = self.streams(pixels, streams)
        dimensions = self.grid.dimensions(pixels.shape[1])
        books = centres if images.dim() == 4 else centres[None]
        if books.dim() != 3 or (len(books), books.shape[2]) != (len(pixels), dimensions):
            expected = f"({len(pixels)}, k, {dimensions})" if images.dim() == 4 else f"(k, {dimensions})"
            raise InvalidInputError(f"centres of shape {tuple(centres.shape)} should be {expected}")
        seen = self.seen(pixels, Stage.ASSIGNMENT, streams=streams)
        result: Tensor = operators.quantize(seen, books.detach().to(pixels), streams, self._job)
        return restore_dtype_and_shape(result, images)

    def seen(self, images: Tensor, stage: Stage, *, streams: Tensor) -> Tensor:
        """The images that a stage cuts into patches: with their noise, where that is on the image."""
        if self.noise == "patch":
            return images.detach()
        scale = self.sigma if stage == Stage.CODEBOOK else self.tau
        drawn = Stage.CODEBOOK if self.noise == "shared" else stage
        result: Tensor = operators.noisy_images(images.detach(), streams, self._job, int(drawn), scale)
        return result

    def check(self, images: Tensor) -> None:
        super().check(images)
        checks.fits("size", self.size, images)
        check_codes(self.codes, self.grid.count(*images.shape[2:]))

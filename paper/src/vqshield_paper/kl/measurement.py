"""The KL diagnostic of one image and perturbed versions of it, in front of one defense."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import Json
from vqshield.defenses import Quantizer
from vqshield.quantization.patches import Sliding
from vqshield_paper.kl.divergence import STARTS, Diagnostic, diagnose
from vqshield_paper.kl.fitting import MixtureSettings
from vqshield_paper.kl.labels import LabelDivergence, label_divergence


@dataclass(frozen=True, kw_only=True)
class DivergenceSettings:
    """What decides the result, besides images and defense.

    codebooks: drawn for x, for x again and for x'. batch: drawn at a time, which changes no result.
    label_codebooks, lines: of how many of the first, and samples of omega a patch, the second term is taken;
        0 codebooks: not at all.
    samples: of the Monte-Carlo sum. mixture, starts: how mixtures are fitted, and where from (`diagnose`).
    """

    codebooks: int = 10_000
    label_codebooks: int = 64
    lines: int = 256
    samples: int = 100_000
    mixture: MixtureSettings = field(default_factory=MixtureSettings)
    starts: str = "shared"
    batch: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("codebooks", self.codebooks, least=2)
        if self.label_codebooks:
            checks.whole("label_codebooks", self.label_codebooks, least=2, below=self.codebooks + 1)
        checks.whole("lines", self.lines, least=2)
        checks.one_of("starts", self.starts, STARTS)
        checks.whole("samples", self.samples, least=2)
        checks.whole("batch", self.batch, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)


@dataclass(frozen=True, kw_only=True)
class Proved:
    """What holds whatever the mixtures say: noise alone bounds each term; None where nothing is proved."""

    first: float | None
    second: float | None


@dataclass(frozen=True, kw_only=True)
class Distances:
    """How far x' is from x."""

    linf: float
    l2: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The diagnostic of one image and one x', with all that it was measured with.

    second_is: what the divergence of the labels says about that of the images. seconds: by stage.
    """

    defense: Mapping[str, Json]
    distance: Distances
    settings: DivergenceSettings
    seeds: Mapping[str, int]
    diagnostic: Diagnostic
    second_is: str
    proved: Proved
    seconds: Mapping[str, float]
    environment: Mapping[str, Json]


def measure(
    defense: Quantizer,
    image: Tensor,
    moved: Tensor,
    *,
    settings: DivergenceSettings | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> list[Measurement]:
    """The diagnostic of image x (1, q, h, w) and of each perturbed x' in moved (b, q, h, w): b records.

    What x needs is done once; each record is what it would be alone, except the seconds, which are those of
    all together. report is called with each stage as it starts.
    The defense serves as a recipe: its own seed is not used, so that a record can be repeated from itself.
    """
    chosen = DivergenceSettings() if settings is None else settings
    if checks.image_batch(image).shape[1:] != checks.image_batch(moved).shape[1:] or len(image) != 1:
        raise InvalidInputError(
            f"image and moved of shapes {tuple(image.shape)} and {tuple(moved.shape)} should be "
            "(1, q, h, w) and (b, q, h, w)"
        )
    purposes = ("clean", "again", "moved", "labels", "diagnostic")
    seeds = {purpose: derived_seed(chosen.seed, purpose) for purpose in purposes}
    clock = _Clock(image.device, report)

    def draw(purpose: str, source: Tensor) -> Tensor:
        shield = defense.reseeded(seeds[purpose])
        return codebooks(shield, source, count=chosen.codebooks, batch=chosen.batch)

    clock("codebooks clean")
    clean = draw("clean", image)
    clock("codebooks again")
    again = draw("again", image)
    clock("codebooks moved")
    others = [draw("moved", each) for each in torch.split(moved, 1)]
    clock("labels")
    books = clean[: chosen.label_codebooks]
    second = [_second(defense, image, each, books, chosen, seeds["labels"]) for each in torch.split(moved, 1)]
    found = diagnose(
        clean=clean,
        again=again,
        moved=others,
        second=second,
        mixture=chosen.mixture,
        starts=chosen.starts,
        samples=chosen.samples,
        seed=seeds["diagnostic"],
        report=clock,
    )
    seconds = clock.stop()
    return [
        Measurement(
            defense={
                "name": type(defense).__name__.lower(),
                **defense.settings(),
                "backend": defense.backend,
            },
            distance=Distances(
                linf=float((other - image).abs().max()), l2=float((other - image).double().norm())
            ),
            settings=chosen,
            seeds=seeds,
            diagnostic=each,
            second_is=_meaning(defense, computed=each.second is not None),
            proved=_proved(defense, image, other),
            seconds=seconds,
            environment=environment(image.device),
        )
        for each, other in zip(found, torch.split(moved, 1), strict=True)
    ]


@torch.no_grad()
def codebooks(defense: Quantizer, image: Tensor, *, count: int, batch: int) -> Tensor:
    """The codebooks of streams 0 … count−1 of one image (1, q, h, w): (count, k, d)."""
    streams = torch.split(torch.arange(count, device=image.device), batch)
    return torch.cat(
        [defense.codebook(image.expand(len(some), -1, -1, -1), streams=some) for some in streams]
    )


def _patches(defense: Quantizer, image: Tensor) -> Tensor:
    padded = defense.grid.pad(image)
    return defense.grid.cut(padded, 0, defense.grid.count(*padded.shape[2:]))[0]


def _second(
    defense: Quantizer, image: Tensor, moved: Tensor, books: Tensor, chosen: DivergenceSettings, seed: int
) -> LabelDivergence | None:
    if defense.tau == 0 or not len(books):
        return None
    return label_divergence(
        patches=_patches(defense, image),
        moved=_patches(defense, moved),
        codebooks=books,
        tau=defense.tau,
        lines=chosen.lines,
        seed=seed,
    )


def _meaning(defense: Quantizer, *, computed: bool) -> str:
    """What the divergence of the labels says about that of the images, given the codebook."""
    recipe = defense.recipe()
    if defense.tau == 0:
        return "not computed: without noise on the assignment it is infinite as soon as one label changes"
    if not computed:
        return "not computed, which does not say that it is small"
    if not isinstance(recipe.grid, Sliding) or recipe.grid.size == 1:
        return "the second term of U_KL: the labels of the patches are the image"
    if recipe.beta == 0:
        return "at least the second term of U_KL: the image is a function of the labels of the windows"
    if recipe.weights_from == "noisy":
        return "of the labels alone; the weights see the noisy windows too, so that only `proved` is a bound"
    return (
        "of the labels alone; the term itself is infinite, because the weights see the image without noise: "
        "given the codebook, x and x' have finitely many outputs each, in general none in common"
    )


def _proved(defense: Quantizer, image: Tensor, moved: Tensor) -> Proved:
    """What holds whatever the mixtures say: noise alone keeps each term below ‖Px' − Px‖²/2·noise²."""
    square = float((_patches(defense, moved).double() - _patches(defense, image).double()).square().sum())
    recipe = defense.recipe()
    windows = isinstance(recipe.grid, Sliding) and recipe.grid.size > 1
    looks_past_noise = windows and recipe.beta != 0 and recipe.weights_from == "clean"
    second = defense.tau > 0 and not looks_past_noise
    return Proved(
        first=square / (2 * defense.sigma**2) if defense.sigma > 0 else None,
        second=square / (2 * defense.tau**2) if second else None,
    )


class _Clock:
    """How long each stage takes; a GPU is waited for."""

    def __init__(self, device: torch.device, report: Callable[[str], None]) -> None:
        self._device, self._report = device, report
        self._begun: list[tuple[str, float]] = []

    def __call__(self, stage: str) -> None:
        self._begun.append((stage, self._now()))
        self._report(stage)

    def stop(self) -> dict[str, float]:
        """Seconds by stage."""
        ends = [began for _, began in self._begun[1:]] + [self._now()]
        return {stage: round(end - began, 3) for (stage, began), end in zip(self._begun, ends, strict=True)}

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

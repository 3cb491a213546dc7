"""The exact L1 certificate of smoothing by splitting, in a run that may stop at any moment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vqshield.certificates import certify_all_shifts, linf_radius, radius_for_linf
from vqshield.certificates.splitting import LEVELS
from vqshield.certification.summary import LINF, LinfLine, even_radii
from vqshield.classifiers import BUNDLED
from vqshield.classifiers.folding import PRECISIONS, fast_forward
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.settings import parse_spec
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import Defense, DefenseLike, Quantizer, Splitting, create, from_text
from vqshield.models.calling import ask, check_finite, check_rows
from vqshield.runs.arguments import impossible_class, split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import DefenseId, TargetManifest
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, Progress, Recorded, no_cell_progress, no_progress
from vqshield.runs.target import defenses_inside
from vqshield.runs.target_study import TargetStudy

EXACT = "exact l1"
_BATCHES = 40  # a cell at most, after which its records are written
_OFF_GRID = 1e-3  # of a level: how far rounding may leave an 8-bit value from its level


@dataclass(frozen=True, kw_only=True)
class L1Record(Record):
    """The exact L1 certificate of one image.

    answer: what the vote of all shifts elects; top, second: the votes of the answer and of the next class.
    right: those of the label. steps: how many levels of change, over all values, cannot alter the answer.
    """

    image: int
    label: int
    answer: int
    top: int
    second: int
    right: int
    steps: int
    certificate: str = EXACT

    @property
    def key(self) -> Key:
        return self.defense, self.certificate, self.image

    @property
    def radius(self) -> float:
        """The certified L1 radius for 8-bit images, itself included."""
        return self.steps / LEVELS

    @property
    def real_radius(self) -> float:
        """Below which L1 distance real-valued images are covered too."""
        return (self.steps + 1) / (2 * LEVELS)


@dataclass(frozen=True, kw_only=True)
class L1Manifest(TargetManifest):
    """What the records are of; shifts: all of them, each asked once. values: of an image."""

    defense: DefenseId
    after: DefenseId | None
    shifts: int
    seed: int
    batch: int
    precision: str
    values: int


@dataclass(frozen=True, kw_only=True)
class L1Cell:
    """The unit of work: all shifts of some images."""

    defense: str
    images: range

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, EXACT, image) for image in self.images]


@dataclass(frozen=True, kw_only=True)
class L1Certification(TargetStudy[L1Manifest, L1Cell, L1Record]):
    """The vote over all shifts of every image.

    Attributes:
        defense: a splitting by text, as in "splitting:scale=0.5".
        after: a quantizer between the splitting and the classifier, by text, or None. It is part of the
            classifier that is certified, so its draw must follow from the image that it sees: its streams
            are "content".
        seed: of that quantizer's draws; the shifts are all made, and leave nothing to chance.
        batch: shifted images asked about at once.
        precision: as of `Certification`.
    """

    defense: str = "splitting:scale=0.5"
    after: str | None = None
    seed: int = 0
    batch: int = 500
    precision: str = "fp32"

    manifest_type = L1Manifest
    record_type = L1Record

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("precision", self.precision, PRECISIONS)
        checks.whole("batch", self.batch, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        _ = self.built  # refuses defenses without a certificate

    def splitting(self) -> Splitting:
        """The defense; its seed decides nothing here."""
        made = from_text(self.defense, seed=0)
        if not isinstance(made, Splitting):
            raise InvalidInputError(
                f"defense={self.defense!r} has no L1 certificate; give a splitting, as in splitting:scale=0.5"
            )
        return made

    def quantizer(self) -> Quantizer | None:
        """What stands between the splitting and the classifier, with draws that follow from what it sees."""
        if self.after is None:
            return None
        name, settings = parse_spec(self.after)
        for fixed in ("seed", "streams"):
            if fixed in settings:
                raise InvalidInputError(
                    f"{fixed}={settings[fixed]} in after={self.after!r} cannot be chosen here: its draws "
                    "follow from the run's seed and the image"
                )
        return create(name, **settings, seed=derived_seed(self.seed, self.after, "after"), streams="content")

    @property
    def specs(self) -> tuple[str, ...]:
        return (self.defense,) if self.after is None else (self.defense, self.after)

    def build(self, spec: str) -> Defense | None:
        return self.splitting() if spec == self.defense else self.quantizer()

    def described(self) -> Mapping[str, Any]:
        if self.target.is_random:
            raise InvalidInputError(
                f"classifier {self.target.name!r} answers differently when asked again; the exact "
                "certificate counts on one that does not"
            )
        after = None if self.after is None else DefenseId.of(self.after, self.built[self.after], self.target)
        return {
            "after": after,
            "shifts": self.splitting().levels,
            "values": self.target.images.floats(slice(1)).numel(),
        }

    @staticmethod
    def cells_of(manifest: L1Manifest) -> list[L1Cell]:
        """Chunk after chunk of the images."""
        count, size = manifest.data.images, max(1, _BATCHES * manifest.batch // manifest.shifts)
        return [
            L1Cell(defense=manifest.defense.name, images=range(first, min(first + size, count)))
            for first in range(0, count, size)
        ]

    @staticmethod
    def problem(manifest: L1Manifest, record: L1Record) -> str | None:
        if (wrong := impossible_class(manifest.data, (record.label, record.answer))) is not None:
            return wrong
        for count in (record.top, record.second, record.right, record.steps):
            if not 0 <= count <= manifest.shifts:
                return f"{count} of {manifest.shifts} shifts"
        if record.top + record.second > manifest.shifts or 2 * record.steps > record.top - record.second:
            return f"steps={record.steps} with {record.top} and {record.second} of {manifest.shifts} votes"
        return None

    def measure(self, cell: L1Cell, progress: CellProgress = no_cell_progress) -> list[L1Record]:
        images, labels = self.target.part(cell.images)
        _refuse_off_grid(images, cell.images.start)
        counts = self._counts(images, lambda done: progress(self.title(cell), done)).cpu()
        votes = certify_all_shifts(counts=counts)
        top = counts.gather(1, votes.answers[:, None])[:, 0]
        others = counts.scatter(1, votes.answers[:, None], -1)
        right = counts.gather(1, labels.cpu()[:, None])[:, 0]
        return [
            L1Record(
                defense=cell.defense,
                image=image,
                label=int(labels[number]),
                answer=int(votes.answers[number]),
                top=int(top[number]),
                second=int(others[number].max()),
                right=int(right[number]),
                steps=int(votes.steps[number]),
            )
            for number, image in enumerate(cell.images)
        ]

    def cost(self, cell: L1Cell) -> int:
        """How many shifted images it asks about."""
        return self.splitting().levels * len(cell.images)

    def title(self, cell: L1Cell) -> str:
        return "all shifts"

    @torch.no_grad()
    def _counts(self, images: Tensor, told: Callable[[int], None]) -> Tensor:
        """How many of all shifts give each class, (N, classes)."""
        splitting, after = self.splitting().to(images.device), self.quantizer()
        after = None if after is None else after.to(images.device)
        shifts, classes = splitting.levels, len(self.target.images.classes)
        counts = torch.zeros(len(images) * classes, dtype=torch.int64, device=images.device)
        numbers = torch.arange(len(images) * shifts, device=images.device)
        done = 0
        for some in torch.split(numbers, self.batch):
            image, shift = some.div(shifts, rounding_mode="floor"), some % shifts
            shown = splitting.shifted(images[image], shift)
            logits = ask(self.forward, shown if after is None else after(shown))
            check_rows(logits, len(shown))
            check_finite(logits)
            place = image * classes + logits.argmax(-1)
            counts.scatter_add_(0, place, torch.ones_like(place))
            done += len(some)
            told(done)
        return counts.view(len(images), classes)

    @cached_property
    def forward(self) -> Callable[[Tensor], Tensor]:
        """The classifier in the form that answers most images a second."""
        return fast_forward(self.target.model, device=self.target.place, precision=self.precision)


def _refuse_off_grid(images: Tensor, first: int) -> None:
    """The certificate is of 8-bit images: refuse others, which the defense would round without a word."""
    levels = images.double() * LEVELS
    off = (levels - levels.round()).abs().flatten(1).amax(1)
    if bool((off > _OFF_GRID).any()):
        number = int((off > _OFF_GRID).nonzero()[0])
        values = levels[number].flatten()
        wrong = float(values[(values - values.round()).abs().argmax()]) / LEVELS
        raise InvalidInputError(
            f"image {first + number} holds {wrong:.6g}, which is no multiple of 1/255; the L1 certificate "
            "is of 8-bit images: round them first, as in images.mul(255).round().div(255)"
        )


@dataclass(frozen=True, kw_only=True)
class L1Point:
    """Certified accuracy at one L1 radius, as fractions; linf: the radius that it implies in L-inf.

    certified: share of images whose vote is right on every 8-bit image within the radius, itself included.
    real: the same for all real-valued images, which the defense rounds to 8 bits.
    """

    radius: float
    linf: float
    certified: float
    real: float


@dataclass(frozen=True, kw_only=True)
class L1Summary:
    """What an exact L1 certification found; of one that is not finished, what there is.

    accuracy: of single draws; right: share of images whose vote is right; mean_radius: 0 where it is wrong.
    """

    title: str
    complete: bool
    images: int
    shifts: int
    scale: float
    accuracy: float
    right: float
    mean_radius: float
    largest_radius: float
    curve: tuple[L1Point, ...]
    linf: LinfLine
    seconds: float
    manifest: L1Manifest

    @classmethod
    def of(cls, recorded: Recorded[L1Manifest, L1Record], *, radii: Sequence[float] = ()) -> "L1Summary":
        """From records; radii: where certified accuracies are given, in L1. Without any, evenly up to the
        largest possible.
        """
        manifest, records = recorded.manifest, recorded.records
        count = max(1, len(records))
        largest = manifest.shifts // 2 / LEVELS
        name = (
            manifest.defense.name
            if manifest.after is None
            else (f"{manifest.defense.name} and {manifest.after.name}")
        )

        def share(reached: Callable[[L1Record], bool]) -> float:
            return sum(each.answer == each.label and reached(each) for each in records) / count

        def point(radius: float) -> L1Point:
            return L1Point(
                radius=float(checks.real("radius", radius)),
                linf=linf_radius(radius=float(radius), values=manifest.values, norm="l1"),
                certified=share(lambda each: each.radius >= radius),
                real=share(lambda each: each.real_radius > radius),
            )

        needed = radius_for_linf(eps=LINF, values=manifest.values, norm="l1")
        return cls(
            title=f"Exact certificates of {name} for {manifest.data.images} images of {manifest.data.name}, "
            f"classifier {manifest.classifier.described}",
            complete=len(records) == manifest.data.images,
            images=len(records),
            shifts=manifest.shifts,
            scale=manifest.shifts / (2 * LEVELS),
            accuracy=sum(each.right for each in records) / (manifest.shifts * count),
            right=share(lambda each: True),
            mean_radius=sum(each.radius for each in records if each.answer == each.label) / count,
            largest_radius=largest,
            curve=tuple(map(point, radii or even_radii(largest))),
            linf=LinfLine(eps=LINF, needed=needed, certified=share(lambda each: each.radius >= needed)),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )


def certify_l1(
    model: nn.Module | str = BUNDLED,
    images: Tensor | str = SAMPLE_NAME,
    labels: Tensor | None = None,
    *,
    defense: DefenseLike | None = None,
    after: str | None = None,
    radii: Sequence[float] = (),
    seed: int = 0,
    batch: int = 500,
    precision: str = "fp32",
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> L1Summary:
    """Prove, without chance, within which L1 radius no 8-bit image changes the vote of a split classifier.

    Every shift of the defense is asked once, ⌊510·scale⌋ of them for each image. The vote over all of them is
    what is certified, and what should be deployed.

    Args:
        model: a module from images in [0, 1] to logits, a `Defended` one behind a `Splitting`, or the name of
            a classifier, as for `vq.evaluate`.
        images: (N, channels, height, width), multiples of 1/255, or the name of a data set.
        labels: (N,) classes, a tensor, array or list; none where images is the name of a data set.
        defense: "splitting:scale=0.5", or a `Splitting`. Without it, the one that the model has, or that the
            classifier's file says it was fine-tuned behind, else this one.
        after: quantizer between the splitting and the classifier, as in "swrd:size=3,codes=25" (default:
            none). It counts as part of the classifier, and its sample follows from the image that it sees.
        radii: report the certified accuracy at these L1 radii (default: evenly up to the largest possible).
        seed: seed of that quantizer's samples.
        batch: shifted images per forward pass.
        precision: precision of the classifier: "fp32", or "bf16", which is faster on a GPU.
        limit: use the first N images (default: all).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: a folder that keeps a record of every image; a run that was stopped continues there. Without it,
            nothing is written.
        executor: where the work is done; without it, in this process.
        progress: called with what is being done, how much of the work is done, and how much there is.

    Raises:
        InvalidInputError: something given is wrong, or the defense has no L1 certificate.

    Example:
        >>> found = vq.certify_l1(defense="splitting:scale=0.05", limit=2, radii=(0.0, 0.02))
        >>> found.shifts, found.images, [point.radius for point in found.curve]
        (25, 2, [0.0, 0.02])
    """
    with split_model(model, defense) as (classifier, (text,)):
        study = L1Certification(
            target=target_from(classifier, images, labels, limit=limit, data_dir=data_dir, device=device),
            defense=L1Certification.defense if text == NONE and not defenses_inside(model) else text,
            after=after,
            seed=seed,
            batch=batch,
            precision=precision,
        )
        found = run_study(study, out, executor=executor, progress=progress)
    return L1Summary.of(found, radii=radii)

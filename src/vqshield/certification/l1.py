"""The exact L1 certificate of smoothing by splitting, in a run that resumes after any stop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from vqshield.certificates import certify_all_shifts
from vqshield.certification.records import EXACT, CertificationCell, L1Manifest, L1Record
from vqshield.certification.study import CertificateStudy
from vqshield.certification.summary import L1Summary
from vqshield.classifiers import BUNDLED
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.settings import parse_spec
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import Defense, DefenseLike, Quantizer, Splitting, create
from vqshield.runs.arguments import defense_from, impossible_class, split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import DefenseId
from vqshield.runs.study import Progress, no_progress
from vqshield.runs.target import defenses_inside
from vqshield.voting.counting import Advance, block_size, check_8_bit, count_shifts, of_class


@dataclass(frozen=True, kw_only=True)
class L1Certification(CertificateStudy[L1Manifest, L1Record]):
    """The vote over all shifts of every image; settings as of `certify_l1`.

    The quantizer `after` the splitting is part of the certified classifier, so its sample must follow from
    the image that it sees: its streams are "content".
    """

    defense: str = "splitting:scale=0.5"
    after: str | None = None

    manifest_type = L1Manifest

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.built  # refuses defenses without a certificate

    def splitting(self) -> Splitting:
        """The defense; its seed decides nothing here."""
        splitting = defense_from(self.defense, seed=0)
        if type(splitting) is not Splitting:  # a subclass may show the classifier something else
            raise InvalidInputError(
                f"defense={self.defense!r} has no L1 certificate; give a splitting, as in splitting:scale=0.5"
            )
        return splitting

    def quantizer(self) -> Quantizer | None:
        """The defense between the splitting and the classifier."""
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

    def described(self) -> Mapping[str, object]:
        after = None if self.after is None else DefenseId.of(self.after, self.built[self.after], self.target)
        return {**super().described(), "after": after, "shifts": self.splitting().levels}

    @staticmethod
    def cells_of(manifest: L1Manifest) -> list[CertificationCell]:
        size = block_size(manifest.shifts, batch=manifest.batch, most=manifest.data.images)
        return manifest.cells_of(EXACT, size)

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

    def certified(
        self, cell: CertificationCell, images: Tensor, labels: Tensor, advance: Advance
    ) -> list[L1Record]:
        check_8_bit(images, first=cell.images.start)
        after = (self.quantizer() or nn.Identity()).to(images.device)
        counts = count_shifts(
            lambda shown: self.forward(after(shown)), self.splitting().to(images.device), images,
            batch=self.batch, advance=advance,
        )  # fmt: skip
        votes = certify_all_shifts(counts=counts)
        return L1Record.of(
            cell,
            label=labels,
            answer=votes.answers,
            top=of_class(counts, votes.answers),
            second=counts.scatter(1, votes.answers[:, None], -1).amax(1),
            right=of_class(counts, labels),
            steps=votes.steps,
        )

    def cost(self, cell: CertificationCell) -> int:
        return self.splitting().levels * len(cell.images)

    def title(self, cell: CertificationCell) -> str:
        return "all shifts"


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
    precision: str = "float32",
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> L1Summary:
    """Prove, without chance, within which L1 radius no 8-bit image changes the vote of a split classifier.

    Every shift of the defense is classified once, ⌊510·scale⌋ of them for each image. The vote over all of
    them is what is certified, and what should be deployed.

    Args:
        model, images, labels: as of `vq.certify`; the images are multiples of 1/255.
        defense: "splitting:scale=0.5", or a `Splitting`. Without it, the one that the model has, or that the
            classifier's file says it was fine-tuned behind, else this one.
        after: quantizer between the splitting and the classifier, as in "swrd:size=3,codes=25" (default:
            none). It counts as part of the classifier, and its sample follows from the image that it sees.
        radii: report the certified accuracy at these L1 radii (default: evenly up to the largest possible).
        seed: seed of that quantizer's samples.
        batch: shifted images per forward pass.
        precision, limit, data_dir, device, out, executor, progress: as of `vq.certify`.

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
        recorded = run_study(study, out, executor=executor, progress=progress)
    return L1Summary.of(recorded, radii=radii)

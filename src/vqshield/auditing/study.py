"""The audit of a target, by name or in memory: the call behind `vq.audit` and `vqshield audit`."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor, nn

from vqshield.attacks import Ball, ball
from vqshield.auditing import auditor
from vqshield.auditing.flags import LEAST_IMAGES, check_images
from vqshield.auditing.results import QUICK, AuditReport, AuditSettings
from vqshield.classifiers import BUNDLED
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY, NONE
from vqshield.core.files import write_json
from vqshield.core.serialization import Json
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import DefenseLike, Preprocessor
from vqshield.runs.adversarial import images_digest
from vqshield.runs.arguments import attack_ids, defense_from, split_model, target_from, tuning_note
from vqshield.runs.attack_study import AttackCell
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import AttackId, DefenseId, TargetManifest
from vqshield.runs.notes import Notes
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, TargetStudy, no_cell_progress
from vqshield.runs.target import DataId

AUDIT = "audit"
FILE = "audit.json"


@dataclass(frozen=True, kw_only=True)
class AuditRecord(Record):
    """A whole audit; report: what audit.json holds."""

    report: Mapping[str, Json]

    @property
    def key(self) -> Key:
        return self.defense, AUDIT, 0


@dataclass(frozen=True, kw_only=True)
class AuditManifest(TargetManifest):
    """What an audit is of."""

    norm: str
    eps: float
    defense: DefenseId
    attacks: tuple[AttackId, ...]
    settings: AuditSettings
    held_out: DataId | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class AuditStudy(TargetStudy[AuditManifest, AttackCell, AuditRecord]):
    """The audit of a target as one cell, whose parts depend on each other; settings as of `audit`.

    notes: the folder of the records; an audit that is measured in this process resumes there.
    """

    defense: str = NONE
    attacks: tuple[str, ...] = ("adaptive-v1-quick",)
    norm: str = "linf"
    eps: float | None = None
    settings: AuditSettings = QUICK
    held_out: tuple[Tensor, Tensor] | None = field(default=None, compare=False)
    notes: Path | None = None

    manifest_type = AuditManifest
    record_type = AuditRecord

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.built  # refuses an unknown defense, as the next lines do attacks and images
        auditor.threats_of(self.attacks, self.ball)
        if self.held_out is not None:
            checks.image_batch(self.held_out[0])

    @property
    def ball(self) -> Ball:
        return ball(self.norm, self.eps)

    def described(self) -> Mapping[str, object]:
        check_images(len(self.target.images), self.settings)
        unseen = self.held_out
        return {
            "eps": self.ball.eps,
            "attacks": attack_ids(self.attacks, self.ball),
            "held_out": unseen
            and DataId(name="held out", images=len(unseen[0]), sha256=images_digest(*unseen)),
        }

    @staticmethod
    def cells_of(manifest: AuditManifest) -> list[AttackCell]:
        return [AttackCell(defense=manifest.defense.name, attack=AUDIT, images=range(1))]

    def measure(self, cell: AttackCell, progress: CellProgress = no_cell_progress) -> list[AuditRecord]:
        notes, started = Notes(self.notes), itertools.count()
        place, (images, labels) = self.target.place, self.target.part(slice(None))
        shield = defense_from(self.defense, seed=0) or Preprocessor(lambda images: images, name=NONE)
        found = auditor.audit(
            self.target.model, shield.to(place), images, labels, attacks=self.attacks, ball=self.ball,
            settings=self.settings, notes=notes, report=lambda part: progress(part, next(started)),
            held_out=self.held_out and (self.held_out[0].to(place), self.held_out[1].to(place)),
        )  # fmt: skip
        report = AuditReport(
            data=self.manifest.data.name,
            classifier=self.manifest.classifier.described,
            defense=shield.spec or self.defense.removeprefix(f"{IN_MEMORY}: "),
            given=self.attacks,
            norm=self.norm,
            eps=self.ball.eps,
            settings=self.settings,
            machine=self.manifest.machine,
            seconds=round(notes.seconds, 1),
            warning="; ".join(tuning_note(self.manifest.classifier, [self.manifest.defense])) or None,
            **vars(found),
        )
        return [AuditRecord(defense=cell.defense, report=report.plain())]

    def cost(self, cell: AttackCell) -> int:
        return auditor.PARTS

    def title(self, cell: AttackCell) -> str:
        return f"{cell.defense}, {AUDIT}"


def usual_suite(*, quick: bool) -> str:
    """The attacks that are judged by default."""
    return "adaptive-v1-quick" if quick else "adaptive-v1"


def audit(
    model: nn.Module | str = BUNDLED,
    images: Tensor | str = SAMPLE_NAME,
    labels: Tensor | None = None,
    *,
    defense: DefenseLike | None = None,
    attacks: str | Sequence[str] | None = None,
    norm: str = "linf",
    eps: float | None = None,
    quick: bool = False,
    settings: AuditSettings | None = None,
    seed: int = 0,
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    executor: Executor | None = None,
    progress: Callable[[str], None] | None = None,
    held_out: tuple[Tensor, Tensor] | None = None,
) -> AuditReport:
    """Can the robust accuracy that attacks report for a defended classifier be believed?

    Args:
        model: a module from images in [0, 1] to logits, a model that `vq.defend` made, or the name of a
            classifier, as for `vq.evaluate`.
        images: (N, channels, height, width) in [0, 1], or the name of a data set.
        labels: (N,) classes, a tensor, array or list; none where images is the name of a data set.
        defense: the defense of the classifier, as for `vq.evaluate`, but only one (default: the one that the
            model has, or that the classifier's file says it was fine-tuned behind, else none). Every draw
            comes from the audit's seed, not from its own.
        attacks: attacks whose result is judged, as for `vq.evaluate` (default: the adaptive suite).
        norm: norm of the attacks' budget: "linf", "l2" or "l1".
        eps: budget of the attacks on pixels in [0, 1] (default: 8/255 for linf, 0.5 for l2, 12 for l1).
        quick: use fewer samples and steps, for a CPU.
        settings: how thorough, in full; then quick does not matter.
        seed: seed of every sample.
        limit: use the first N images, at least `vqshield.auditing.LEAST_IMAGES` (default: all).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: a folder for audit.json and records; an interrupted audit resumes there (default: none, and
            nothing is written).
        executor: where the audit is measured, as one cell (default: in this process; only there an
            interrupted audit resumes after its last part).
        progress: called with the name of each part that is about to be measured.
        held_out: images and labels that the maker of the model has not seen: a model that knows the others by
            heart does worse on these.

    Returns:
        The report: its flags with outcomes, numbers and meanings, and everything it was made with.

    Raises:
        InvalidInputError: an argument is wrong, there are too few images, or the folder holds another audit.

    Example:
        >>> few = vq.auditing.AuditSettings(
        ...     runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True
        ... )
        >>> report = vq.audit(classifier, images[:2], labels[:2], attacks="pgd:steps=1", settings=few)
        >>> report.passed  # no audit of two images does
        False
        >>> [flag.name for flag in report.flags][:3]
        ['R1', 'R2', 'R3']
    """
    thorough = replace(settings or (QUICK if quick else AuditSettings()), seed=seed)
    if attacks is None:
        attacks = usual_suite(quick=quick)
    counts = [limit, None if isinstance(images, str) else len(images)]
    fewest = min((count for count in counts if count is not None), default=LEAST_IMAGES)
    check_images(fewest, thorough)  # before anything is loaded
    with split_model(model, defense) as (classifier, (spec,)):
        study = AuditStudy(
            target=target_from(classifier, images, labels, limit=limit, data_dir=data_dir, device=device),
            defense=spec,
            attacks=(attacks,) if isinstance(attacks, str) else tuple(attacks),
            norm=norm,
            eps=eps,
            settings=thorough,
            held_out=held_out,
        )
        folder = None if out is None else Path(out)
        return audit_target(study, out=folder, executor=executor, progress=progress)


def audit_target(
    study: AuditStudy,
    *,
    out: Path | None,
    executor: Executor | None = None,
    progress: Callable[[str], None] | None = None,
) -> AuditReport:
    """Audit what a study describes; the options are those of `audit`."""

    def report(part: str, done: int, total: int) -> None:
        if progress is not None and done < total:
            progress(part)

    if executor is None:
        study = replace(study, notes=out)
    (record,) = run_study(study, out, executor=executor, progress=report).records
    if out is not None:
        write_json(out / FILE, record.report)
    return AuditReport.from_plain(record.report, FILE)

"""The audit of a target, by name or in memory: the call behind `vq.audit` and `vqshield audit`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vqshield.attacks import ball
from vqshield.auditing import (
    LEAST_IMAGES,
    QUICK,
    AuditReport,
    AuditSettings,
    check_audit,
    read_audit,
    run_audit,
)
from vqshield.auditing.run import FILE, check_images
from vqshield.classifiers import BUNDLED
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.serialization import Json
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import Defense, DefenseLike, Preprocessor
from vqshield.runs.arguments import attack_ids, defense_from, split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import AttackId, DefenseId, TargetManifest
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, no_cell_progress
from vqshield.runs.target_study import TargetStudy

AUDIT = "audit"


@dataclass(frozen=True, kw_only=True)
class AuditRecord(Record):
    """An audit, whole; report: what audit.json holds."""

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


@dataclass(frozen=True, kw_only=True)
class AuditCell:
    """The unit of work: a whole audit, whose parts depend on each other."""

    defense: str

    @property
    def keys(self) -> list[Key]:
        """What its record is of."""
        return [(self.defense, AUDIT, 0)]


@dataclass(frozen=True, kw_only=True)
class AuditStudy(TargetStudy[AuditManifest, AuditCell, AuditRecord]):
    """The audit of a target for executors: another process, or another machine, measures it.

    Attributes:
        defense: by text, "swrd:size=3", "package.module:function", or "none" for a model without one.
        attacks: those whose result is judged, by text.
        norm, eps: their budget; eps None: the usual one of the norm.
        settings: how thorough.
    """

    defense: str = NONE
    attacks: tuple[str, ...] = ("adaptive-v1-quick",)
    norm: str = "linf"
    eps: float | None = None
    settings: AuditSettings = QUICK

    manifest_type = AuditManifest
    record_type = AuditRecord

    @property
    def specs(self) -> tuple[str, ...]:
        return (self.defense,)

    def described(self) -> Mapping[str, Any]:
        within = ball(self.norm, self.eps)
        return {"eps": within.eps, "attacks": attack_ids(self.attacks, within)}

    @staticmethod
    def cells_of(manifest: AuditManifest) -> list[AuditCell]:
        return [AuditCell(defense=manifest.defense.name)]

    def measure(self, cell: AuditCell, progress: CellProgress = no_cell_progress) -> list[AuditRecord]:
        report = self.run(out=None, progress=lambda part: progress(part, 0))
        return [AuditRecord(defense=cell.defense, report=report.plain())]

    def cost(self, cell: AuditCell) -> int:
        """One audit."""
        return 1

    def title(self, cell: AuditCell) -> str:
        return f"{cell.defense}, {AUDIT}"

    def run(
        self,
        *,
        out: Path | None,
        progress: Callable[[str], None] | None,
        held_out: tuple[Tensor, Tensor] | None = None,
    ) -> AuditReport:
        """Audit here, in a folder where an audit that was stopped resumes."""
        pictures, true = self.target.part(slice(None))
        data, classifier = self.target.data_id, self.target.classifier_id
        unseen = None if held_out is None else (held_out[0].to(pictures.device), held_out[1].to(true.device))
        return run_audit(
            self.target.model, _shield(self.defense), pictures, true, attacks=self.attacks,
            norm=self.norm, eps=self.eps, settings=self.settings, out=out, progress=progress,
            data=data.name, data_sha256=data.sha256, classifier=classifier.described,
            classifier_sha256=classifier.sha256, held_out=unseen,
        )  # fmt: skip


def usual_suite(*, quick: bool) -> str:
    """The attacks that are judged where none are named."""
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
    quick: bool = True,
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
        defense: what stands in front of the classifier, as for `vq.evaluate`, but one alone. Without it, the
            one that the model has, or that the classifier's file says it was fine-tuned behind, else none.
            Every draw comes from the audit's seed, not from its own.
        attacks: attacks whose result is judged, as for `vq.evaluate` (default: the adaptive suite).
        norm: norm of the attacks' budget: "linf", "l2" or "l1".
        eps: budget of the attacks on pixels in [0, 1] (default: 8/255 for linf, 0.5 for l2, 12 for l1).
        quick: use fewer samples and steps, for a CPU.
        settings: how thorough, in full; then quick does not matter.
        seed: seed of every sample.
        limit: use the first N images, at least `vqshield.auditing.LEAST_IMAGES` (default: all).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: a folder for audit.json and for all that is measured on the way; an audit that was stopped
            continues there. Without it, nothing is written.
        executor: where the audit is measured, as one cell; without it, in this process, where one that was
            stopped goes on in the middle.
        progress: called with the name of each part that is about to be measured.
        held_out: images and labels that whoever made the model has not seen: a model that knows the others by
            heart does worse on these.

    Returns:
        The report: its flags with outcomes, figures and meanings, and everything it was made with.

    Raises:
        InvalidInputError: something given is wrong, there are too few images, or the folder holds another
            audit.

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
    chosen = dataclasses.replace(settings or (QUICK if quick else AuditSettings()), seed=seed)
    if attacks is None:
        attacks = usual_suite(quick=quick)
    given = (attacks,) if isinstance(attacks, str) else tuple(attacks)
    counts = [each for each in (limit, None if isinstance(images, str) else len(images)) if each is not None]
    check_images(min(counts, default=LEAST_IMAGES), chosen)
    with split_model(model, defense) as (classifier, (text,)):
        check_audit(_shield(text), given, norm=norm, eps=eps)  # before anything is loaded
        study = AuditStudy(
            target=target_from(classifier, images, labels, limit=limit, data_dir=data_dir, device=device),
            defense=text,
            attacks=given,
            norm=norm,
            eps=eps,
            settings=chosen,
        )
        study.target.check()
        return audit_target(
            study, out=None if out is None else Path(out), executor=executor, progress=progress,
            held_out=held_out,
        )  # fmt: skip


def audit_target(
    study: AuditStudy,
    *,
    out: Path | None,
    executor: Executor | None = None,
    progress: Callable[[str], None] | None = None,
    held_out: tuple[Tensor, Tensor] | None = None,
) -> AuditReport:
    """Audit what a study describes, here or by an executor; the options are those of `audit`."""
    if executor is None:
        return study.run(out=out, progress=progress, held_out=held_out)
    if held_out is not None:
        raise InvalidInputError("held_out images stay in this process; audit them without an executor")
    tell = progress or (lambda part: None)
    found = run_study(
        study,
        None if out is None else out / "records",
        executor=executor,
        progress=lambda doing, done, total: tell(doing),
    )
    assert out is not None  # run_study refuses an executor without one
    write_json(out / FILE, found.records[0].report)
    return read_audit(out / FILE)


def _shield(text: str) -> Defense:
    """The defense that is audited; for none, one that does nothing."""
    return defense_from(text, seed=0) or Preprocessor(_unchanged, name=NONE)


def _unchanged(images: Tensor) -> Tensor:
    return images

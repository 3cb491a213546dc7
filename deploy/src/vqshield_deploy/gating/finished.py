"""A finished run as samples per image, whichever verb wrote its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vqshield.auditing.results import Verdict, read_audit
from vqshield.auditing.study import FILE as AUDIT
from vqshield.certification.l1 import L1Certification
from vqshield.certification.records import (
    EXACT,
    CertificateRecord,
    L1Record,
    VoteRecord,
)
from vqshield.certification.study import Certification
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json, to_plain
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import attack_groups
from vqshield.ladders.black_box import BlackBoxStudy
from vqshield.ladders.study import BARE, MAIN, PLAN, Plan, competing, subject_folders
from vqshield.runs.attack_study import strongest_draws
from vqshield.runs.manifests import flat, read_manifest, read_plain_manifest
from vqshield.runs.study import Recorded, Study
from vqshield.runs.target import DataId
from vqshield_deploy.gating.statistics import Shares

CLEAN, CERTIFIED = "clean", "certified@"
_KINDS: dict[str, type[Evaluation | Certification | L1Certification]] = {
    "defenses": Evaluation, "certificate": Certification, "shifts": L1Certification,
}  # fmt: skip
"""The study whose manifest has this field."""

Result = tuple[str, str]
"""What is measured, "model" or "bare", and under which attack: "clean", "score@500", "certified@0.1"."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The results of a run, image by image.

    Attributes:
        folder: where its records are.
        kind: what wrote it: "evaluate", "ladder", "audit" or "certify".
        data: the images; None for an audit, which keeps none of its samples.
        settings: everything else in its manifest, by path, as "attacks.0.name".
        results: the samples of each image.
        verdict: of an audit.
    """

    folder: Path
    kind: str
    data: DataId | None = None
    settings: Mapping[str, Json] = field(default_factory=dict)
    results: Mapping[Result, Shares] = field(default_factory=dict)
    verdict: Verdict | None = None

    def shares(self, subject: str, attack: str) -> tuple[str, Shares]:
        """The samples of a result, and its attack in full; "score" is that after the most calls."""
        names = [name for each, name in self.results if each == subject]
        found = [name for name in names if name == attack or name.startswith(f"{attack}@")]
        if not found:
            known = ", ".join(f"{name!r} of {each!r}" for each, name in self.results) or "none"
            raise InvalidInputError(f"{self.folder} has no result {attack!r} of {subject!r}; it has {known}")
        return found[-1], self.results[subject, found[-1]]


def read_run(folder: Path | str, *, radii: Sequence[float] = (0.0,)) -> FinishedRun:
    """The run that evaluate, ladder, audit or certify finished in a folder.

    Args:
        folder: the folder of its manifest and records.
        radii: radii of certified accuracies, in the norm of the certificate.

    Raises:
        InvalidInputError: there is no such run, or it is not finished.
        FileFormatError: a file is broken; the message names the line.
    """
    folder = Path(folder)
    if (folder / PLAN).is_file():
        return _ladder(folder)
    plain = read_plain_manifest(folder)
    if (folder / AUDIT).is_file():
        verdict = read_audit(folder / AUDIT).audit.verdict
        return FinishedRun(folder=folder, kind="audit", verdict=verdict)
    study = next(
        (kind for name, kind in _KINDS.items() if isinstance(plain, Mapping) and name in plain), None
    )
    if study is None:
        raise InvalidInputError(
            f"{folder} holds no finished run of evaluate, ladder, audit or certify; give the --out of one"
        )
    recorded = _finished(study, folder)
    evaluated = study is Evaluation
    return FinishedRun(
        folder=folder,
        kind="evaluate" if evaluated else "certify",
        data=recorded.manifest.data,
        settings={name: value for name, value in flat(plain).items() if not name.startswith("data.")},
        results=_evaluated(recorded) if evaluated else _certified(recorded.records, radii),
    )


def _finished(study: type[Study[Any, Any, Any]], folder: Path) -> Recorded[Any, Any]:
    recorded = study.read(folder)
    total = sum(len(cell.keys) for cell in study.cells_of(recorded.manifest))
    if len(recorded.records) < total:
        raise InvalidInputError(
            f"{folder} is not finished: it has {len(recorded.records)} of {total} records; run the command "
            "that wrote it again to continue"
        )
    return recorded


def _evaluated(recorded: Recorded[EvaluationManifest, EvaluationRecord]) -> dict[Result, Shares]:
    """The only defense of a run is "model", whatever it is; several have their own names."""
    names = [each.name for each in recorded.manifest.defenses]
    subjects = {NONE: BARE, **{name: MAIN if len(names) == 1 else name for name in names}}
    by_attack: dict[Result, dict[int, EvaluationRecord]] = {}
    for record in recorded.records:
        by_attack.setdefault((record.defense, record.attack), {})[record.image] = record
    results = {}
    for defense, subject in subjects.items():
        for row, members in attack_groups(recorded.manifest).items():
            if all((defense, each) in by_attack for each in members):
                draws = strongest_draws([by_attack[defense, each] for each in members])
                results[subject, CLEAN if row == NONE else row] = Shares.of(draws)
    return results


def _certified(records: Sequence[CertificateRecord], radii: Sequence[float]) -> dict[Result, Shares]:
    """Votes that are right beyond each radius (L1: within it)."""
    votes = sorted(
        (each for each in records if isinstance(each, VoteRecord | L1Record)), key=lambda each: each.image
    )
    results = {}
    for radius in radii if votes else ():
        right = tuple(
            int(vote.answer == vote.label and (vote.radius, vote.certificate == EXACT) > (radius, False))
            for vote in votes
        )  # the exact certificate holds at its radius, too
        results[MAIN, f"{CERTIFIED}{radius:g}"] = Shares(right, 1)
    return results


def _ladder(folder: Path) -> FinishedRun:
    plan = read_manifest(Plan, folder, file=PLAN)
    results: dict[Result, Shares] = {}
    first: EvaluationManifest | None = None
    for subject in plan.subjects:
        inside, outside = subject_folders(folder, subject.name)
        measured = _finished(Evaluation, inside), _finished(BlackBoxStudy, outside)
        first = first or measured[0].manifest
        for rung, calls, _, attacked in competing(plan, subject, measured):
            name = CLEAN if rung == "natural" else rung
            results[subject.name, f"{name}@{calls}" if calls else name] = Shares.of(strongest_draws(attacked))
    assert first is not None  # a ladder has a subject
    plain = to_plain(plan)
    del plain["training_seconds"]
    for name in ("classifier", "code", "machine"):
        plain[name] = to_plain(getattr(first, name))
    return FinishedRun(folder=folder, kind="ladder", data=first.data, settings=flat(plain), results=results)

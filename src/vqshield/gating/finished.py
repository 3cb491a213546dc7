"""A finished run as samples per image, whichever verb wrote its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vqshield.auditing.results import Verdict, read_audit
from vqshield.auditing.study import FILE as AUDIT
from vqshield.certification.l1 import L1Certification
from vqshield.certification.records import (
    CertificateManifest,
    CertificateRecord,
    CertificationManifest,
    DrawsRecord,
    L1Record,
    VoteRecord,
)
from vqshield.certification.study import Certification
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json, to_plain
from vqshield.core.settings import format_value
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import attack_groups
from vqshield.gating.statistics import Shares
from vqshield.ladders.black_box import BlackBoxStudy
from vqshield.ladders.study import BARE, MAIN, PLAN, Plan, competing, subject_folders
from vqshield.runs.attack_study import strongest_draws
from vqshield.runs.manifests import flat, read_manifest, read_plain_manifest
from vqshield.runs.study import Recorded
from vqshield.runs.target import DataId

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
    data: DataId | None
    settings: Mapping[str, Json]
    results: Mapping[Result, Shares]
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
        report = read_audit(folder / AUDIT)
        settings = _settings(plain)
        return FinishedRun(
            folder=folder, kind="audit", data=None, settings=settings, results={},
            verdict=report.audit.verdict,
        )  # fmt: skip
    fields = plain if isinstance(plain, Mapping) else {}
    study = next((kind for name, kind in _KINDS.items() if name in fields), None)
    if study is None:
        raise InvalidInputError(
            f"{folder} holds no finished run of evaluate, ladder, audit or certify; give the --out of one"
        )
    recorded: Recorded[Any, Any] = study.read(folder)
    _refuse_unfinished(study, folder, recorded)
    manifest = recorded.manifest
    evaluated = isinstance(manifest, EvaluationManifest)
    return FinishedRun(
        folder=folder,
        kind="evaluate" if evaluated else "certify",
        data=manifest.data,
        settings=_settings(plain),
        results=(_evaluated if evaluated else _certified)(manifest, recorded.records, radii),
    )


def _settings(plain: Json) -> dict[str, Json]:
    return {name: value for name, value in flat(plain).items() if not name.startswith("data.")}


def _refuse_unfinished(study: Any, folder: Path, recorded: Recorded[Any, Any]) -> None:
    total = sum(len(cell.keys) for cell in study.cells_of(recorded.manifest))
    if len(recorded.records) < total:
        raise InvalidInputError(
            f"{folder} is not finished: it has {len(recorded.records)} of {total} records; run the command "
            "that wrote it again to continue"
        )


def _evaluated(
    manifest: EvaluationManifest, records: Sequence[EvaluationRecord], _: object
) -> dict[Result, Shares]:
    """The only defense of a run is "model", whatever it is; several have their own names."""
    names = [each.name for each in manifest.defenses]
    subjects = {NONE: BARE, **{name: MAIN if len(names) == 1 else name for name in names}}
    by_attack: dict[Result, dict[int, EvaluationRecord]] = {}
    for record in records:
        by_attack.setdefault((record.defense, record.attack), {})[record.image] = record
    results = {}
    for defense, subject in subjects.items():
        for row, members in attack_groups(manifest).items():
            found = [by_attack[defense, each] for each in members if (defense, each) in by_attack]
            if len(found) == len(members) and (draws := strongest_draws(found)) is not None:
                results[subject, CLEAN if row == NONE else row] = Shares.of(draws)
    return results


def _certified(
    manifest: CertificateManifest, records: Sequence[CertificateRecord], radii: Sequence[float]
) -> dict[Result, Shares]:
    """Votes that are right beyond each radius (L1: within it), and the samples behind error bounds."""
    ordered = sorted(records, key=lambda record: record.image)
    results = {}
    votes = [each for each in ordered if isinstance(each, VoteRecord | L1Record)]
    for radius in dict.fromkeys(radii) if votes else ():
        right = tuple(
            int(
                each.answer == each.label
                and (each.radius >= radius if isinstance(each, L1Record) else each.radius > radius)
            )
            for each in votes
        )
        results[MAIN, f"{CERTIFIED}{radius:g}"] = Shares(right, 1)
    if isinstance(manifest, CertificationManifest):
        bounds = [each for each in ordered if isinstance(each, DrawsRecord)]
        for eps in dict.fromkeys(each.eps for each in bounds):
            right = tuple(manifest.draws - each.errors for each in bounds if each.eps == eps)
            results[MAIN, f"draws@{format_value(eps)}"] = Shares(right, manifest.draws)
    return results


def _ladder(folder: Path) -> FinishedRun:
    plan = read_manifest(Plan, folder, file=PLAN)
    results: dict[Result, Shares] = {}
    first: EvaluationManifest | None = None
    for subject in plan.subjects:
        inside, outside = subject_folders(folder, subject.name)
        measured = Evaluation.read(inside), BlackBoxStudy.read(outside)
        _refuse_unfinished(Evaluation, inside, measured[0])
        _refuse_unfinished(BlackBoxStudy, outside, measured[1])
        first = first or measured[0].manifest
        for rung, calls, _, attacked in competing(plan, subject, measured):
            if (draws := strongest_draws(attacked)) is not None:
                name = CLEAN if rung == "natural" else rung
                results[subject.name, f"{name}@{calls}" if calls else name] = Shares.of(draws)
    assert first is not None  # a ladder has a subject
    plain = to_plain(plan)
    del plain["training_seconds"]
    for name in ("classifier", "code", "machine"):
        plain[name] = to_plain(getattr(first, name))
    return FinishedRun(folder=folder, kind="ladder", data=first.data, settings=flat(plain), results=results)

"""What an evaluation found: a row for each defense and attack, from records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from vqshield.attacks.threats import LEVELS
from vqshield.core.display_names import NONE
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.models.draws import Accuracy
from vqshield.reports.table import Table, Tabular
from vqshield.runs.arguments import tuning_note
from vqshield.runs.attack_study import strongest_draws
from vqshield.runs.study import Recorded

ALL = "adaptive"
"""The row of the strongest attack on each image, of all that are measured: an attacker may choose, too."""
NOT_RUN = "not run"
CURVE = "curve"
"""The folder of the records with other budgets, in that of the others."""

_Recorded = Recorded[EvaluationManifest, EvaluationRecord]


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(Accuracy):
    """The accuracy under one attack, one suite or all attacks together in front of a defense."""

    defense: str
    attack: str
    level: str  # how much the attack knows; "none" for clean accuracy
    vote: float  # accuracy of the runs' most frequent answer
    worst: float  # share of images right in every run
    seconds: float | None  # as far as known
    audit: str | None = field(default=None, metadata={"omit": True})  # of a robust accuracy


@dataclass(frozen=True, kw_only=True)
class CurveRow(EvaluationRow):
    """The accuracy under the strongest attack with another budget, on the first images."""

    eps: float


@dataclass(frozen=True, kw_only=True)
class EvaluationSummary(Tabular):
    """What an evaluation found; of one that is not finished, what there is."""

    title: str
    complete: bool
    rows: tuple[EvaluationRow, ...]
    audit: str
    warning: str | None
    seconds: float
    manifest: EvaluationManifest
    curve: tuple[CurveRow, ...] | None = field(default=None, metadata={"omit": True})

    @property
    def main(self) -> str:
        """The defense that the evaluation is about: the first that is one."""
        names = [defense.name for defense in self.manifest.defenses]
        return next((name for name in names if name != NONE), NONE)

    @property
    def strongest(self) -> EvaluationRow | None:
        """The row of the attack or suite, as it was named, that leaves the main defense least accuracy."""
        rows = [self.row(self.main, attack.name) for attack in self.manifest.attacks]
        return min(filter(None, rows), key=lambda row: row.mean, default=None)

    @property
    def table(self) -> Table:
        """The rows for terminals, pages and documents, and for pandas."""
        from vqshield.evaluation.page import evaluation_table

        return evaluation_table(self)

    def row(self, defense: str, attack: str = NONE) -> EvaluationRow | None:
        """The row of a defense and an attack as they were named; None where there is none."""
        return next((row for row in self.rows if (row.defense, row.attack) == (defense, attack)), None)

    def with_curve(self, points: Sequence[_Recorded]) -> "EvaluationSummary":
        """The same with what was recorded with other budgets."""
        found = {point.manifest.ball.eps: EvaluationSummary.of(point).strongest for point in points}
        if points:
            found[0.0] = EvaluationSummary.of(points[0]).row(self.main)
        rows = [CurveRow(**vars(row), eps=eps) for eps, row in sorted(found.items()) if row is not None]
        return replace(self, curve=tuple(rows) or None)

    @classmethod
    def of(cls, recorded: _Recorded) -> "EvaluationSummary":
        """From records: every attack, every suite, and all attacks together, for every defense."""
        manifest, seconds = recorded.manifest, recorded.seconds
        by_attack: dict[tuple[str, str], dict[int, EvaluationRecord]] = {}
        for record in recorded.records:
            by_attack.setdefault((record.defense, record.attack), {})[record.image] = record
        rows = []
        for defense in manifest.measured:
            for name, members in attack_groups(manifest).items():
                keys = [(defense, member) for member in members]
                took = [seconds[key] for key in keys if key in seconds]
                rows += _rows(defense, name, [by_attack.get(key, {}) for key in keys], took)
        return cls(
            title=f"Accuracy of {manifest.data.images} images of {manifest.data.name}, "
            f"classifier {manifest.classifier.described}"
            + (f", batch norm {manifest.batch_norm}" if manifest.batch_norm else ""),
            complete=len(by_attack) == sum(map(len, manifest.measured.values()))
            and all(len(images) == manifest.data.images for images in by_attack.values()),
            rows=tuple(rows),
            audit=NOT_RUN,
            warning=_warning(manifest, recorded.records),
            seconds=round(sum(seconds.values()), 1),
            manifest=manifest,
        )


def attack_groups(manifest: EvaluationManifest) -> dict[str, list[str]]:
    """The attacks whose strongest each row of a defense shows, by the row's name."""
    groups, every = {NONE: [NONE]}, list[str]()
    for attack in manifest.attacks:
        members = [threat.name for threat in attack.threats]
        groups |= {member: [member] for member in members}
        groups[attack.name] = members
        every += members
    return {**groups, ALL: every} if every else groups


def _rows(
    defense: str, attack: str, members: Sequence[Mapping[int, EvaluationRecord]], seconds: Sequence[float]
) -> list[EvaluationRow]:
    """The row of the images that every member was tried on; none where there are no such images."""
    draws = strongest_draws(members)
    if draws is None:
        return []
    levels = [next(iter(records.values())).level for records in members]
    row = EvaluationRow.of(
        draws,
        defense=defense,
        attack=attack,
        level=max(levels, key=(NONE, *LEVELS).index),
        vote=draws.vote(),
        worst=draws.worst(),
        seconds=round(sum(seconds), 1) if seconds else None,
        audit=None if attack == NONE else NOT_RUN,
    )
    return [row]


def _warning(manifest: EvaluationManifest, records: Sequence[EvaluationRecord]) -> str | None:
    """What a reader of robust accuracies must know."""
    levels, warnings = {threat.level for threat in manifest.threats}, []
    if not levels:
        warnings.append("no attack was given: these numbers say nothing about robustness")
    elif levels == {LEVELS[0]}:
        warnings.append("these attacks ignore the defense: the result flatters it")
    if manifest.classifier.inside and levels:
        warnings.append(
            "the defense is part of the model, so attacks follow the model's own gradient; give the model "
            "that vq.defend made, as it is, and they use the strongest surrogate"
        )
    if not manifest.classifier.random and any(
        len({*record.predictions}) > 1 for record in records if record.defense == NONE
    ):
        warnings.append(
            "the classifier is random on some of these images, though not on the first ones: attacks on it "
            "averaged no samples"
        )
    warnings += tuning_note(manifest.classifier, manifest.defenses)
    if levels and (caveat := manifest.ball.caveat):
        warnings.append(caveat)
    return "; ".join(warnings) or None


def per_class(recorded: _Recorded, defense: str) -> dict[int, tuple[int, list[float]]]:
    """For each class, how many images it has, and their accuracies behind a defense.

    The first accuracy is of clean images. The second, where there are attacks, is under the strongest attack
    on each image.
    """
    groups: dict[str, dict[int, EvaluationRecord]] = {}
    for record in recorded.records:
        if record.defense == defense:
            groups.setdefault(record.attack, {})[record.image] = record
    clean, *attacked = (groups.get(name, {}) for name in recorded.manifest.measured[defense])
    classes: dict[int, tuple[int, list[float]]] = {}
    for members in filter(None, ([clean], attacked)):
        draws = strongest_draws(members)
        if draws is not None:
            for label in sorted({*draws.labels.tolist()}):
                right = draws.right[draws.labels == label].double() / len(draws.predictions)
                classes.setdefault(label, (len(right), []))[1].append(float(right.mean()))
    return classes

"""What an evaluation found: a row for each defense and attack, from records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
class EvaluationSummary(Tabular):
    """What an evaluation found; of one that is not finished, what there is."""

    title: str
    complete: bool
    rows: tuple[EvaluationRow, ...]
    audit: str
    warning: str | None
    seconds: float
    manifest: EvaluationManifest

    @property
    def table(self) -> Table:
        """The rows for terminals, pages and documents, and for pandas."""
        from vqshield.evaluation.page import evaluation_table

        return evaluation_table(self)

    def row(self, defense: str, attack: str = NONE) -> EvaluationRow | None:
        """The row of a defense and an attack as they were named; None where there is none."""
        return next((row for row in self.rows if (row.defense, row.attack) == (defense, attack)), None)

    @classmethod
    def of(cls, recorded: Recorded[EvaluationManifest, EvaluationRecord]) -> "EvaluationSummary":
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

"""What an evaluation records of each image, and the settings of its records."""

from dataclasses import dataclass, field

from vqshield.core.display_names import NONE
from vqshield.runs.attack_study import AttackManifest
from vqshield.runs.manifests import AttackId, DefenseId, ThreatId
from vqshield.runs.records import Key, Record


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Record):
    """One image under one attack in front of one defense."""

    attack: str
    level: str
    image: int  # its place in the data
    label: int
    distance: float  # how far the attack moved it
    selected: int | None  # right answers among the samples that attacks are compared on; None without attack
    predictions: tuple[int, ...]  # of the runs that are reported

    @property
    def key(self) -> Key:
        return self.defense, self.attack, self.image


@dataclass(frozen=True, kw_only=True)
class EvaluationManifest(AttackManifest):
    """What the records of an evaluation are of."""

    defenses: tuple[DefenseId, ...]
    attacks: tuple[AttackId, ...]
    batch_norm: str | None = field(default=None, metadata={"omit": True})

    @property
    def threats(self) -> tuple[ThreatId, ...]:
        """Every attack, those of suites one by one."""
        return tuple(threat for attack in self.attacks for threat in attack.threats)

    @property
    def measured(self) -> dict[str, list[str]]:
        """The attacks on each defense, "none" for clean images; on the bare classifier, at least that."""
        attacks = [NONE, *(threat.name for threat in self.threats)]
        return {NONE: [NONE], **{defense.name: attacks for defense in self.defenses}}

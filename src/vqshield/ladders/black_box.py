"""Attackers without the weights: they query the model, or send images that fool their own models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from vqshield.attacks import EOT, Ball, DiverseInputs, Ensemble, QueryAttack
from vqshield.attacks.suites import expand
from vqshield.attacks.threats import Threat
from vqshield.classifiers import check_classes, is_source, load_classifier, weights_digest
from vqshield.classifiers.remote import is_remote
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import file_sha256
from vqshield.core.seeds import torch_seeded
from vqshield.defended import Defended
from vqshield.ladders.rungs import RungName
from vqshield.runs.arguments import defense_from, refuse_twice
from vqshield.runs.attack_study import AttackCell, AttackManifest, AttackStudy, impossible_answers
from vqshield.runs.manifests import DefenseId, ThreatId
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, chunks, counted, no_cell_progress
from vqshield.runs.target import ClassifierId, short_name


@dataclass(frozen=True, kw_only=True)
class BlackBoxAttack:
    """An attack without the weights.

    Attributes:
        name: its name in records.
        rung: its rung of the ladder.
        attack: a spec string, "square:eot=5", or a suite; member: the place in the suite.
        sources: the attacker's own classifiers, which are attacked as one ensemble; none: the attack queries
            the attacked model.
        behind: whether the sources are behind the defense that is attacked.
        diversity: how often a source sees an image at another size and place.
    """

    name: str
    rung: RungName
    attack: str
    member: int = 0
    sources: tuple[str, ...] = ()
    behind: bool = False
    diversity: float = 0.0

    def threat(self, ball: Ball, *, seed: int = 0) -> Threat:
        return expand(self.attack, ball, seed=seed)[self.member]


@dataclass(frozen=True, kw_only=True)
class BlackBoxId:
    """An attack as a manifest holds it."""

    name: str
    rung: RungName
    threat: ThreatId
    sources: tuple[ClassifierId, ...]
    behind: bool
    diversity: float


@dataclass(frozen=True, kw_only=True)
class BlackBoxRecord(Record):
    """One image, by one attack, after one number of calls.

    calls: the attacker's budget of calls; used: calls for this image; every draw is a call.
    selected, predictions: as of an EvaluationRecord.
    """

    attack: str
    calls: int
    used: int
    image: int
    label: int
    distance: float
    selected: int
    predictions: tuple[int, ...]

    @property
    def key(self) -> Key:
        return self.defense, f"{self.attack}@{self.calls}", self.image


@dataclass(frozen=True, kw_only=True)
class BlackBoxManifest(AttackManifest):
    """What the records of attackers without the weights are of."""

    defense: DefenseId
    calls: tuple[int, ...]
    attacks: tuple[BlackBoxId, ...]


@dataclass(frozen=True, kw_only=True)
class BlackBoxCell(AttackCell):
    """One attack on one chunk of images, at all its numbers of calls."""

    calls: tuple[int, ...]

    @property
    def keys(self) -> list[Key]:
        return [
            (self.defense, f"{self.attack}@{calls}", image) for calls in self.calls for image in self.images
        ]


@dataclass(frozen=True, kw_only=True)
class BlackBoxStudy(AttackStudy[BlackBoxManifest, BlackBoxCell, BlackBoxRecord]):
    """Attacks without the weights on a classifier behind a defense.

    A query attack is one search. The images that it has found after each number of calls are judged by fresh
    draws of the model.

    Attributes:
        defense: a spec string; "none": the bare classifier.
        calls: the numbers of calls after which query attacks are judged, ascending.
        norm, eps, runs, selection, seed, batch: as of AttackSettings.
    """

    defense: str = NONE
    attacks: tuple[BlackBoxAttack, ...] = ()
    calls: tuple[int, ...] = (1000, 5000, 10_000)

    manifest_type = BlackBoxManifest
    record_type = BlackBoxRecord
    takes_remote = True

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_twice("attack", [each.name for each in self.attacks])
        _ = self.built  # refuses an unknown defense
        for each in self.attacks:
            attack = each.threat(self.ball).attack
            if any(map(is_remote, each.sources)):
                raise InvalidInputError(f"sources={each.sources} need gradients; give classifiers in files")
            if not each.sources and not isinstance(attack, QueryAttack):
                raise InvalidInputError(
                    f"attack {each.attack!r} needs more than answers; give square or rays, or sources for it"
                )

    def described(self) -> Mapping[str, object]:
        attacks = tuple(
            BlackBoxId(
                name=each.name,
                rung=each.rung,
                threat=ThreatId.of(each.threat(self.ball)),
                sources=tuple(map(self._source_id, each.sources)),
                behind=each.behind,
                diversity=each.diversity,
            )
            for each in self.attacks
        )
        return {**super().described(), "attacks": attacks}

    @staticmethod
    def cells_of(manifest: BlackBoxManifest) -> list[BlackBoxCell]:
        """Chunk after chunk: a run that is stopped has every attack on the same images."""
        return [
            BlackBoxCell(
                defense=manifest.defense.name,
                attack=each.name,
                calls=(0,) if each.sources else manifest.calls,
                images=images,
            )
            for images in chunks(manifest.data.images, manifest.batch)
            for each in manifest.attacks
        ]

    @staticmethod
    def problem(manifest: BlackBoxManifest, record: BlackBoxRecord) -> str | None:
        wrong = impossible_answers(manifest, record, distance=record.distance)
        if wrong is None and not 0 <= record.used <= record.calls:
            return f"used={record.used} should be from 0 to calls={record.calls}"
        return wrong

    def measure(self, cell: BlackBoxCell, progress: CellProgress = no_cell_progress) -> list[BlackBoxRecord]:
        attack = self._attacks[cell.attack]
        images, labels = self.target.part(cell.images)
        asked = [self.target.model, *(self._sources[each] for each in attack.sources)]
        with counted(self.title(cell), progress, *asked):
            stages = self._found(attack, cell, images, labels)
            records = []
            for calls, (found, used) in zip(cell.calls, stages, strict=True):
                judged = self.judged(cell, images, found, labels, suffix=f" {calls}")
                records += [
                    BlackBoxRecord(
                        defense=cell.defense, attack=cell.attack, calls=calls, used=took, image=image, **each
                    )
                    for image, took, each in zip(cell.images, used, judged, strict=True)
                ]  # fmt: skip
        return records

    def cost(self, cell: BlackBoxCell) -> int:
        attack = self._attacks[cell.attack]
        search = cell.calls[-1]
        if attack.sources:
            threat = attack.threat(self.ball)
            search = int(getattr(threat.attack, "steps", 1)) * threat.eot * len(attack.sources)
        return (search + len(cell.calls) * (self.runs + self.selection_runs)) * len(cell.images)

    @cached_property
    def _attacks(self) -> dict[str, BlackBoxAttack]:
        return {each.name: each for each in self.attacks}

    @cached_property
    def _sources(self) -> dict[str, nn.Module]:
        names = dict.fromkeys(name for each in self.attacks for name in each.sources)
        return {name: load_classifier(name, device=self.target.place) for name in names}

    def _source_id(self, name: str) -> ClassifierId:
        """The identity of a source, which must take these images."""
        model = self._sources[name]
        check_classes(model, name, self.target.images, self.target.place)
        named = is_source(name)
        digest = weights_digest(model) if named else file_sha256(Path(name))
        return ClassifierId(name=short_name(name), sha256=digest)

    def _found(
        self, attack: BlackBoxAttack, cell: BlackBoxCell, images: Tensor, labels: Tensor
    ) -> list[tuple[Tensor, list[int]]]:
        """The images after each number of calls, and how many calls each took."""
        seed = self.seed_of(cell, "attack")
        defense = defense_from(self.defense, seed=self.seed_of(cell, "attacked draws"))
        if defense is not None:
            defense = defense.to(images.device)
        threat = attack.threat(self.ball, seed=seed)
        with torch_seeded(seed):
            if attack.sources:
                models = [self._sources[name] for name in attack.sources]
                source = models[0] if len(models) == 1 else Ensemble(models)
                if attack.diversity:
                    source = DiverseInputs(source, probability=attack.diversity, seed=seed)
                shield = defense if attack.behind else None
                if shield is None:
                    threat = replace(threat, surrogate=NONE)
                found = threat(source, shield, images, labels, drop_lost=False)
                return [(found, [0] * len(images))]
            model = threat.in_precision(self.target.model)
            if defense is not None:
                model = Defended(model, defense)
            if threat.eot > 1 and (defense is not None or self.manifest.classifier.random):
                model = EOT(model, draws=threat.eot, average=threat.average)  # where draws differ
            assert isinstance(threat.attack, QueryAttack)
            trace = threat.attack.trace(model, images, labels, cell.calls, drop_lost=threat.is_fast)
            return list(zip(trace.images, trace.used.tolist(), strict=True))


def transfers(sources: Sequence[str], attack: str, diversity: float) -> tuple[BlackBoxAttack, ...]:
    """Transfer from each source alone and, if there are several, from all of them as one."""
    names = {source: source if is_source(source) else Path(source).stem for source in sources}
    groups = [(source,) for source in sources] + ([tuple(sources)] if len(sources) > 1 else [])
    return tuple(
        BlackBoxAttack(
            name=f"transfer/{'+'.join(names[source] for source in group)}", rung="transfer", attack=attack,
            sources=group, diversity=diversity,
        )
        for group in groups
    )  # fmt: skip

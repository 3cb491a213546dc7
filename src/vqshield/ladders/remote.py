"""Attackers without the weights, image by image: those who ask the model, and those who attack models of
their own and send what they found.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield import attacks as attack_room
from vqshield.attacks import EOT, Ball, DiverseInputs, Ensemble, QueryAttack
from vqshield.attacks.suites import expand
from vqshield.attacks.threats import Threat
from vqshield.classifiers import is_source, load_classifier, weights_digest
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import Json
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.calling import ask_for_logits
from vqshield.models.draws import Draws
from vqshield.runs.arguments import ROUNDING, defense_from, impossible_class, refuse_too_large, refuse_twice
from vqshield.runs.code import CodeId
from vqshield.runs.manifests import DefenseId, ThreatId
from vqshield.runs.randomness import torch_seeded
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, no_cell_progress
from vqshield.runs.target import ClassifierId, DataId
from vqshield.runs.target_study import TargetStudy, counted


@dataclass(frozen=True, kw_only=True)
class RemoteAttack:
    """An attack by somebody who does not hold the weights.

    Attributes:
        name: what it is called in records.
        rung: the rung of the ladder that it belongs to.
        attack: by text, "square:eot=5", or a suite; member: which of the suite's.
        sources: classifiers that the attacker holds, which the attack is run on, as one where there are
            several; none: the attacked model is asked.
        behind: whether the sources stand behind the defense that is attacked.
        diversity: how often a source sees an image at another size and place.
    """

    name: str
    rung: str
    attack: str
    member: int = 0
    sources: tuple[str, ...] = ()
    behind: bool = False
    diversity: float = 0.0

    def threat(self, ball: Ball, *, seed: int = 0) -> Threat:
        """The attack itself."""
        return expand(self.attack, ball, seed=seed)[self.member]


@dataclass(frozen=True, kw_only=True)
class RemoteId:
    """An attack as a manifest holds it."""

    name: str
    rung: str
    threat: ThreatId
    sources: tuple[ClassifierId, ...]
    behind: bool
    diversity: float

    @property
    def asks(self) -> bool:
        """Whether it asks the attacked model."""
        return not self.sources


@dataclass(frozen=True, kw_only=True)
class RemoteRecord(Record):
    """One image, by one attack, after one number of calls.

    calls: how many calls of the model the attacker was allowed, used: how many this image took; every draw
    is a call. selected, predictions: as of an EvaluationRecord.
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
class RemoteManifest:
    """What the records of attackers without the weights are of."""

    data: DataId
    classifier: ClassifierId
    defense: DefenseId
    norm: str
    eps: float
    calls: tuple[int, ...]
    runs: int
    selection: int
    seed: int
    batch: int
    attacks: tuple[RemoteId, ...]
    machine: Mapping[str, Json]
    code: CodeId | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class RemoteCell:
    """The unit of work: one attack on one chunk of images, at all its numbers of calls."""

    defense: str
    attack: str
    calls: tuple[int, ...]
    images: range

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [
            (self.defense, f"{self.attack}@{calls}", image) for calls in self.calls for image in self.images
        ]


@dataclass(frozen=True, kw_only=True)
class RemoteAttacks(TargetStudy[RemoteManifest, RemoteCell, RemoteRecord]):
    """What attackers without the weights leave of a classifier behind a defense.

    A query attack is one search: what it had found after each number of calls is sent to fresh draws of the
    model. As in an Evaluation, draws that an attack is found with, draws that attacks are compared on, and
    draws that are reported have seeds of their own.

    Attributes:
        defense: by text; "none": the bare classifier.
        attacks: by whom.
        calls: the numbers of calls at which query attacks are stopped and looked at, ascending.
        norm, eps, runs, selection, seed, batch: as of an Evaluation.
    """

    defense: str = NONE
    attacks: tuple[RemoteAttack, ...] = ()
    calls: tuple[int, ...] = (1000, 5000, 10_000)
    norm: str = "linf"
    eps: float | None = None
    runs: int = 10
    selection: int = 10
    seed: int = 0
    batch: int = 100

    manifest_type = RemoteManifest

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("runs", "batch", "selection"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        refuse_twice("attack", [each.name for each in self.attacks])
        defense_from(self.defense, seed=0)
        for each in self.attacks:
            attack = each.threat(self.ball).attack
            if not each.sources and not isinstance(attack, QueryAttack):
                raise InvalidInputError(
                    f"attack {each.attack!r} is none that asks for answers alone; "
                    "give square or rays, or sources that it is run on"
                )

    @property
    def ball(self) -> Ball:
        """Where attacks may move an image to."""
        return attack_room.ball(self.norm, self.eps)

    @cached_property
    def manifest(self) -> RemoteManifest:
        self.target.check()
        defense = defense_from(self.defense, seed=0)
        refuse_too_large([defense], self.target)
        return RemoteManifest(
            data=self.target.data_id,
            classifier=self.target.classifier_id,
            defense=DefenseId.of(self.defense, defense, self.target),
            norm=self.norm,
            eps=self.ball.eps,
            calls=self.calls,
            runs=self.runs,
            selection=self.selection,
            seed=self.seed,
            batch=self.batch,
            attacks=tuple(
                RemoteId(
                    name=each.name,
                    rung=each.rung,
                    threat=ThreatId.of(each.threat(self.ball)),
                    sources=tuple(map(self._source_id, each.sources)),
                    behind=each.behind,
                    diversity=each.diversity,
                )
                for each in self.attacks
            ),
            machine=environment(self.target.place),
            code=CodeId.of([defense], self.target.place),
        )

    @staticmethod
    def cells_of(manifest: RemoteManifest) -> list[RemoteCell]:
        """Chunk after chunk: a run that is stopped has every attack on the same images."""
        count, batch = manifest.data.images, manifest.batch
        return [
            RemoteCell(
                defense=manifest.defense.name,
                attack=each.name,
                calls=manifest.calls if each.asks else (0,),
                images=range(first, min(first + batch, count)),
            )
            for first in range(0, count, batch)
            for each in manifest.attacks
        ]

    @staticmethod
    def parse(line: bytes) -> RemoteRecord:
        return RemoteRecord.parse(line)

    @staticmethod
    def problem(manifest: RemoteManifest, record: RemoteRecord) -> str | None:
        if len(record.predictions) != manifest.runs:
            return f"it has {len(record.predictions)} predictions; the manifest says runs={manifest.runs}"
        if (wrong := impossible_class(manifest.data, (record.label, *record.predictions))) is not None:
            return wrong
        if not 0 <= record.distance <= manifest.eps + ROUNDING:  # nan is not, either
            return f"distance={record.distance} is not within eps={manifest.eps}"
        if not 0 <= record.selected <= manifest.selection:
            return f"selected={record.selected} should be from 0 to selection={manifest.selection}"
        if not 0 <= record.used <= record.calls:
            return f"used={record.used} should be from 0 to calls={record.calls}"
        return None

    def measure(self, cell: RemoteCell, progress: CellProgress = no_cell_progress) -> list[RemoteRecord]:
        attack = self._attacks[cell.attack]
        images, labels = self.target.part(cell.images)
        asked = [self.target.model, *(self._sources[each] for each in attack.sources)]
        with counted(self.title(cell), progress, *asked):
            stages = self._found(attack, cell, images, labels)
            records = []
            for calls, (found, used) in zip(cell.calls, stages, strict=True):
                right = self._draws(cell, f"selection {calls}", found, labels, self.selection).right.tolist()
                report = self._draws(cell, f"report {calls}", found, labels, self.runs)
                answers = report.predictions.T.tolist()
                distances, true = self.ball.distance(found, images).tolist(), labels.tolist()
                records += [
                    RemoteRecord(
                        defense=cell.defense,
                        attack=cell.attack,
                        calls=calls,
                        used=used[number],
                        image=image,
                        label=true[number],
                        distance=distances[number],
                        selected=right[number],
                        predictions=tuple(answers[number]),
                    )
                    for number, image in enumerate(cell.images)
                ]
        return records

    def cost(self, cell: RemoteCell) -> int:
        """About how many images are classified for it."""
        attack = self._attacks[cell.attack]
        search = cell.calls[-1]
        if attack.sources:
            threat = attack.threat(self.ball)
            search = int(getattr(threat.attack, "steps", 1)) * threat.eot * len(attack.sources)
        return (search + len(cell.calls) * (self.runs + self.selection)) * len(cell.images)

    def title(self, cell: RemoteCell) -> str:
        return f"{cell.defense}, {cell.attack}"

    @cached_property
    def _attacks(self) -> dict[str, RemoteAttack]:
        return {each.name: each for each in self.attacks}

    @cached_property
    def _sources(self) -> dict[str, nn.Module]:
        names = dict.fromkeys(name for each in self.attacks for name in each.sources)
        return {name: load_classifier(name, device=self.target.place) for name in names}

    def _source_id(self, name: str) -> ClassifierId:
        """Which classifier a source is; one that does not take these images is refused here."""
        model, (image, _) = self._sources[name], self.target.part(range(1))
        with torch.no_grad():
            told = ask_for_logits(model, image).shape[1]
        classes = len(self.target.images.classes)
        if told != classes:
            raise InvalidInputError(f"source {name!r} tells {told} classes apart, the data has {classes}")
        if is_source(name):
            return ClassifierId(name=name, sha256=weights_digest(model))
        digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        return ClassifierId(name=Path(name).name, sha256=digest)

    def _found(
        self, attack: RemoteAttack, cell: RemoteCell, images: Tensor, labels: Tensor
    ) -> list[tuple[Tensor, list[int]]]:
        """At each number of calls, the images and how many calls each took."""
        seed = self._seed(cell, "attack")
        defense = defense_from(self.defense, seed=self._seed(cell, "attacked draws"))
        if defense is not None:
            defense = defense.to(images.device)
        threat = attack.threat(self.ball, seed=seed)
        with torch_seeded(seed):
            if attack.sources:
                held = [self._sources[name] for name in attack.sources]
                source = held[0] if len(held) == 1 else Ensemble(held)
                if attack.diversity:
                    source = DiverseInputs(source, probability=attack.diversity, seed=seed)
                shield = defense if attack.behind else None
                if shield is None:
                    threat = replace(threat, surrogate=NONE)
                found = threat(source, shield, images, labels, drop_lost=False)
                return [(found, [0] * len(images))]
            model = self._asked_model(threat, defense)
            assert isinstance(threat.attack, QueryAttack)
            trace = threat.attack.trace(model, images, labels, cell.calls, drop_lost=threat.is_fast)
            return list(zip(trace.images, trace.used.tolist(), strict=True))

    def _asked_model(self, threat: Threat, defense: Defense | None) -> nn.Module:
        """What a query attack asks: several draws a query only where draws differ."""
        model = threat.in_precision(self.target.model)
        if defense is not None:
            model = Defended(model, defense)
        elif not self.manifest.classifier.random:
            return model
        return model if threat.eot == 1 else EOT(model, draws=threat.eot, average=threat.average)

    def _draws(self, cell: RemoteCell, purpose: str, images: Tensor, labels: Tensor, runs: int) -> Draws:
        return self.draws_behind(
            self.defense, images, labels, runs=runs, seed=self._seed(cell, purpose),
            batch=4 * self.batch,  # no gradients to keep
        )  # fmt: skip

    def _seed(self, cell: RemoteCell, purpose: str) -> int:
        return derived_seed(self.seed, cell.defense, cell.attack, cell.images.start, purpose)


def transfers(sources: Sequence[str], attack: str, diversity: float) -> tuple[RemoteAttack, ...]:
    """Transfer from each source alone and, where there are several, from all of them as one."""
    groups = [(source,) for source in sources] + ([tuple(sources)] if len(sources) > 1 else [])
    return tuple(
        RemoteAttack(
            name=f"transfer/{_short(group)}", rung="transfer", attack=attack, sources=group,
            diversity=diversity,
        )
        for group in groups
    )  # fmt: skip


def _short(sources: Sequence[str]) -> str:
    return "+".join(each if is_source(each) else Path(each).stem for each in sources)

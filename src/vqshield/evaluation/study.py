"""Accuracy of a defended classifier under attack, image by image, in a run that may stop at any moment."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield import attacks as attack_room
from vqshield.attacks import EOT, AutoAttack, Ball
from vqshield.attacks.suites import expand
from vqshield.attacks.threats import LEVELS, Threat
from vqshield.classifiers import BUNDLED
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import Json
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import DefenseLike, list_defenses
from vqshield.models.calling import Part, asking_about
from vqshield.models.draws import Draws, strongest
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.arguments import (
    ROUNDING,
    attack_ids,
    defense_from,
    defense_ids,
    impossible_class,
    refuse_too_large,
    refuse_twice,
    split_model,
    target_from,
    tuning_note,
)
from vqshield.runs.batch_norm import CALIBRATED, RUNNING, BatchNorm
from vqshield.runs.code import CodeId
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import AttackId, DefenseId, ThreatId
from vqshield.runs.randomness import torch_seeded
from vqshield.runs.records import Key, Record
from vqshield.runs.study import (
    CellProgress,
    Progress,
    Recorded,
    no_cell_progress,
    no_progress,
)
from vqshield.runs.target import ClassifierId, DataId
from vqshield.runs.target_study import TargetStudy, counted

ALL = "adaptive"
"""The row of the strongest attack for each image, of all that were given: an attacker may choose, too."""
NOT_RUN = "not run"

# It stops with every image that it breaks: a bare classifier's soon, others not before all has been tried.
_AUTOATTACK = {"bare": 150, "standard": 3000, "rand": 4000}


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord(Record):
    """One image, by one attack, in front of one defense.

    image: its place in the data; distance: how far the attack moved it.
    selected: right answers among the draws that attacks are compared on; None where there is no attack.
    predictions: the answers of the runs that are reported.
    """

    attack: str
    level: str
    image: int
    label: int
    distance: float
    selected: int | None
    predictions: tuple[int, ...]

    @property
    def key(self) -> Key:
        return self.defense, self.attack, self.image


@dataclass(frozen=True, kw_only=True)
class EvaluationManifest:
    """What the records of an evaluation are of."""

    data: DataId
    classifier: ClassifierId
    norm: str
    eps: float
    runs: int
    selection: int
    seed: int
    batch: int
    defenses: tuple[DefenseId, ...]
    attacks: tuple[AttackId, ...]
    machine: Mapping[str, Json]
    code: CodeId | None = field(default=None, metadata={"omit": True})
    batch_norm: str | None = field(default=None, metadata={"omit": True})

    @property
    def threats(self) -> tuple[ThreatId, ...]:
        """Every attack, those of suites one by one."""
        return tuple(threat for attack in self.attacks for threat in attack.threats)


@dataclass(frozen=True, kw_only=True)
class EvaluationCell:
    """The unit of work: one attack (or none) on one chunk of images in front of one defense (or none).

    later: the members of a suite, each with its level, that are tried after the attack on what it leaves;
        none but in a fast suite, where the members are cells of their own otherwise.
    """

    defense: str
    attack: str
    level: str
    images: range
    later: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, each.attack, image) for each in self.in_turn for image in self.images]

    @property
    def in_turn(self) -> list["EvaluationCell"]:
        """The attacks one by one."""
        first = replace(self, later=())
        return [first, *(replace(first, attack=name, level=level) for name, level in self.later)]


@dataclass(frozen=True, kw_only=True)
class Evaluation(TargetStudy[EvaluationManifest, EvaluationCell, EvaluationRecord]):
    """Every attack on every image in front of every defense.

    All images are attacked, those already misclassified too. Draws that attacks are found with, draws that
    they are compared on, and draws that are reported have seeds of their own. Attacks that ignore the defense
    run once for all defenses.

    The members of a suite whose gradients are faster than float32 ("adaptive-v1:precision=bf16") are tried in
    turn: each on those images alone that the one before it did not make wrong in every selection draw. The
    others count for it as they did for the one before.

    Attributes:
        defenses: by text, "swrd:size=3"; "none": attack the bare classifier too, as a baseline. Its natural
            accuracy is measured in any case.
        attacks: by text, "pgd:steps=20,eot=5", or names of suites.
        norm, eps: the attacks' budget; eps None: the usual one of the norm.
        runs: draws of the defense that are reported; selection: other draws, by which the strongest of
            several attacks is chosen for each image (None: as many as runs).
        batch: images of a chunk; a chunk's results depend on nothing but the study.
        batch_norm: which statistics batch norms use behind the defenses, a spec string of
            `vqshield.runs.batch_norm.BatchNorm`.
    """

    defenses: tuple[str, ...] = (NONE,)
    attacks: tuple[str, ...] = ()
    norm: str = "linf"
    eps: float | None = None
    runs: int = 10
    selection: int | None = None
    seed: int = 0
    batch: int = 100
    batch_norm: str = RUNNING

    manifest_type = EvaluationManifest

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("runs", "batch"):
            checks.whole(name, getattr(self, name), least=1)
        if self.selection is not None:
            checks.whole("selection", self.selection, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        BatchNorm.of(self.batch_norm)
        within = self.ball  # refuses norms and budgets that cannot be, with attacks or without
        refuse_twice("defense", self.defenses)
        refuse_twice("attack", self.attacks)
        if not self.defenses:
            choices = ", ".join([*list_defenses(), NONE])
            raise InvalidInputError(f"no defense is given; give one of {choices}")
        for text in self.defenses:
            defense_from(text, seed=0)
        for text in self.attacks:
            expand(text, within)

    @property
    def ball(self) -> Ball:
        """Where attacks may move an image to."""
        return attack_room.ball(self.norm, self.eps)

    @property
    def selection_draws(self) -> int:
        """How many draws the attacks are compared on."""
        return self.runs if self.selection is None else self.selection

    @cached_property
    def manifest(self) -> EvaluationManifest:
        self.target.check()
        refuse_too_large([defense_from(text, seed=0) for text in self.defenses], self.target)
        return EvaluationManifest(
            data=self.target.data_id,
            classifier=self.target.classifier_id,
            norm=self.norm,
            eps=self.ball.eps,
            runs=self.runs,
            selection=self.selection_draws,
            seed=self.seed,
            batch=self.batch,
            defenses=defense_ids(self.defenses, self.target),
            attacks=attack_ids(self.attacks, self.ball),
            machine=environment(self.target.place),
            code=CodeId.of([defense_from(text, seed=0) for text in self.defenses], self.target.place),
            batch_norm=BatchNorm.recorded(self.batch_norm),
        )

    @staticmethod
    def cells_of(manifest: EvaluationManifest) -> list[EvaluationCell]:
        """Chunk after chunk: a run that is stopped has every attack on the same images."""
        # The bare classifier, always: what a defense costs is seen beside it.
        plan = [(NONE, [(NONE, NONE)])]
        for defense in manifest.defenses:
            plan += [(defense.name, [(NONE, NONE)])] if defense.name != NONE else []
            for attack in manifest.attacks:
                members = [(each.name, _level(defense, each, manifest)) for each in attack.threats]
                in_turn = all(each.precision is not None for each in attack.threats)
                plan += [(defense.name, members)] if in_turn else [(defense.name, [each]) for each in members]
        count, batch = manifest.data.images, manifest.batch
        return [
            EvaluationCell(
                defense=name,
                attack=attack,
                level=level,
                images=range(first, min(first + batch, count)),
                later=tuple(later),
            )
            for first in range(0, count, batch)
            for name, ((attack, level), *later) in plan
        ]

    @staticmethod
    def parse(line: bytes) -> EvaluationRecord:
        return EvaluationRecord.parse(line)

    @staticmethod
    def problem(manifest: EvaluationManifest, record: EvaluationRecord) -> str | None:
        attacked = record.attack != NONE
        if len(record.predictions) != manifest.runs:
            return f"it has {len(record.predictions)} predictions; the manifest says runs={manifest.runs}"
        if (wrong := impossible_class(manifest.data, (record.label, *record.predictions))) is not None:
            return wrong
        if not 0 <= record.distance <= (manifest.eps if attacked else 0) + ROUNDING:  # nan is not, either
            return f"distance={record.distance} is not within eps={manifest.eps if attacked else 0}"
        if (record.selected is not None) != attacked:
            return f"selected={record.selected} of attack {record.attack!r}"
        if record.selected is not None and not 0 <= record.selected <= manifest.selection:
            return f"selected={record.selected} should be from 0 to selection={manifest.selection}"
        return None

    def measure(
        self, cell: EvaluationCell, progress: CellProgress = no_cell_progress
    ) -> list[EvaluationRecord]:
        records: list[EvaluationRecord] = []
        models = dict.fromkeys((self.target.model, self.classifier_behind(cell.defense)))
        with counted(self.title(cell), progress, *models):
            images, labels = self.target.part(cell.images)
            left, held = torch.arange(len(images)), list[EvaluationRecord]()
            for attack in cell.in_turn:
                found = self._measured(attack, images, labels, left)
                if len(found) < len(images):  # the others were lost before
                    lost = [replace(each, attack=attack.attack, level=attack.level) for each in held]
                    for place, record in zip(left.tolist(), found, strict=True):
                        lost[place] = record
                    found = lost
                records, held = records + found, found
                left = torch.tensor(
                    [place for place, each in enumerate(held) if each.selected], dtype=torch.int64
                )
        return records

    def _measured(
        self, cell: EvaluationCell, images: Tensor, labels: Tensor, left: Tensor
    ) -> list[EvaluationRecord]:
        """The records of one attack on those images of the chunk that are left."""
        if len(left) == 0:
            return []
        if len(left) < len(images):
            places = left.to(images.device)
            part, images, labels = Part(places, len(images)), images[places], labels[places]
            attacking: AbstractContextManager[None] = asking_about(part)
        else:
            attacking = nullcontext()
        found, right = images, None
        if cell.attack != NONE:
            with attacking:
                found = self._attacked(cell, images, labels)
            right = self._draws(cell, "selection", found, labels).right.tolist()
        answers = self._draws(cell, "report", found, labels).predictions.T.tolist()
        distances, true = self.ball.distance(found, images).tolist(), labels.tolist()
        return [
            EvaluationRecord(
                defense=cell.defense,
                attack=cell.attack,
                level=cell.level,
                image=cell.images[place],
                label=true[number],
                distance=distances[number],
                selected=None if right is None else right[number],
                predictions=tuple(answers[number]),
            )
            for number, place in enumerate(left.tolist())
        ]

    def cost(self, cell: EvaluationCell) -> int:
        """About how many images are classified for it.

        An attack that ignores the defense is counted once, for the first defense: the others find it done.
        """
        draws = 0
        for each in cell.in_turn:
            draws += self.runs
            if each.attack != NONE:
                draws += self.selection_draws
                if not self._threats[each.attack].ignores_defense or cell.defense == self.defenses[0]:
                    draws += self._efforts[each.attack]
        return draws * len(cell.images)

    def needs(self, cell: EvaluationCell) -> tuple[str, int] | None:
        """The attack and the chunk, where its images are kept in a folder for other defenses."""
        if self.shared is None or cell.attack == NONE or not self._is_bare(cell):
            return None
        return cell.attack, cell.images.start

    def title(self, cell: EvaluationCell) -> str:
        return cell.defense if cell.attack == NONE else f"{cell.defense}, {cell.attack}"

    @cached_property
    def store(self) -> AdversarialStore:
        manifest, named = self.manifest, BatchNorm.of(self.batch_norm)
        attacked = manifest.classifier
        if not named.attacks_running:  # other weights would not be more different
            attacked = replace(attacked, sha256=f"{attacked.sha256}, {self.batch_norm}")
        return AdversarialStore(classifier=attacked, machine=manifest.machine, folder=self.shared)

    @cached_property
    def _behind(self) -> dict[str, nn.Module]:
        return {}

    def classifier_behind(self, defense: str) -> nn.Module:
        named = BatchNorm.of(self.batch_norm)
        key = defense if named.mode == CALIBRATED else NONE  # else the same, whatever the defense
        if key not in self._behind:
            shield = None if key == NONE else defense_from(key, seed=self.seed)
            self._behind[key] = named.classifier(self.target, shield)
        return self._behind[key]

    @cached_property
    def _places(self) -> dict[str, tuple[str, int]]:
        """Where each attack is found: the text that names it, and its place in the suite."""
        return {
            each.name: (text, place)
            for text in self.attacks
            for place, each in enumerate(expand(text, self.ball))
        }

    @cached_property
    def _threats(self) -> dict[str, ThreatId]:
        return {threat.name: threat for threat in self.manifest.threats}

    @cached_property
    def _efforts(self) -> dict[str, int]:
        return {name: _effort(self._threat(name, seed=0)) for name in self._places}

    def _attacked(self, cell: EvaluationCell, images: Tensor, labels: Tensor) -> Tensor:
        running = BatchNorm.of(self.batch_norm).attacks_running
        if self._is_bare(cell):  # the same attack, whatever the defense
            seed = self._seed(replace(cell, defense=NONE), "attack")
            threat = self._threat(cell.attack, seed=seed)
            model = self.target.model if running else self.classifier_behind(NONE)
            if self.manifest.classifier.random and threat.eot > 1:
                model = EOT(model, draws=threat.eot, average=threat.average)
            with torch_seeded(seed):
                return self.store.bare(threat, model, images, labels, seed=seed)
        seed = self._seed(cell, "attack")
        through = self.batch_norm.startswith(CALIBRATED) or not running
        model = self.classifier_behind(cell.defense) if through else self.target.model
        defense = defense_from(cell.defense, seed=self._seed(cell, "attacked draws"))
        with torch_seeded(seed):
            return self._threat(cell.attack, seed=seed)(
                model, defense and defense.to(images.device), images, labels
            )

    def _is_bare(self, cell: EvaluationCell) -> bool:
        """Whether the attack is one on the classifier alone."""
        return cell.defense == NONE or self._threats[cell.attack].ignores_defense

    def _draws(self, cell: EvaluationCell, purpose: str, images: Tensor, labels: Tensor) -> Draws:
        runs = self.runs if purpose == "report" else self.selection_draws
        return self.draws_behind(
            cell.defense, images, labels, runs=runs, seed=self._seed(cell, purpose),
            batch=4 * self.batch,  # no gradients to keep
        )  # fmt: skip

    def _threat(self, name: str, *, seed: int) -> Threat:
        text, place = self._places[name]
        return expand(text, self.ball, seed=seed)[place]

    def _seed(self, cell: EvaluationCell, purpose: str) -> int:
        return derived_seed(self.seed, cell.defense, cell.attack, cell.images.start, purpose)


def _level(defense: DefenseId, threat: ThreatId, manifest: EvaluationManifest) -> str:
    """How much an attack knows, by what it does: without a defense there is nothing to go through, and
    draws are averaged only where there are different ones.
    """
    if defense.name != NONE or threat.level in ("ignorant", "black-box"):
        return str(threat.level)
    return "eot" if manifest.classifier.random and (threat.eot or 1) > 1 else "white-box"


def _effort(threat: Threat) -> int:
    """About how often the attack asks about each image."""
    bare = threat.surrogate == NONE
    if isinstance(threat.attack, AutoAttack):
        return _AUTOATTACK["bare" if bare else threat.attack.version]
    rounds: int = math.prod(
        getattr(threat.attack, name, 1) for name in ("steps", "restarts", "queries", "tries")
    )
    return rounds * (1 if bare else threat.eot)


@dataclass(frozen=True, kw_only=True)
class EvaluationRow:
    """What one attack, one suite or all attacks together leave of a defense; accuracies are fractions.

    Attributes:
        level: how much the attack knows; "none" for natural accuracy.
        mean, std: over runs; standard_error: of the mean, over images.
        vote: accuracy of the runs' most frequent answer; worst: share of images right in every run.
        n: images that every member was tried on.
        audit: of the robust accuracy; none is shown without one, or without the words that there is none.
    """

    defense: str
    attack: str
    level: str
    mean: float
    std: float
    standard_error: float
    vote: float
    worst: float
    runs: int
    n: int
    seconds: float | None
    audit: str | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class EvaluationSummary:
    """What an evaluation found; of one that is not finished, what there is."""

    title: str
    complete: bool
    rows: tuple[EvaluationRow, ...]
    audit: str
    warning: str | None
    seconds: float
    manifest: EvaluationManifest

    def row(self, defense: str, attack: str = NONE) -> EvaluationRow | None:
        """The row of a defense and an attack as they were named; None where there is none."""
        return next((row for row in self.rows if (row.defense, row.attack) == (defense, attack)), None)

    @classmethod
    def of(cls, recorded: Recorded[EvaluationManifest, EvaluationRecord]) -> "EvaluationSummary":
        """From records: every attack, every suite, and all attacks together, for every defense."""
        manifest, seconds = recorded.manifest, recorded.seconds
        found: dict[tuple[str, str], dict[int, EvaluationRecord]] = {}
        for record in recorded.records:
            found.setdefault((record.defense, record.attack), {})[record.image] = record
        cells = Evaluation.cells_of(manifest)
        rows = []
        for defense in dict.fromkeys(cell.defense for cell in cells):
            for name, members in _groups(manifest).items():
                part = [found.get((defense, member), {}) for member in members]
                took = [seconds.get((defense, member)) for member in members]
                row = _row(defense, name, part, took)
                if row is not None:
                    rows.append(row)
        return cls(
            title=f"Accuracy of {manifest.data.images} images of {manifest.data.name}, "
            f"classifier {manifest.classifier.described}"
            + (f", batch norm {manifest.batch_norm}" if manifest.batch_norm else ""),
            complete=sum(map(len, found.values())) == sum(len(cell.keys) for cell in cells),
            rows=tuple(rows),
            audit=NOT_RUN,
            warning=_warning(manifest, recorded.records),
            seconds=round(sum(seconds.values()), 1),
            manifest=manifest,
        )


def _groups(manifest: EvaluationManifest) -> dict[str, list[str]]:
    """The rows of a defense: name → the attacks whose minimum it shows."""
    groups, every = {NONE: [NONE]}, list[str]()
    for attack in manifest.attacks:
        members = [threat.name for threat in attack.threats]
        groups |= {member: [member] for member in members}
        groups[attack.name] = members
        every += members
    return {**groups, ALL: every} if every else groups


def _row(
    defense: str,
    attack: str,
    part: Sequence[Mapping[int, EvaluationRecord]],
    took: Sequence[float | None],
) -> EvaluationRow | None:
    """Over the images that every member was tried on; None where there are none."""
    images = sorted(set.intersection(*(set(each) for each in part)))
    if not images:
        return None
    chosen = [[each[image] for image in images] for each in part]
    report = [_report_draws(each) for each in chosen]
    draws = report[0] if len(part) == 1 else strongest([_selection_draws(each) for each in chosen], report)[0]
    known = [each for each in took if each is not None]
    return EvaluationRow(
        defense=defense,
        attack=attack,
        level=max((each[0].level for each in chosen), key=(NONE, *LEVELS).index),
        mean=draws.mean,
        std=draws.std,
        standard_error=draws.standard_error,
        vote=draws.vote(),
        worst=draws.worst(),
        runs=len(draws.predictions),
        n=len(images),
        seconds=round(sum(known), 1) if known else None,
        audit=None if attack == NONE else NOT_RUN,
    )


def _report_draws(records: Sequence[EvaluationRecord]) -> Draws:
    return Draws(torch.tensor([record.predictions for record in records]).T, _labels(records))


def _selection_draws(records: Sequence[EvaluationRecord]) -> Draws:
    """Draws with as many right answers as were counted: which ones were right plays no part."""
    counts, labels = torch.tensor([record.selected for record in records]), _labels(records)
    right = torch.arange(int(counts.max()))[:, None] < counts  # (draws, N)
    return Draws(torch.where(right, labels, -1), labels)


def _labels(records: Sequence[EvaluationRecord]) -> Tensor:
    return torch.tensor([record.label for record in records])


def _warning(manifest: EvaluationManifest, records: Sequence[EvaluationRecord]) -> str | None:
    """What a reader of robust accuracies must know before believing them."""
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
        len({*each.predictions}) > 1 for each in records if each.defense == NONE
    ):
        warnings.append(
            "the classifier is random on some of these images, though not on the first ones: attacks on it "
            "averaged no samples"
        )
    warnings += tuning_note(manifest.classifier, manifest.defenses)
    if levels and (caveat := attack_room.ball(manifest.norm, manifest.eps).caveat):
        warnings.append(caveat)
    return "; ".join(warnings) or None


def evaluate(
    model: nn.Module | str = BUNDLED,
    images: Tensor | str = SAMPLE_NAME,
    labels: Tensor | None = None,
    *,
    attacks: str | Sequence[str] = (),
    defense: DefenseLike | Sequence[DefenseLike] | None = None,
    norm: str = "linf",
    eps: float | None = None,
    runs: int = 10,
    selection: int | None = None,
    seed: int = 0,
    batch: int = 100,
    batch_norm: str = RUNNING,
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> EvaluationSummary:
    """Measure how much of a classifier's accuracy attacks leave, with and without a defense.

    Every image is attacked. Draws that attacks are found with, compared on and reported by are different
    ones, so that luck does not count as strength. The natural accuracy of the bare classifier is always there
    to compare with.

    Args:
        model: a module from images in [0, 1] to logits, a model that `vq.defend` made, or the name of a
            classifier: a safetensors file, "timm:NAME", "module:function", or the bundled "small-cifar10".
        images: (N, channels, height, width) in [0, 1], or the name of a data set.
        labels: (N,) classes, a tensor, array or list; none where images is the name of a data set.
        attacks: "pgd:steps=20,eot=5,surrogate=soft", or a suite such as "adaptive-v1"; several in a list.
            "surrogate=none" ignores the defense; "precision=bf16" is faster, also as a suite's only setting.
            Without any, natural accuracy alone.
        defense: "swrd:size=3,codes=25", "package.module:function" or a function or module for a preprocessor
            of your own, a Defense, "none" for the bare classifier, or several in a list. Without it, what is
            given is measured: a defended model with its defense, a classifier whose file names the defense
            that it was fine-tuned behind, behind that one, and any other classifier alone.
        norm: norm of the attacks' budget: "linf", "l2" or "l1".
        eps: budget of the attacks on pixels in [0, 1] (default: 8/255 for linf, 0.5 for l2, 12 for l1).
        runs: samples of the defense behind each result.
        selection: other samples, which choose each image's strongest attack (default: as many as runs).
        seed: seed of every sample of defenses and attacks.
        batch: images attacked at once.
        batch_norm: statistics of the classifier's batch norms behind the defenses: "running" (the
            checkpoint's) or "calibrated:data=cifar10" (as of `vq.calibrate`, on training images).
        limit: use the first N images (default: all).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: a folder that keeps a record of every image; a run that was stopped continues there. Without it,
            nothing is written.
        executor: where the work is done; without it, in this process.
        progress: called with what is being done, how much of the work is done, and how much there is.

    Returns:
        A row for each defense and attack, with accuracies as fractions, their standard deviation over runs
        and their standard error over images.

    Raises:
        InvalidInputError: something given is wrong; the message names it and what would be valid.

    Example:
        >>> found = vq.evaluate(attacks="pgd:steps=2,surrogate=none", defense="prd", limit=8, runs=2)
        >>> [(row.defense, row.attack, row.n) for row in found.rows][:2]
        [('none', 'none', 8), ('prd', 'none', 8)]
        >>> found.row("prd").mean > 0.3
        True
    """
    with split_model(model, defense, several=True) as (classifier, defenses):
        study = Evaluation(
            target=target_from(classifier, images, labels, limit=limit, data_dir=data_dir, device=device),
            defenses=defenses,
            attacks=(attacks,) if isinstance(attacks, str) else tuple(attacks),
            norm=norm,
            eps=eps,
            runs=runs,
            selection=selection,
            seed=seed,
            batch=batch,
            batch_norm=batch_norm,
        )
        found = run_study(study, out, executor=executor, progress=progress)
    return EvaluationSummary.of(found)

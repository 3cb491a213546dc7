"""Accuracy of a defended classifier under attack, image by image, in a run that resumes after any stop."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield.attacks import EOT
from vqshield.attacks.suites import expand
from vqshield.attacks.threats import Threat
from vqshield.classifiers import BUNDLED
from vqshield.classifiers.remote import WITHOUT_GRADIENTS
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import torch_seeded
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import DefenseLike, list_defenses
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.summary import CURVE, EvaluationSummary
from vqshield.models.calling import Part, asking_about
from vqshield.runs.arguments import (
    attack_ids,
    defense_from,
    refuse_twice,
    split_model,
    target_from,
)
from vqshield.runs.attack_study import (
    AttackCell,
    AttackStudy,
    impossible_answers,
)
from vqshield.runs.batch_norm import RUNNING, calibrated_for, parse_batch_norm, recorded_batch_norm
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import DefenseId, ThreatId
from vqshield.runs.records import Key
from vqshield.runs.study import (
    CellProgress,
    Progress,
    chunks,
    counted,
    no_cell_progress,
    no_progress,
)

CURVE_IMAGES = 50
"""The first images of the data, with which other budgets are tried."""
# Forward passes per image: it stops at images that it breaks, soon for a bare classifier, late for others.
_AUTOATTACK = {"bare": 150, "standard": 3000, "rand": 4000}


@dataclass(frozen=True, kw_only=True)
class EvaluationCell(AttackCell):
    """One attack (or none) on one chunk of images in front of one defense (or none).

    The members of a suite with fast gradients are one cell: the first, and the later ones with their levels.
    """

    level: str
    later: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> list[Key]:
        return [(self.defense, cell.attack, image) for cell in self.in_turn for image in self.images]

    @property
    def in_turn(self) -> list["EvaluationCell"]:
        """The attacks one by one."""
        first = replace(self, later=())
        return [first, *(replace(first, attack=name, level=level) for name, level in self.later)]


@dataclass(frozen=True, kw_only=True)
class Evaluation(AttackStudy[EvaluationManifest, EvaluationCell, EvaluationRecord]):
    """Every attack on every image in front of every defense; settings as of `evaluate`.

    All images are attacked, those already misclassified too. Attacks that ignore the defense run once for all
    defenses. A chunk of `batch` images is a unit of work, whose results depend on nothing but the study.

    The members of a suite whose gradients are faster than float32 ("adaptive-v1:precision=bf16") are tried in
    turn: each on those images alone that the one before it did not make wrong in every selection draw. The
    others count for it as they did for the one before.
    """

    defenses: tuple[str, ...] = (NONE,)
    attacks: tuple[str, ...] = ()
    batch_norm: str = RUNNING

    manifest_type = EvaluationManifest
    record_type = EvaluationRecord
    takes_remote = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_batch_norm()
        refuse_twice("defense", self.defenses)
        refuse_twice("attack", self.attacks)
        if not self.defenses:
            choices = ", ".join([*list_defenses(), NONE])
            raise InvalidInputError(f"no defense is given; give one of {choices}")
        _ = self.built, self._places  # refuse unknown defenses and attacks
        for name in self._places if self.target.is_remote else ():
            if self._threat(name, seed=0).attack.needs_gradients:
                raise InvalidInputError(
                    f"attack {name!r} needs gradients, which {self.target.name} does not have; "
                    f"{WITHOUT_GRADIENTS}"
                )

    def described(self) -> Mapping[str, object]:
        return {
            **super().described(),
            "attacks": attack_ids(self.attacks, self.ball),
            "batch_norm": recorded_batch_norm(self.batch_norm),
        }

    @staticmethod
    def cells_of(manifest: EvaluationManifest) -> list[EvaluationCell]:
        """Chunk after chunk: a run that is stopped has every attack on the same images."""
        # The bare classifier, always: it shows what a defense costs.
        plan = [(NONE, [(NONE, NONE)])]
        for defense in manifest.defenses:
            plan += [(defense.name, [(NONE, NONE)])] if defense.name != NONE else []
            for attack in manifest.attacks:
                members = [(threat.name, _level(defense, threat, manifest)) for threat in attack.threats]
                in_turn = all(threat.precision is not None for threat in attack.threats)
                parts = [members] if in_turn else [[member] for member in members]
                plan += [(defense.name, part) for part in parts]
        return [
            EvaluationCell(defense=name, attack=attack, level=level, images=images, later=tuple(later))
            for images in chunks(manifest.data.images, manifest.batch)
            for name, ((attack, level), *later) in plan
        ]

    @staticmethod
    def problem(manifest: EvaluationManifest, record: EvaluationRecord) -> str | None:
        attacked = record.attack != NONE
        wrong = impossible_answers(manifest, record, distance=record.distance, attacked=attacked)
        if wrong is None and (record.selected is not None) != attacked:
            return f"selected={record.selected} of attack {record.attack!r}"
        return wrong

    def measure(
        self, cell: EvaluationCell, progress: CellProgress = no_cell_progress
    ) -> list[EvaluationRecord]:
        records: list[EvaluationRecord] = []
        models = dict.fromkeys((self.target.model, self.classifier_behind(cell.defense)))
        with counted(self.title(cell), progress, *models):
            images, labels = self.target.part(cell.images)
            places, latest = list(range(len(images))), dict[int, EvaluationRecord]()
            for attack in cell.in_turn:
                for place, record in latest.items():
                    latest[place] = replace(record, attack=attack.attack, level=attack.level)
                latest |= self._measured(attack, images, labels, places)
                records += latest.values()
                places = [place for place, record in latest.items() if record.selected]
        return records

    def _measured(
        self, cell: EvaluationCell, images: Tensor, labels: Tensor, places: Sequence[int]
    ) -> dict[int, EvaluationRecord]:
        """The records of one attack on some images of the chunk, by their places."""
        if not places:
            return {}
        images, labels, attacked = self.attacked(cell, images, labels, places)
        return {
            place: EvaluationRecord(
                defense=cell.defense, attack=cell.attack, level=cell.level, image=cell.images[place], **row
            )
            for place, row in zip(places, self.judged(cell, images, attacked, labels), strict=True)
        }  # fmt: skip

    def attacked(
        self, cell: EvaluationCell, images: Tensor, labels: Tensor, places: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Some images of a cell's chunk by their places, their labels, and what its attack makes of them."""
        attacking: AbstractContextManager[None] = nullcontext()
        if len(places) < len(images):
            index = torch.tensor(places, device=images.device)
            attacking = asking_about(Part(index, len(images)))
            images, labels = images[index], labels[index]
        if cell.attack == NONE:
            return images, labels, images
        with attacking:
            return images, labels, self._attacked(cell, images, labels)

    def cost(self, cell: EvaluationCell) -> int:
        """About how many images are classified.

        An attack that ignores the defense is counted once, for the first defense: the others find it done.
        """
        draws = 0
        for attack in (cell.attack, *(name for name, _ in cell.later)):
            draws += self.runs
            if attack != NONE:
                draws += self.selection_runs
                if not self._threats[attack].ignores_defense or cell.defense == self.defenses[0]:
                    draws += self._efforts[attack]
        return draws * len(cell.images)

    @cached_property
    def _behind(self) -> dict[str, nn.Module]:
        return {}

    def check_batch_norm(self) -> None:
        """Refuse unknown batch-norm statistics."""
        parse_batch_norm(self.batch_norm)

    def classifier_behind(self, defense: str) -> nn.Module:
        if defense == NONE or self.batch_norm == RUNNING:
            return self.target.model
        if defense not in self._behind:
            shield = defense_from(defense, seed=self.seed)
            assert shield is not None
            self._behind[defense] = calibrated_for(self.batch_norm, self.target, shield)
        return self._behind[defense]

    def attacked_classifier(self, defense: str) -> nn.Module:
        """The classifier whose gradients and answers attacks use behind a defense, by spec string."""
        return self.classifier_behind(defense)

    @cached_property
    def _places(self) -> dict[str, tuple[str, int]]:
        """The spec string of each attack, and its place in the suite."""
        return {
            threat.name: (spec, place)
            for spec in self.attacks
            for place, threat in enumerate(expand(spec, self.ball))
        }

    @cached_property
    def _threats(self) -> dict[str, ThreatId]:
        return {threat.name: threat for threat in self.manifest.threats}

    @cached_property
    def _efforts(self) -> dict[str, int]:
        return {name: _effort(self._threat(name, seed=0)) for name in self._places}

    def _attacked(self, cell: EvaluationCell, images: Tensor, labels: Tensor) -> Tensor:
        if self._is_bare(cell):  # the same attack, whatever the defense
            seed = self.seed_of(replace(cell, defense=NONE), "attack")
            threat = self._threat(cell.attack, seed=seed)
            model = self.attacked_classifier(NONE)
            if self.manifest.classifier.random and threat.eot > 1:
                model = EOT(model, draws=threat.eot, average=threat.average)
            with torch_seeded(seed):
                return self.store.bare(threat, model, images, labels)
        seed = self.seed_of(cell, "attack")
        threat, model = self._threat(cell.attack, seed=seed), self.attacked_classifier(cell.defense)
        defense = defense_from(cell.defense, seed=self.seed_of(cell, "attacked draws"))
        with torch_seeded(seed):
            return threat(model, defense and defense.to(images.device), images, labels)

    def _is_bare(self, cell: EvaluationCell) -> bool:
        """Whether the attack is one on the classifier alone."""
        return cell.defense == NONE or self._threats[cell.attack].ignores_defense

    def _threat(self, name: str, *, seed: int) -> Threat:
        spec, place = self._places[name]
        return expand(spec, self.ball, seed=seed)[place]


def _level(defense: DefenseId, threat: ThreatId, manifest: EvaluationManifest) -> str:
    """How much an attack knows, by what it does: without a defense there is nothing to go through, and
    draws are averaged only where there are different ones.
    """
    if defense.name != NONE or threat.level in ("ignorant", "black-box"):
        return str(threat.level)
    return "eot" if manifest.classifier.random and (threat.eot or 1) > 1 else "white-box"


def _effort(threat: Threat) -> int:
    """About how often the attack calls the model for each image."""
    bare = threat.surrogate == NONE
    if version := getattr(threat.attack, "version", None):  # AutoAttack
        return _AUTOATTACK["bare" if bare else version]
    rounds: int = math.prod(
        getattr(threat.attack, name, 1) for name in ("steps", "restarts", "queries", "tries")
    )
    return rounds * (1 if bare else threat.eot)


def evaluate(
    model: nn.Module | str = BUNDLED,
    images: Tensor | str = SAMPLE_NAME,
    labels: Tensor | None = None,
    *,
    attacks: str | Sequence[str] = (),
    defense: DefenseLike | Sequence[DefenseLike] | None = None,
    norm: str = "linf",
    eps: float | None = None,
    samples: int = 10,
    selection: int | None = None,
    seed: int = 0,
    batch: int = 100,
    batch_norm: str = RUNNING,
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    curve: int = 0,
    pictures: int = 0,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> EvaluationSummary:
    """Measure a classifier's accuracy under attacks, with and without a defense.

    Every image is attacked. Samples that attacks are found with, compared on and reported by are different
    ones, so that luck does not count as strength. The clean accuracy of the bare classifier is always
    measured.

    Args:
        model: a module from images in [0, 1] to logits, a model that `vq.defend` made, or the name of a
            classifier: a safetensors file, "timm:NAME", "module:function", or the bundled "small-cifar10".
        images: (N, channels, height, width) in [0, 1], or the name of a data set.
        labels: (N,) classes, a tensor, array or list; none where images is the name of a data set.
        attacks: "pgd:steps=20,eot=5,surrogate=soft", or a suite such as "adaptive-v1"; several in a list.
            "surrogate=none" ignores the defense; "precision=bf16" is faster, also as a suite's only setting.
            Without any, only clean accuracy.
        defense: "swrd:size=3,codes=25", "package.module:function" or a function or module for a preprocessor
            of your own, a Defense, "none" for the bare classifier, or several in a list. Without it, what is
            given is measured: a defended model with its defense, a classifier whose file names the defense
            that it was fine-tuned behind, behind that one, and any other classifier alone.
        norm: norm of the attacks' budget: "linf", "l2" or "l1".
        eps: budget of the attacks on pixels in [0, 1] (default: 8/255 for linf, 0.5 for l2, 12 for l1).
        samples: random passes of the defense behind each result.
        selection: extra samples that choose each image's strongest attack (default: as many as samples).
        seed: seed of every sample of defenses and attacks.
        batch: images per forward pass of an attack.
        batch_norm: statistics of the classifier's batch norms behind the defenses: "running" (the
            checkpoint's) or "calibrated:data=cifar10" (as of `vq.calibrate`, on training images).
        limit: use the first N images (default: all).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: a folder that keeps a record of every image; a run that was stopped continues there. Without it,
            nothing is written.
        curve: measure the strongest attack at this many budgets up to twice eps, on the first 50 images.
        pictures: keep pictures of this many images in out, attacked once more for a page.
        executor: where the work is done; without it, in this process.
        progress: called with what is being done, how much of the work is done, and how much there is.

    Returns:
        A row for each defense and attack, with accuracies as fractions, their standard deviation over runs
        and their standard error over images.

    Raises:
        InvalidInputError: something given is wrong; the message names it and what would be valid.

    Example:
        >>> found = vq.evaluate(attacks="pgd:steps=2,surrogate=none", defense="prd", limit=8, samples=2)
        >>> [(row.defense, row.attack, row.n) for row in found.rows][:2]
        [('none', 'none', 8), ('prd', 'none', 8)]
        >>> found.row("prd").mean > 0.3
        True
    """
    if pictures and out is None:
        raise InvalidInputError(f"pictures={pictures} are given without a folder for them; give out as well")
    for name, number in (("curve", curve), ("pictures", pictures)):
        checks.whole(name, number, least=0, below=101)
    with split_model(model, defense, several=True) as (classifier, defenses):
        if batch_norm != RUNNING and {*defenses} == {NONE}:
            raise InvalidInputError(f"batch_norm={batch_norm!r} is given without a defense to calibrate for")
        study = Evaluation(
            target=target_from(classifier, images, labels, limit=limit, data_dir=data_dir, device=device),
            defenses=defenses,
            attacks=(attacks,) if isinstance(attacks, str) else tuple(attacks),
            norm=norm,
            eps=eps,
            runs=checks.whole("samples", samples, least=1),
            selection=selection,
            seed=seed,
            batch=batch,
            batch_norm=batch_norm,
        )
        recorded = run_study(study, out, executor=executor, progress=progress)
        summary = EvaluationSummary.of(recorded)
        points = [
            run_study(part, folder, executor=executor, progress=progress)
            for part, folder in _budgets(study, summary, curve, out)
        ]
        if pictures and out is not None:
            from vqshield.evaluation.gallery import keep_gallery  # it needs Pillow

            keep_gallery(study, recorded, Path(out), count=pictures)
    return summary.with_curve(points)


def _budgets(
    study: Evaluation, summary: EvaluationSummary, count: int, out: Path | str | None
) -> Iterator[tuple[Evaluation, Path | None]]:
    """The studies of the strongest attack with other budgets, and their folders."""
    strongest = summary.strongest
    if not count or strongest is None:
        return
    images = min(len(study.target.images), CURVE_IMAGES)
    for number in range(1, count + 1):
        yield (
            replace(
                study,
                target=replace(study.target, limit=images),
                defenses=(strongest.defense,),
                attacks=(strongest.attack,),
                eps=2 * study.ball.eps * number / count,
            ),
            None if out is None else Path(out) / CURVE / f"{number}-of-{count}",
        )

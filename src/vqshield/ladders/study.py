"""The ladder: accuracy of a classifier and of its controls against attackers who know more and more."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor, nn

from vqshield import surrogates
from vqshield.attacks.suites import expand
from vqshield.classifiers import BUNDLED
from vqshield.core.display_names import IN_MEMORY, NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import file_exists, write_json
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import Defense, DefenseLike
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import NOT_RUN
from vqshield.ladders.black_box import (
    BlackBoxAttack,
    BlackBoxManifest,
    BlackBoxRecord,
    BlackBoxStudy,
    transfers,
)
from vqshield.ladders.greybox import TrainingImages, own_network
from vqshield.ladders.rungs import INSIDE, RUNGS, RungName
from vqshield.ladders.settings import LadderSettings
from vqshield.models.draws import Accuracy, accuracy_after_tries
from vqshield.reports.table import Table, Tabular
from vqshield.runs.arguments import defense_from, split_model, target_from, tuning_note
from vqshield.runs.attack_study import strongest_draws
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import MANIFEST, check_same, read_manifest
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, AnyManifest, Progress, Recorded, Steps, Study, no_progress
from vqshield.runs.target import Target, full_path

PLAN = "ladder.json"
MAIN = "model"
"""The subject that the ladder is about; all others are controls."""
BARE = "bare"
_REMOTE = "the classifier is behind HTTP, without gradients"
_TRIES = (1, 2, 3, 5, 10, 20, 50, 100)

Measured = tuple[
    Recorded[EvaluationManifest, EvaluationRecord] | None, Recorded[BlackBoxManifest, BlackBoxRecord] | None
]
"""The records of one subject's Evaluation and BlackBoxStudy, as far as there are any."""
_AnyRecord = EvaluationRecord | BlackBoxRecord
_ByImage = dict[int, _AnyRecord]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A classifier, by name without its folder, and the spec string of its defense."""

    name: str
    classifier: str
    defense: str


@dataclass(frozen=True, kw_only=True)
class NotMeasured:
    """A rung that was not run for a subject, and why."""

    subject: str
    rung: RungName
    reason: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The subjects and settings of a ladder: ladder.json. The studies' own manifests say the rest."""

    subjects: tuple[Subject, ...]
    settings: LadderSettings
    not_measured: tuple[NotMeasured, ...]
    training_seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class LadderRow(Accuracy):
    """The accuracy of one subject under the attackers of one rung.

    Attributes:
        calls: how many calls per image the attacker may make; None if the attacker makes none.
        used: how many calls per image the attack with most calls made on average.
        tries: accuracy if the attacker may send an image that often, in the order of the summary's tries.
        attacks: the attacks that compete for each image.
        seconds: how long the attacks and the draws took for all images together, with the training of a
            network; None if that is not known, and before the end of a search.
    """

    subject: str
    rung: RungName
    calls: int | None
    used: float | None
    tries: tuple[float, ...]
    attacks: tuple[str, ...]
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class LadderSummary(Tabular):
    """The results of a ladder, finished or not."""

    title: str
    complete: bool
    tries: tuple[int, ...]
    rows: tuple[LadderRow, ...]
    audit: str
    data: str
    images: int
    machine: Mapping[str, str]
    plan: Plan
    warnings: tuple[str, ...] = ()

    @property
    def table(self) -> Table:
        """A line per rung for terminals, pages and documents, and for pandas."""
        from vqshield.ladders.page import ladder_table

        return ladder_table(self)

    def row(self, rung: str, subject: str = MAIN, calls: int | None = None) -> LadderRow | None:
        """The row of a rung; of a query rung at that number of calls, or at the largest."""
        rows = [row for row in self.rows if (row.rung, row.subject) == (rung, subject)]
        rows = [row for row in rows if calls in (None, row.calls)]
        return rows[-1] if rows else None

    @classmethod
    def read(cls, out: Path) -> "LadderSummary":
        """The summary of a ladder's folder, finished or not."""
        plan = read_manifest(Plan, out, file=PLAN)
        folders = [subject_folders(out, subject.name) for subject in plan.subjects]
        return cls.of(
            plan,
            [(read_if_started(Evaluation, own), read_if_started(BlackBoxStudy, box)) for own, box in folders],
        )

    @classmethod
    def of(cls, plan: Plan, measured: Sequence[Measured]) -> "LadderSummary":
        """The summary of the records of each subject, in the order of the plan."""
        tries = tuple(number for number in _TRIES if number <= plan.settings.runs)
        rows, order = list[LadderRow](), [rung.name for rung in RUNGS]
        for subject, records in zip(plan.subjects, measured, strict=True):
            rows += _rows(plan, subject, records, tries)
        manifest = next((inside.manifest for inside, _ in measured if inside is not None), None)
        data, images = ("", 0) if manifest is None else (manifest.data.name, manifest.data.images)
        main = plan.subjects[0]
        classifier = main.classifier if manifest is None else manifest.classifier.described
        behind = "" if main.defense == NONE else f" behind {main.defense}"
        return cls(
            title=f"{classifier}{behind}: accuracy of {images} images of {data}, rung by rung",
            warnings=tuple(
                note
                for subject, (inside, _) in zip(plan.subjects, measured, strict=True)
                if inside is not None and subject.name != BARE  # which is meant to be without its defense
                for note in tuning_note(inside.manifest.classifier, inside.manifest.defenses)
            ),
            complete=all(
                _is_complete(Evaluation, inside) and _is_complete(BlackBoxStudy, black_box)
                for inside, black_box in measured
            ),
            tries=tries,
            rows=tuple(sorted(rows, key=lambda row: order.index(row.rung))),
            audit=NOT_RUN,
            data=data,
            images=images,
            machine={} if manifest is None else {key: str(value) for key, value in manifest.machine.items()},
            plan=plan,
        )


def read_if_started(
    study: type[Study[AnyManifest, AnyCell, AnyRecord]], folder: Path
) -> Recorded[AnyManifest, AnyRecord] | None:
    """The records of a study in a folder, None before it has a manifest."""
    return study.read(folder) if (folder / MANIFEST).is_file() else None


def subject_folders(out: Path, subject: str) -> tuple[Path, Path]:
    """The folders of a subject's Evaluation and BlackBoxStudy."""
    return out / subject / "evaluation", out / subject / "remote"


def _is_complete(
    study: type[Study[AnyManifest, AnyCell, AnyRecord]], recorded: Recorded[AnyManifest, AnyRecord] | None
) -> bool:
    """Whether the records of every cell are there."""
    return recorded is not None and len(recorded.records) == sum(
        len(cell.keys) for cell in study.cells_of(recorded.manifest)
    )


def _by_rung(plan: Plan, measured: Measured) -> Iterator[tuple[RungName, int, _AnyRecord]]:
    """Every record with its rung and number of calls."""
    inside, black_box = measured
    if inside is not None:
        ignorant = [threat.name for threat in expand(plan.settings.ignorant, plan.settings.ball)]
        names: dict[str, RungName] = {NONE: "natural", **dict.fromkeys(ignorant, "ignorant")}
        yield from ((names.get(record.attack, "white-box"), 0, record) for record in inside.records)
    if black_box is not None:
        rungs = {attack.name: attack.rung for attack in black_box.manifest.attacks}
        yield from ((rungs[record.attack], record.calls, record) for record in black_box.records)


def competing(
    plan: Plan, subject: Subject, measured: Measured
) -> Iterator[tuple[RungName, int, dict[str, _ByImage], list[_ByImage]]]:
    """For each rung and number of calls (0: none): its attacks' records, and all that compete per image."""
    groups: dict[tuple[RungName, int], dict[str, _ByImage]] = {}
    for rung, calls, record in _by_rung(plan, measured):
        if record.defense == subject.defense:  # an Evaluation measures the bare classifier as well
            group = groups.setdefault((rung, calls), {})
            group.setdefault(record.attack, {})[record.image] = record
    for (rung, calls), members in groups.items():
        # More calls never hurt: images found after fewer of them compete as well.
        attacked = list(members.values())
        for (other, fewer), attacks in groups.items():
            attacked += attacks.values() if other == rung and fewer < calls else ()
        yield rung, calls, members, attacked


def _rows(plan: Plan, subject: Subject, measured: Measured, tries: Sequence[int]) -> list[LadderRow]:
    inside, black_box = measured
    seconds = {**(inside.seconds if inside else {}), **(black_box.seconds if black_box else {})}
    marks = black_box.manifest.calls if black_box else ()
    rows = []
    for rung, calls, members, attacked in competing(plan, subject, measured):
        draws = strongest_draws(attacked)
        if draws is None:
            continue
        # A search is timed as a whole, under the key of its first mark; the last one takes all of that.
        keys = members if rung in INSIDE else [f"{name}@{marks[0] if calls else 0}" for name in members]
        known = [seconds[subject.defense, key] for key in keys if (subject.defense, key) in seconds]
        took = round(sum(known), 1) if known and calls in (0, *marks[-1:]) else None
        if rung == "grey-box" and took is not None:
            took += plan.training_seconds.get(subject.name, 0.0)
        rows.append(
            LadderRow.of(
                draws,
                subject=subject.name,
                rung=rung,
                calls=calls or None,
                used=_most_used(attacked) if calls else None,
                tries=accuracy_after_tries(draws.right, len(draws.predictions), tries),
                attacks=() if rung == "natural" else tuple(members),
                seconds=took,
            )
        )
    return rows


def _most_used(attacked: Sequence[_ByImage]) -> float:
    """The calls per image of the attack that made most, on images that all attacks were tried on."""
    images = set.intersection(*map(set, attacked))
    used = [
        [record.used for image in images if isinstance(record := records[image], BlackBoxRecord)]
        for records in attacked
    ]
    return round(max(sum(calls) / len(calls) for calls in used), 1)


def parse_control(text: str) -> tuple[str, str, str]:
    """Name, classifier and defense of "noise=noise.safetensors+gaussian:sigma=0.06".

    Without a plus sign, or if all of it is the name of a file, the control is the classifier alone.
    """
    name, equals, rest = text.partition("=")
    classifier, plus, defense = rest.rpartition("+")
    if not plus or file_exists(Path(rest)):
        classifier, defense = rest, NONE
    if not (name and equals and classifier) or name == MAIN or not name.replace("-", "").isalnum():
        raise InvalidInputError(
            f"control {text!r} should be NAME=CLASSIFIER or NAME=CLASSIFIER+DEFENSE, as in "
            f"noise=noise.safetensors+gaussian:sigma=0.06; a name of letters, digits and hyphens, not "
            f"{MAIN!r}"
        )
    defense_from(defense, seed=0)
    return name, classifier, defense


def ladder(
    model: nn.Module | str = BUNDLED,
    images: Tensor | str = SAMPLE_NAME,
    labels: Tensor | None = None,
    *,
    defense: DefenseLike | None = None,
    sources: Sequence[str] = (),
    controls: Sequence[str] | None = None,
    settings: LadderSettings | None = None,
    train_dir: Path | str | None = None,
    train_data: str | None = None,
    limit: int | None = None,
    data_dir: Path | str | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> LadderSummary:
    """Measure the accuracy of a classifier, and of controls, against attackers who know more and more.

    Args:
        model: a module from images in [0, 1] to logits, a model that `vq.defend` made, or the name of a
            classifier, as for `vq.evaluate`.
        images: (N, channels, height, width) in [0, 1], or the name of a data set.
        labels: (N,) classes, a tensor, array or list; none where images is the name of a data set.
        defense: the defense of the classifier, as for `vq.evaluate`, but only one (default: the one that the
            model has, or that the classifier's file says it was fine-tuned behind, else none).
        sources: classifiers of the transfer attacker, by file or name; give two of other architectures
            (default: none, and that rung is not run).
        controls: baselines to compare with, NAME=CLASSIFIER or NAME=CLASSIFIER+DEFENSE, as in
            noise=noise.safetensors+gaussian:sigma=0.06 (default: the same classifier without its defense).
        settings: how high and how thoroughly; LadderSettings.quick() is for a CPU.
        train_dir: folder with the training images, for the network that the grey-box attacker trains
            (default: none, and that rung is not run; nor is it without `out`).
        train_data: data set in train_dir (default: that of the images).
        limit: use the first N images (default: all).
        data_dir: folder with the official files of a named data set (default: the cache folder).
        device: "cpu", "cuda" or "auto", for a classifier given by name; a module stays where it is.
        out: a folder that keeps a record of every image; an interrupted ladder resumes there (default: none,
            and nothing is written).
        executor: where the work is done (default: in this process).
        progress: called with what is being done, how much of a study is done, and how much there is.

    Returns:
        A row for each rung and subject, query attacks with one for each number of calls.

    Raises:
        InvalidInputError: an argument is wrong; the message names it and what would be valid.

    Example:
        >>> from vqshield.ladders.settings import LadderSettings
        >>> few = LadderSettings(calls=(100,), draws=(1,), suite="pgd:steps=2", runs=2, selection=2)
        >>> found = vq.ladder(defense="prd:codes=4", settings=few, controls=(), limit=2)
        >>> [row.rung for row in found.rows]
        ['natural', 'ignorant', 'score', 'decision', 'white-box']
        >>> [(each.rung, each.reason) for each in found.plan.not_measured][0]
        ('transfer', 'no source was given')
    """
    with split_model(model, defense) as (classifier, (shield,)):
        subjects = [(MAIN, classifier, shield)]
        if controls is None:
            subjects += [(BARE, classifier, NONE)] if shield != NONE else []
        else:
            subjects += [parse_control(text) for text in controls]
        climbs, chosen, named = list[Climb](), settings or LadderSettings(), tuple(sources)
        for name, source, spec in subjects:
            target = target_from(source, images, labels, limit=limit, data_dir=data_dir, device=device)
            climbs.append(Climb(name=name, target=target, defense=spec, settings=chosen, sources=named))
        training = None if train_dir is None else TrainingImages(folder=Path(train_dir), data=train_data)
        folder = None if out is None else Path(out)
        return climb(climbs, training=training, out=folder, executor=executor, progress=progress)


@dataclass(frozen=True, kw_only=True)
class Climb:
    """A classifier behind a defense, and all that a ladder measures of it.

    Attributes:
        name: "model", or the name of a control.
        target: the classifier and the images; defense: a spec string, "none" for no defense.
        sources: classifiers of the transfer attacker.
    """

    name: str = MAIN
    target: Target
    defense: str
    settings: LadderSettings
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", tuple(map(full_path, self.sources)))
        _ = self.shield  # refuses an unknown defense

    @cached_property
    def shield(self) -> Defense | None:
        """The defense; its seed decides nothing."""
        return defense_from(self.defense, seed=0)

    def missing(self, training: TrainingImages | None, out: Path | None) -> list[NotMeasured]:
        """The rungs that cannot be run, and why."""
        reasons: dict[RungName, str] = {} if self.sources else {"transfer": "no source was given"}
        if self.shield is None:
            reasons["ignorant"] = "there is no shield: the white-box rung is the same"
        if training is None:
            reasons["grey-box"] = "no training data were given"
        elif out is None:
            reasons["grey-box"] = "there is no folder for the attacker's network"
        elif self.defense.startswith(IN_MEMORY):
            reasons["grey-box"] = "the defense is in memory: give it as package.module:function"
        if self.target.is_remote:
            reasons["ignorant"] = _REMOTE
        if self.unfit:
            reasons |= dict.fromkeys(("grey-box", "white-box"), self.unfit)
        return [NotMeasured(subject=self.name, rung=rung, reason=why) for rung, why in reasons.items()]

    @cached_property
    def unfit(self) -> str | None:
        """Why the suite cannot be run on this defense, if it cannot."""
        if self.target.is_remote:
            return _REMOTE
        try:
            for threat in expand(self.settings.suite, self.settings.ball):
                if self.shield is not None and threat.surrogate != NONE:
                    surrogates.get(threat.surrogate).check(self.shield)
        except InvalidInputError as error:
            return str(error)
        return None

    @cached_property
    def inside(self) -> Evaluation:
        """No attacker, and those with the weights."""
        settings, shielded = self.settings, self.shield is not None
        attacks = (settings.ignorant,) * (shielded and not self.target.is_remote)
        attacks += (settings.suite,) * (self.unfit is None)
        return Evaluation(target=self.target, defenses=(self.defense,), attacks=attacks, **settings.shared())

    def black_box(self, own: Path | None = None) -> BlackBoxStudy:
        """Attackers without the weights; own: the weights of the grey-box attacker's network."""
        settings, shielded = self.settings, self.shield is not None
        attacks = transfers(self.sources, settings.transfer, settings.diversity)
        attacks += settings.query_attacks(random=shielded or self.target.is_random)
        members = [] if own is None else expand(settings.suite, settings.ball)
        attacks += tuple(
            BlackBoxAttack(
                name=f"grey-box/{threat.name}", rung="grey-box", attack=settings.suite, member=place,
                sources=(str(own),), behind=shielded,
            )
            for place, threat in enumerate(members)
        )  # fmt: skip
        shared, calls = settings.shared(), settings.calls
        return BlackBoxStudy(target=self.target, defense=self.defense, attacks=attacks, calls=calls, **shared)


def climb(
    climbs: Sequence[Climb],
    *,
    training: TrainingImages | None = None,
    out: Path | None = None,
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> LadderSummary:
    """Measure a classifier and its controls, all on the same images and with the same settings.

    Args:
        climbs: the classifier that the ladder is about, then its controls.
        training: the grey-box attacker's training images; without them, that rung is not run.
        out, executor, progress: as of `ladder`. Training is reported but not part of the total.
    """
    names = [subject.name for subject in climbs]
    if len({*names}) < len(names):
        raise InvalidInputError(f"controls {', '.join(names[1:])} should each have a name of its own")
    missing = [each for subject in climbs for each in subject.missing(training, out)]
    subjects = tuple(
        Subject(name=subject.name, classifier=subject.target.name, defense=subject.defense)
        for subject in climbs
    )
    settings = climbs[0].settings
    plan = Plan(subjects=subjects, settings=settings, not_measured=tuple(missing), training_seconds={})
    studies = [(subject.inside, subject.black_box()) for subject in climbs]
    steps, measured = Steps(progress, sum(own.work + box.work for own, box in studies)), list[Measured]()
    if out is not None and (out / PLAN).is_file():
        check_same(out, read_manifest(Plan, out, file=PLAN), plan, except_for=("training_seconds",))
    elif out is not None:
        write_json(out / PLAN, to_plain(plan))
    grey_box = {*names} - {each.subject for each in missing if each.rung == "grey-box"}
    for subject, (inside, black_box) in zip(climbs, studies, strict=True):
        if training is not None and out is not None and subject.name in grey_box:
            weights, seconds = own_network(
                training, subject.target, None if subject.shield is None else subject.defense,
                subject.settings, out=out / "own",
                progress=lambda doing, done, total: steps.tell(f"{doing}, {done:,} of {total:,} steps"),
            )  # fmt: skip
            steps.total -= black_box.work
            black_box = subject.black_box(weights)
            steps.total += black_box.work
            plan = replace(plan, training_seconds={**plan.training_seconds, subject.name: seconds})
            write_json(out / PLAN, to_plain(plan))
        folders = (None, None) if out is None else subject_folders(out, subject.name)
        with steps.step(inside.work, f"{subject.name}: ") as report:
            own = run_study(inside, folders[0], executor=executor, progress=report)
        with steps.step(black_box.work, f"{subject.name}: ") as report:
            measured.append((own, run_study(black_box, folders[1], executor=executor, progress=report)))
    return LadderSummary.of(plan, measured)

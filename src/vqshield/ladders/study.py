"""The ladder: what attackers who know more and more leave of a classifier, beside its controls.

Every rung is measured by a study that can be stopped and continued: natural accuracy, the ignorant and the
white-box attacker by an Evaluation, those without the weights by RemoteAttacks. The attacker of the grey-box
rung trains a network first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from vqshield import surrogates
from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import expand, with_precision
from vqshield.classifiers import BUNDLED, Network, Normalised
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY, NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import file_exists, write_json
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import Defense, DefenseLike
from vqshield.evaluation.study import NOT_RUN, Evaluation, EvaluationManifest, EvaluationRecord
from vqshield.ladders.greybox import OwnNetwork
from vqshield.ladders.remote import RemoteAttack, RemoteAttacks, RemoteManifest, RemoteRecord, transfers
from vqshield.ladders.rungs import RUNGS, RungName
from vqshield.models.draws import Accuracy, accuracy_after_tries
from vqshield.runs.arguments import defense_from, split_model, target_from, tuning_note
from vqshield.runs.attack_study import AttackSettings, strongest_draws
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import MANIFEST, check_same, read_manifest
from vqshield.runs.study import Progress, Recorded, Steps, no_progress
from vqshield.runs.target import Target, full_path

if TYPE_CHECKING:
    from vqshield.reports.table import Table

PLAN = "ladder.json"
MAIN = "model"
"""The subject that the ladder is about; all others are controls."""
BARE = "bare"
LEAST_CALLS = 100
_TRIES = (1, 2, 3, 5, 10, 20, 50, 100)


@dataclass(frozen=True, kw_only=True)
class LadderSettings(AttackSettings):
    """How high and how thoroughly a ladder is climbed.

    Attributes:
        norm: norm of the attacks' budget: "linf", "l2" or "l1".
        eps: budget of the attacks on pixels in [0, 1] (default: 8/255 for linf, 0.5 for l2, 12 for l1).
        calls: model calls per image after which query attacks are reported, ascending; every sample counts.
        draws: samples per query; the attacker has the better result of them.
        query_precision: what the answers to query attacks are computed in, one of
            `vqshield.attacks.PRECISIONS`, but for what `FastAnswers` is asked exactly; what they found is
            judged in float32. None: float32.
        ignorant: the attack on the classifier without its shield.
        transfer, diversity: the attack on each source, and how often a source sees an image changed.
        suite: white-box suite or attack, also that of the grey-box attacker on their own network.
        own_arch: architecture of the grey-box attacker's network (default: not the attacked classifier's).
        own_epochs: epochs that the grey-box attacker's network is trained for.
        own_batch, own_seed: images per step of that training, and its seed.
        runs: samples of the defense behind each result.
        selection: other samples, which choose each image's strongest attack.
        seed: seed of every sample of defenses and attacks.
        batch: images attacked at once.
    """

    calls: tuple[int, ...] = (1000, 5000, 10_000)
    draws: tuple[int, ...] = (1, 5)
    query_precision: str | None = field(default=None, metadata={"omit": True})
    ignorant: str = "pgd:steps=20,step=eps/10,surrogate=none"
    transfer: str = "pgd:steps=100,step=eps/10,momentum=1.0"
    diversity: float = 0.7
    suite: str = "adaptive-v2"
    own_arch: str | None = None
    own_epochs: int = 15
    own_batch: int = 512
    own_seed: int = 1
    selection: int = 10
    batch: int = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("own_epochs", "own_batch"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("own_seed", self.own_seed, least=0, below=2**64)
        checks.real("diversity", self.diversity, most=1.0)
        ball = self.ball
        object.__setattr__(self, "eps", ball.eps)
        if not self.calls or sorted({*self.calls}) != list(self.calls):
            raise InvalidInputError(f"calls={self.calls} should be whole numbers that ascend, at least one")
        if self.query_precision is not None:
            checks.one_of("query_precision", self.query_precision, PRECISIONS)
        if not self.draws:
            raise InvalidInputError("draws are missing; give how many draws a query, as in 1 and 5")
        for name, numbers in (("calls", self.calls), ("draws", self.draws)):
            for number in numbers:
                checks.whole(name, number, least=1)
        fewest, most = self.calls[0], max(self.draws)
        if fewest < (needed := max(LEAST_CALLS, 10 * most)):
            raise InvalidInputError(
                f"calls={fewest} with draws={most} allows {fewest // most} queries per image, too few for a "
                f"query attack to mean anything; give at least {needed} calls"
            )
        for text in (self.ignorant, self.transfer, self.suite):
            expand(text, ball)
        if any(each.surrogate != NONE for each in expand(self.ignorant, ball)):
            raise InvalidInputError(f"ignorant={self.ignorant!r} knows the defense; give surrogate=none")

    @classmethod
    def quick(cls) -> "LadderSettings":
        """Under five minutes for 32 images and the bundled classifier on two CPU cores."""
        return cls(
            calls=(100, 500), suite="adaptive-v1:precision=tf32",
            transfer="pgd:steps=20,step=eps/10,momentum=1.0", runs=5, selection=5, own_epochs=1, batch=32,
        )  # fmt: skip

    def in_precision(self, precision: str) -> "LadderSettings":
        """The same attackers, each in that precision; one whose text names its own keeps it."""
        return replace(
            self,
            suite=with_precision(self.suite, precision),
            ignorant=with_precision(self.ignorant, precision),
            transfer=with_precision(self.transfer, precision),
            query_precision=None if precision == PRECISIONS[0] else precision,
        )

    def query_attacks(self, *, random: bool) -> tuple[RemoteAttack, ...]:
        """Both kinds, with every number of draws where draws differ, else with one."""
        kinds: dict[RungName, str] = {"score": "square", "decision": "rays"}
        attacks = []
        for rung, attack in kinds.items():
            for draws in self.draws if random else (1,):
                text = attack if draws == 1 else f"{attack}:eot={draws}"
                text = with_precision(text, self.query_precision or PRECISIONS[0])
                attacks.append(RemoteAttack(name=text, rung=rung, attack=text))
        return tuple(attacks)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A classifier behind a defense, which a ladder is put against.

    Attributes:
        name: "model", or what a control is called.
        classifier: by name, without its folder; defense: by text, "none" where there is none.
    """

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
    """What a ladder's folder is of: ladder.json. The studies' own manifests say the rest."""

    subjects: tuple[Subject, ...]
    settings: LadderSettings
    not_measured: tuple[NotMeasured, ...]
    training_seconds: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class LadderRow(Accuracy):
    """The accuracy of one subject under the attackers of one rung.

    Attributes:
        calls: how many calls an image the attacker may make; None where the model is not asked.
        used: how many calls an image took on average, of the attack that took most.
        tries: accuracy where the attacker may send an image that often, in the order of the summary's tries.
        attacks: whose strongest counts, image by image.
        seconds: how long the attacks and the draws took, for all images together, a network's training
            included; None where that is not known, and before the end of a search.
    """

    subject: str
    rung: RungName
    calls: int | None
    used: float | None
    tries: tuple[float, ...]
    attacks: tuple[str, ...]
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class LadderSummary:
    """What a ladder found; of one that is not finished, what there is."""

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
    def table(self) -> "Table":
        """A line per rung for terminals, pages and documents, and for pandas."""
        from vqshield.ladders.page import ladder_table

        return ladder_table(self)

    def row(self, rung: str, subject: str = MAIN, calls: int | None = None) -> LadderRow | None:
        """The row of a rung; of a query rung at that number of calls, or at the largest."""
        found = [row for row in self.rows if (row.rung, row.subject) == (rung, subject)]
        found = [row for row in found if calls in (None, row.calls)]
        return found[-1] if found else None

    @classmethod
    def read(cls, out: Path) -> "LadderSummary":
        """What a folder holds of a ladder, finished or not."""
        plan = read_manifest(Plan, out, file=PLAN)
        found = []
        for subject in plan.subjects:
            inside, remote = _folders(out, subject)
            found.append(
                Measured(
                    inside=Evaluation.read(inside) if (inside / MANIFEST).is_file() else None,
                    remote=RemoteAttacks.read(remote) if (remote / MANIFEST).is_file() else None,
                )
            )
        return cls.of(plan, found)

    @classmethod
    def of(cls, plan: Plan, found: Sequence["Measured"]) -> "LadderSummary":
        """From the records of each subject, in the order of the plan."""
        tries = tuple(number for number in _TRIES if number <= plan.settings.runs)
        rows, complete = list[LadderRow](), True
        for subject, each in zip(plan.subjects, found, strict=True):
            rows += _rows(plan, subject, each, tries)
            complete = complete and each.complete
        manifest = next((each.inside.manifest for each in found if each.inside is not None), None)
        data, images = ("", 0) if manifest is None else (manifest.data.name, manifest.data.images)
        main, classifier = plan.subjects[0], None if manifest is None else manifest.classifier
        behind = "" if main.defense == NONE else f" behind {main.defense}"
        order = [rung.name for rung in RUNGS]
        return cls(
            title=f"{classifier.described if classifier else main.classifier}{behind}: accuracy of {images} "
            f"images of {data}, rung by rung",
            warnings=() if manifest is None else tuple(tuning_note(manifest.classifier, manifest.defenses)),
            complete=complete,
            tries=tries,
            rows=tuple(sorted(rows, key=lambda row: order.index(row.rung))),
            audit=NOT_RUN,
            data=data,
            images=images,
            machine={} if manifest is None else {key: str(value) for key, value in manifest.machine.items()},
            plan=plan,
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The records of one subject, as far as there are any."""

    inside: Recorded[EvaluationManifest, EvaluationRecord] | None
    remote: Recorded[RemoteManifest, RemoteRecord] | None

    @property
    def complete(self) -> bool:
        """Whether every cell of both studies is there."""
        if self.inside is None or self.remote is None:
            return False
        inside = sum(len(cell.keys) for cell in Evaluation.cells_of(self.inside.manifest))
        remote = sum(len(cell.keys) for cell in RemoteAttacks.cells_of(self.remote.manifest))
        return (len(self.inside.records), len(self.remote.records)) == (inside, remote)


_ByImage = dict[int, EvaluationRecord | RemoteRecord]


def _rows(plan: Plan, subject: Subject, found: Measured, tries: Sequence[int]) -> list[LadderRow]:
    rows: list[LadderRow | None] = []
    if found.inside is not None:
        groups: dict[RungName, dict[str, _ByImage]] = {"natural": {}, "ignorant": {}, "white-box": {}}
        ignorant = expand(plan.settings.ignorant, plan.settings.ball)
        names: dict[str, RungName] = {NONE: "natural", **{each.name: "ignorant" for each in ignorant}}
        for each in found.inside.records:
            if each.defense == subject.defense:
                group = groups[names.get(each.attack, "white-box")]
                group.setdefault(each.attack, {})[each.image] = each
        for rung, members in groups.items():
            took = _seconds(found.inside.seconds, subject.defense, members)
            rows.append(_row(subject, rung, None, members, tries, took))
    if found.remote is not None:
        rungs = {each.name: each.rung for each in found.remote.manifest.attacks}
        at: dict[tuple[RungName, int], dict[str, _ByImage]] = {}
        for one in found.remote.records:
            members = at.setdefault((rungs[one.attack], one.calls), {})
            members.setdefault(one.attack, {})[one.image] = one
        marks = found.remote.manifest.calls
        for (rung, calls), members in at.items():
            # A search is timed as a whole, under the key of its first mark: it is what the last one takes.
            keys = [f"{name}@{marks[0] if calls else 0}" for name in members]
            took = _seconds(found.remote.seconds, subject.defense, keys)
            if rung == "grey-box" and took is not None:
                took += plan.training_seconds.get(subject.name, 0.0)
            whole = calls in (0, marks[-1])
            # More calls never hurt: what was found after fewer of them competes as well.
            earlier = {
                f"{name}@{fewer}": each
                for (other, fewer), found_then in at.items()
                if other == rung and fewer < calls
                for name, each in found_then.items()
            }
            row = _row(subject, rung, calls or None, {**members, **earlier}, tries, took if whole else None)
            rows.append(row and replace(row, attacks=tuple(members)))
    return [row for row in rows if row is not None]


def _seconds(
    known: Mapping[tuple[str, str], float], defense: str, names: Sequence[str] | Mapping[str, object]
) -> float | None:
    found = [known[defense, name] for name in names if (defense, name) in known]
    return round(sum(found), 1) if found else None


def _row(
    subject: Subject,
    rung: RungName,
    calls: int | None,
    members: Mapping[str, _ByImage],
    tries: Sequence[int],
    seconds: float | None,
) -> LadderRow | None:
    """The strongest of the members for each image that all were tried on; None where there are none."""
    draws = strongest_draws(list(members.values())) if members else None
    if draws is None:
        return None
    images = set.intersection(*(set(each) for each in members.values()))
    used = [
        [each.used for image in images if isinstance(each := records[image], RemoteRecord)]
        for records in members.values()
    ]
    return LadderRow.of(
        draws,
        subject=subject.name,
        rung=rung,
        calls=calls,
        used=round(max(sum(each) / len(each) for each in used), 1) if calls else None,
        tries=accuracy_after_tries(draws.right, len(draws.predictions), tries),
        attacks=() if rung == "natural" else tuple(members),
        seconds=seconds,
    )


def parse_control(text: str) -> tuple[str, str, str]:
    """Name, classifier and defense of "noise=noise.safetensors+gaussian:sigma=0.06".

    Without a plus sign, or where all of it is the name of a file, the control is the classifier alone.

    Raises:
        InvalidInputError: no name, nothing behind it, or no such defense.
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
    """Measure what attackers who know more and more leave of a classifier, and of its controls.

    Args:
        model: a module from images in [0, 1] to logits, a model that `vq.defend` made, or the name of a
            classifier, as for `vq.evaluate`.
        images: (N, channels, height, width) in [0, 1], or the name of a data set.
        labels: (N,) classes, a tensor, array or list; none where images is the name of a data set.
        defense: what stands in front of the classifier, as for `vq.evaluate`, but one alone. Without it, the
            one that the model has, or that the classifier's file says it was fine-tuned behind, else none.
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
        out: a folder that keeps a record of every image; a ladder that was stopped continues there. Without
            it, nothing is written.
        executor: where the work is done; without it, in this process.
        progress: called with what is being done, how much of a study is done, and how much there is.

    Returns:
        A row for each rung and subject, query attacks with one for each number of calls.

    Raises:
        InvalidInputError: something given is wrong; the message names it and what would be valid.

    Example:
        >>> from vqshield.ladders.study import LadderSettings
        >>> few = LadderSettings(calls=(100,), draws=(1,), suite="pgd:steps=2", runs=2, selection=2)
        >>> found = vq.ladder(defense="prd:codes=4", settings=few, controls=(), limit=2)
        >>> [row.rung for row in found.rows]
        ['natural', 'ignorant', 'score', 'decision', 'white-box']
        >>> [(each.rung, each.reason) for each in found.plan.not_measured][0]
        ('transfer', 'no source was given')
    """
    with split_model(model, defense) as (classifier, (shield,)):
        wanted = [(MAIN, classifier, shield)]
        if controls is None:
            wanted += [(BARE, classifier, NONE)] if shield != NONE else []
        else:
            wanted += [parse_control(text) for text in controls]
        climbs = [
            Climb(
                name=name,
                target=target_from(each, images, labels, limit=limit, data_dir=data_dir, device=device),
                defense=text,
                settings=settings or LadderSettings(),
                sources=tuple(sources),
            )
            for name, each, text in wanted
        ]
        training = None if train_dir is None else TrainingImages(folder=Path(train_dir), data=train_data)
        folder = None if out is None else Path(out)
        return climb(climbs, training=training, out=folder, executor=executor, progress=progress)


@dataclass(frozen=True, kw_only=True)
class TrainingImages:
    """The folder with the grey-box attacker's training images; data None: the same data set as attacked."""

    folder: Path
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class Climb:
    """A classifier behind a defense, and all that a ladder measures of it.

    Attributes:
        name: "model", or what a control is called.
        target: the classifier and the images; defense: by text, "none" where there is none.
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

    @property
    def subject(self) -> Subject:
        """What ladder.json says of it."""
        return Subject(name=self.name, classifier=self.target.name, defense=self.defense)

    def missing(self, network: OwnNetwork | str) -> dict[RungName, str]:
        """The rungs that cannot be run, and why."""
        missing: dict[RungName, str] = {} if self.sources else {"transfer": "no source was given"}
        if self.shield is None:
            missing["ignorant"] = "there is no shield: the white-box rung is the same"
        if isinstance(network, str):
            missing["grey-box"] = network
        if self.unfit:
            missing |= dict.fromkeys(("grey-box", "white-box"), self.unfit)
        return missing

    @cached_property
    def unfit(self) -> str | None:
        """Why the suite cannot be run on this defense, if it cannot."""
        try:
            for each in expand(self.settings.suite, self.settings.ball):
                if self.shield is not None and each.surrogate != NONE:
                    surrogates.get(each.surrogate).check(self.shield)
        except InvalidInputError as error:
            return str(error)
        return None

    @cached_property
    def inside(self) -> Evaluation:
        """Those who hold the weights, and nobody at all."""
        chosen, shielded = self.settings, self.shield is not None
        return Evaluation(
            target=self.target,
            defenses=(self.defense,),
            attacks=(chosen.ignorant,) * shielded + (chosen.suite,) * (self.unfit is None),
            **chosen.shared(),
        )

    @cached_property
    def unaided(self) -> RemoteAttacks:
        """Those who do not, and have trained no network."""
        return self.remote(())

    def remote(self, own: tuple[str, ...]) -> RemoteAttacks:
        """Those who do not; own: the weights of the grey-box attacker's network."""
        chosen, shielded = self.settings, self.shield is not None
        attacks = transfers(self.sources, chosen.transfer, chosen.diversity)
        attacks += chosen.query_attacks(random=shielded or self.target.is_random)
        members = expand(chosen.suite, chosen.ball) if own else []
        attacks += tuple(
            RemoteAttack(
                name=f"grey-box/{each.name}", rung="grey-box", attack=chosen.suite, member=place,
                sources=own, behind=shielded,
            )
            for place, each in enumerate(members)
        )  # fmt: skip
        return RemoteAttacks(
            target=self.target,
            defense=self.defense,
            attacks=attacks,
            calls=chosen.calls,
            **chosen.shared(),
        )

    def own_network(self, training: TrainingImages | None, out: Path | None) -> OwnNetwork | str:
        """The network that the grey-box attacker trains, or why there is none."""
        if training is None:
            return "no training data were given"
        if out is None:
            return "there is no folder for the attacker's network"
        if self.defense.startswith(IN_MEMORY):
            return "the defense is in memory: give it as package.module:function"
        return OwnNetwork(
            data=training.data or ("cifar10" if self.target.data == SAMPLE_NAME else self.target.data),
            folder=training.folder,
            arch=self.settings.own_arch or _another_arch(self.target.model),
            epochs=self.settings.own_epochs,
            batch=self.settings.own_batch,
            seed=self.settings.own_seed,
            shield=None if self.shield is None else self.defense,
            device=self.target.device,
            out=out / "own",
        )


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
        training: what the grey-box attacker trains on; without it, that rung is not run.
        out, executor, progress: as of `ladder`. What training costs is reported but not part of the total.
    """
    names = [each.name for each in climbs]
    if len({*names}) < len(names):
        raise InvalidInputError(f"controls {', '.join(names[1:])} should each have a name of its own")
    own_networks = [each.own_network(training, out) for each in climbs]
    plan = Plan(
        subjects=tuple(each.subject for each in climbs),
        settings=climbs[0].settings,
        not_measured=tuple(
            NotMeasured(subject=each.name, rung=rung, reason=reason)
            for each, network in zip(climbs, own_networks, strict=True)
            for rung, reason in each.missing(network).items()
        ),
        training_seconds={},
    )
    steps = Steps(progress, sum(each.inside.work + each.unaided.work for each in climbs))
    if out is not None and (out / PLAN).is_file():
        check_same(out, read_manifest(Plan, out, file=PLAN), plan, except_for=("training_seconds",))
    elif out is not None:
        write_json(out / PLAN, to_plain(plan))
    found = []
    for each, network in zip(climbs, own_networks, strict=True):
        remote = each.unaided
        if isinstance(network, OwnNetwork) and each.unfit is None:
            trained = network.trained(
                lambda doing, done, total: steps.tell(f"{doing}, {done:,} of {total:,} steps")
            )
            remote = each.remote((str(trained.weights),))
            steps.total += remote.work - each.unaided.work
            plan = replace(plan, training_seconds={**plan.training_seconds, each.name: trained.seconds})
            if out is not None:
                write_json(out / PLAN, to_plain(plan))
        inside_folder, remote_folder = (None, None) if out is None else _folders(out, each.subject)
        with steps.step(each.inside.work, f"{each.name}: ") as told:
            inside = run_study(each.inside, inside_folder, executor=executor, progress=told)
        with steps.step(remote.work, f"{each.name}: ") as told:
            found.append(
                Measured(
                    inside=inside, remote=run_study(remote, remote_folder, executor=executor, progress=told)
                )
            )
    return LadderSummary.of(plan, found)


def _folders(out: Path, subject: Subject) -> tuple[Path, Path]:
    return out / subject.name / "evaluation", out / subject.name / "remote"


def _another_arch(model: nn.Module) -> str:
    """An architecture that is not the attacked classifier's."""
    network = model.network if isinstance(model, Normalised) else model
    return "small" if isinstance(network, Network) and network.arch == "resnet18" else "resnet18"

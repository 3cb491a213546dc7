"""Run an experiment: all its parts, study after study, each into its own folder of records; and sum it up.

OUT/T2/experiment.json         the file word for word; of every run options, seed, version, commit and machine
OUT/T2/PART/STUDY/             records, manifest and times of a study (runs.records)
OUT/adversarial/               images found against bare classifiers, shared by all experiments
OUT/T2/summary.json            what was found
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import vqshield
from vqshield.auditing import read_audit
from vqshield.certification.study import Certification
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import parse_json, write_json
from vqshield.core.serialization import from_plain, to_plain
from vqshield.evaluation.study import Evaluation
from vqshield.runs.batch_norm import RUNNING, recorded_batch_norm
from vqshield.runs.code import commit
from vqshield.runs.executors import Executor, LocalExecutor
from vqshield.runs.manifests import check_same, read_plain_manifest
from vqshield.runs.study import AnyStudy, Progress, no_progress
from vqshield.runs.target import Target
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.experiments import Experiment, read_experiment
from vqshield_paper.reproduction.model import Audited, PaperSource, PartSummary, RunMade, Summary
from vqshield_paper.reproduction.parts import Options, Part
from vqshield_paper.reproduction.parts.accuracy import AccuracyPart
from vqshield_paper.reproduction.parts.base import is_begun
from vqshield_paper.reproduction.targets import ChosenTarget, TargetChoices

MANIFEST, SUMMARY = "experiment.json", "summary.json"
SHARED = "adversarial"
_STOPPED = "it was stopped; the same command continues it"


class NothingToRunError(InvalidInputError):
    """Images or classifiers are missing for every part of an experiment."""


@dataclass(frozen=True, kw_only=True)
class PartManifest:
    """What experiment.json says of a part.

    jobs: the folders of its studies, below OUT (the key is older than the noun). made: the runs that had a
    share in its records. why: what is missing, where it could not be run.
    """

    name: str
    stand_in: str | None
    why: str | None
    jobs: tuple[str, ...] = ()
    made: tuple[RunMade, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExperimentManifest:
    """What experiment.json holds; file: the experiment file, word for word."""

    id: str
    file: str
    parts: tuple[PartManifest, ...]

    @classmethod
    def read(cls, folder: Path) -> "ExperimentManifest":
        """From the folder of an experiment, OUT/ID."""
        path = folder / MANIFEST
        if not path.is_file():
            raise InvalidInputError(f"there is no {MANIFEST} in {folder}; no experiment was started there")
        return from_plain(cls, parse_json(path.read_bytes(), path), str(path), strict=False)


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """A part with its target, and its studies in their folders; none where something is missing."""

    part: Part
    chosen: ChosenTarget
    studies: Mapping[Path, AnyStudy]


@dataclass(frozen=True, kw_only=True)
class WorkLeft:
    """How much a study is, how much of it is done, and about how long the rest takes; None: unknown."""

    cells: int
    records: int
    done: int
    seconds: float | None


class Reproduction:
    """An experiment that can be run, stopped, and continued; command: what was typed to run it."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        options: Options,
        targets: TargetChoices,
        out: Path,
        executor: Executor | None = None,
        command: str | None = None,
    ) -> None:
        self.experiment, self.out, self._executor = experiment, out, executor or LocalExecutor()
        self._command = command
        self.options = replace(options, shared=(out / SHARED).absolute())
        if options.batch_norm != RUNNING and (
            other := [each.name for each in experiment.parts if each.kind != AccuracyPart.kind]
        ):
            raise InvalidInputError(
                f"batch_norm={options.batch_norm!r} is for experiments that measure accuracy (T1 to T5, "
                f"F4 to F6, A1); part {other[0]!r} of {experiment.id} does not"
            )
        chosen = {part.data: targets.choose(part.data) for part in experiment.parts}
        self.parts = [self._planned(part, chosen[part.data]) for part in experiment.parts]
        missing = [each.chosen.missing for each in self.parts if each.chosen.missing is not None]
        if len(missing) == len(self.parts):
            raise NothingToRunError(
                f"nothing of {experiment.id} can be run: " + "; ".join(dict.fromkeys(missing))
            )

    @property
    def folder(self) -> Path:
        """Where its summary and reports go."""
        return self.out / self.experiment.id

    @property
    def studies(self) -> dict[Path, AnyStudy]:
        """Every study, by its folder."""
        return {folder: study for each in self.parts for folder, study in each.studies.items()}

    @property
    def work(self) -> int:
        """How much there is to do in all: what a progress bar counts."""
        return sum(study.work for study in self.studies.values())

    def run(self, progress: Progress = no_progress) -> Summary:
        """Measure what is not measured yet; the summary is written even where the run is stopped."""
        work = self.work  # loads and checks every target before anything is written
        self.refuse_other_settings()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / MANIFEST, to_plain(self.manifest()))
        done = 0
        try:
            for folder, study in self.studies.items():
                told = _as_part(progress, folder.parent.name, done, work)
                self._executor.run(study, folder, progress=told)
                done += study.work
        finally:
            summary = summarise_folder(self.folder)
            write_json(self.folder / SUMMARY, to_plain(summary))
        return summary

    def refuse_other_settings(self) -> None:
        """Raise where a folder holds records of other settings than a study has now."""
        for folder, study in self.studies.items():
            if is_begun(folder):
                check_same(folder, read_plain_manifest(folder), self._executor.manifest(study))

    def estimates(self) -> dict[Path, WorkLeft]:
        """For every study, how much there is to do.

        The classifier is timed on a few images. AutoAttack takes as long as images resist it, which no one
        knows beforehand: an estimate may be off by a factor of three, with AutoAttack through a defense by
        more.
        """
        found = {}
        for folder, study in self.studies.items():
            done = len(study.folder(folder).read())
            left, keys = 0, 0
            for cell in study.cells:
                keys += len(cell.keys)
                left += study.cost(cell) if keys > done else 0
            found[folder] = WorkLeft(
                cells=len(study.cells), records=keys, done=done, seconds=_seconds(study, left)
            )
        return found

    def _planned(self, part: Part, chosen: ChosenTarget) -> PlannedPart:
        if chosen.missing is not None:
            return PlannedPart(part=part, chosen=chosen, studies={})
        home = part.home(self.out, self.experiment.id)
        studies = part.studies(self.options, chosen.target)
        return PlannedPart(
            part=part, chosen=chosen, studies={home / name: study for name, study in studies.items()}
        )

    def manifest(self) -> ExperimentManifest:
        """What experiment.json says of this run and those before it.

        A run of some parts forgets no others; what was measured keeps what was said of it.
        """
        begun = (self.folder / MANIFEST).is_file()
        parts = {each.name: each for each in ExperimentManifest.read(self.folder).parts} if begun else {}
        now = RunMade(
            limit=self.options.limit,
            runs=self.options.runs,
            adaptive=self.options.adaptive,
            seed=self.options.seed,
            version=vqshield.__version__,
            commit=commit(),
            machine=environment("cuda" if self.options.on_gpu else "cpu"),
            command=self._command,
            batch_norm=recorded_batch_norm(self.options.batch_norm),
        )
        for each in self.parts:
            before = parts.get(each.part.name)
            measured = before is not None and any(is_begun(self.out / job) for job in before.jobs)
            if measured and each.chosen.missing is not None:
                continue
            made = before.made if before is not None and measured else ()
            same = made and replace(made[-1], command=now.command) == now
            if not same and (not made or self._unfinished(each)):
                made = (*made, now)
            parts[each.part.name] = PartManifest(
                name=each.part.name,
                stand_in=each.chosen.stand_in,
                why=each.chosen.missing,
                jobs=tuple(str(folder.relative_to(self.out)) for folder in each.studies),
                made=made if each.chosen.missing is None else (),
            )
        return ExperimentManifest(
            id=self.experiment.id, file=self.experiment.text, parts=tuple(parts.values())
        )

    def _unfinished(self, planned: PlannedPart) -> bool:
        return any(
            len(study.folder(folder).read()) < sum(len(cell.keys) for cell in study.cells)
            for folder, study in planned.studies.items()
        )


def summarise_folder(folder: Path) -> Summary:
    """What the records in an experiment's folder, OUT/ID, say; of a run that is not finished, what there
    is.
    """
    manifest = ExperimentManifest.read(folder)
    experiment = read_experiment(manifest.file, source=str(folder / MANIFEST))
    paper = published.section(experiment.id)
    said = {each.name: each for each in manifest.parts}
    parts = tuple(
        _summarise_part(part, part.home(folder.parent, experiment.id), said[part.name], paper)
        for part in experiment.parts
        if part.name in said  # those that were selected
    )
    latest = next((each.made[-1] for each in reversed(manifest.parts) if each.made), None)
    return Summary(
        id=experiment.id,
        title=experiment.title,
        view=experiment.shows,
        paper=PaperSource(label=paper.label, caption=paper.caption),
        complete=all(part.status == "complete" for part in parts),
        notes=tuple(published.inconsistencies(experiment.id)),
        parts=parts,
        seconds=round(sum(part.seconds for part in parts), 1),
        machine=latest.machine if latest else None,
        version=latest.version if latest else None,
        commit=latest.commit if latest else None,
        seed=latest.seed if latest else None,
    )


def _summarise_part(part: Part, home: Path, said: PartManifest, paper: published.Published) -> PartSummary:
    found = part.summarise(home, paper.values)
    begun = [is_begun(home / Path(job).name) for job in said.jobs]
    complete = found.status == "complete" and all(begun)
    why = None
    if not complete:
        why = _STOPPED if any(begun) else said.why or "it was not started"
    return replace(
        found,
        status="complete" if complete else "partial" if any(begun) else "not run",
        why=why,
        stand_in=said.stand_in,
        made=said.made,
        audits=_audits(home),
    )


def _audits(home: Path) -> tuple[Audited, ...]:
    """What `vqshield audit --out PART/audit` wrote next to the records, if it was run."""
    found = []
    for path in sorted(home.glob("audit*/audit.json")):
        report = read_audit(path)
        lines = tuple(
            f"{flag.name} {flag.outcome}: {flag.title}. {flag.meaning}" for flag in report.audit.flags
        )
        found.append(Audited(defense=report.defense, passed=report.passed, lines=lines))
    return tuple(found)


def _as_part(progress: Progress, part: str, before: int, total: int) -> Progress:
    return lambda doing, done, _: progress(f"{part}: {doing}", before + done, total)


def _seconds(study: AnyStudy, left: int) -> float | None:
    """About how long the rest takes; a draw goes through the defense as well, and most of an evaluation are
    steps of attacks, which go through both, forward and back.
    """
    if not isinstance(study, Certification | Evaluation):
        return None
    forwards = 4 if isinstance(study, Evaluation) else 2
    return round(forwards * left * _forward(study.target), 1)


def _forward(target: Target) -> float:
    """Seconds per image, the best of three."""
    images, _ = target.part(slice(0, 100))
    best = float("inf")
    with torch.no_grad():
        for _ in range(3):
            began = time.perf_counter()
            float(target.model(images).sum())  # waits for a GPU
            best = min(best, time.perf_counter() - began)
    return best / len(images)

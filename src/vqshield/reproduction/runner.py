"""Run an experiment: all its parts, job after job, each into its own folder of records; and sum it up.

OUT/T2/experiment.json         the file word for word; of every run options, seed, version, commit and machine
OUT/T2/PART/JOB/               records, manifest and times of a job (experiments.records)
OUT/adversarial/               images found against bare classifiers, shared by all experiments
OUT/T2/summary.json            what reports are made from
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import vqshield
from vqshield import archived
from vqshield.environment import environment
from vqshield.errors import InvalidInputError
from vqshield.files import write_json
from vqshield.reproduction.files import Experiment
from vqshield.reproduction.part import Options, Part, given
from vqshield.reproduction.sources import Source, Sources
from vqshield.reproduction.summary import MANIFEST, read_experiment, summarise_folder
from vqshield.runs.executors import Executor
from vqshield.runs.executors.local import LocalExecutor
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.runs.manifests import check_same, read_manifest
from vqshield.runs.study import Report, ResumableWork
from vqshield.runs.target import Subject

SHARED = "adversarial"


class NothingToRunError(InvalidInputError):
    """Images or classifiers are missing for every part of an experiment."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A part with what stands for its data set; jobs, in their folders, where it can be run."""

    part: Part
    source: Source
    jobs: Mapping[Path, Job]


class Reproduction:
    """An experiment that can be run, stopped, and gone on with."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        options: Options,
        sources: Sources,
        out: Path,
        executor: Executor | None = None,
    ) -> None:
        self.experiment, self.out, self._executor = experiment, out, executor
        self._report: Report = lambda *_: None
        self.options = replace(options, shared=out / SHARED)
        self.parts = [self._planned(part, sources.request(part.data)) for part in experiment.parts]
        missing = [each.source.why for each in self.parts if each.source.why is not None]
        if len(missing) == len(self.parts):
            raise NothingToRunError(
                f"nothing of {experiment.id} can be run: " + "; ".join(dict.fromkeys(missing))
            )
        self._subjects: dict[SubjectRequest, Subject] = {}
        self._made: dict[Path, ResumableWork[Any, Any]] = {}
        self._done = 0

    def watch(self, report: Report) -> None:
        """Tell somebody what is going on, and how much of the work is done in all."""
        self._report = report

    @property
    def folder(self) -> Path:
        """Where its summary and reports go."""
        return self.out / self.experiment.id

    @property
    def work(self) -> int:
        """How much there is to do in all: what a progress bar counts."""
        return sum(each.work for each in self.works().values())

    def works(self) -> dict[Path, ResumableWork[Any, Any]]:
        """Every job's work, by its folder; made once, all of them before the first is begun."""
        for each in self.parts:
            for folder, job in each.jobs.items():
                if folder not in self._made:
                    self._made[folder] = self._work(folder, job)
        return self._made

    def run(self) -> None:
        """Do what is not done yet; the summary is written even where the run is stopped."""
        works = self.works()
        self.refuse_other_settings()  # before anything is written: what is there stays as it is
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / MANIFEST, self.manifest())
        try:
            for work in works.values():
                work.run(self._executor)
                self._done += work.work
        finally:
            write_json(self.folder / "summary.json", self.summary())

    def manifest(self) -> dict[str, Any]:
        """The file; of every part what stands for its data, and all runs that had a share in its records."""
        parts = earlier_parts(self.folder)
        now = {
            **{name: getattr(self.options, name) for name in ("limit", "runs", "adaptive", "seed")},
            "version": vqshield.__version__,
            "commit": commit(),
            "machine": environment(torch.device("cuda") if self.options.on_gpu else "cpu"),
        }
        for each in self.parts:
            before = parts.get(each.part.name, {"jobs": [], "made": []})
            begun = any(given(self.out / job) for job in before["jobs"])
            if begun and each.source.why is not None:
                continue  # what was measured keeps what was said of it
            made = before["made"] if begun else []
            if not made or (made[-1] != now and self._unfinished(each)):
                made = [*made, now]
            parts[each.part.name] = {
                "name": each.part.name,
                "stand_in": each.source.stand_in,
                "why": each.source.why,
                "jobs": [str(folder.relative_to(self.out)) for folder in each.jobs],
                "made": made if each.source.why is None else [],
            }
        return {"id": self.experiment.id, "file": self.experiment.text, "parts": list(parts.values())}

    def summary(self) -> dict[str, Any]:
        """What the records say so far."""
        return summarise_folder(self.folder)

    def _planned(self, part: Part, source: Source) -> Planned:
        if source.why is not None:
            return Planned(part=part, source=source, jobs={})
        home = part.home(self.out, self.experiment.id)
        jobs = part.jobs(self.options, source.request)
        return Planned(part=part, source=source, jobs={home / name: job for name, job in jobs.items()})

    def _unfinished(self, planned: Planned) -> bool:
        works = [self.works()[folder] for folder in planned.jobs]
        return any(len(work.records.read()) < sum(len(cell.keys) for cell in work.cells) for work in works)

    def refuse_other_settings(self) -> None:
        """Raise where a folder holds records of other settings than a job has now."""
        works = self.works()
        executor = self._executor or LocalExecutor()
        for folder, work in works.items():
            if given(folder):
                check_same(read_manifest(folder), executor.specification(work), folder)

    def _work(self, folder: Path, job: Job) -> ResumableWork[Any, Any]:
        def report(doing: str, done: int) -> None:
            self._report(f"{folder.parent.name}: {doing}", self._done + done)

        subject = None if job.kind == "example" else self._subject(job.subject)
        made = job.work(subject, folder, report)
        assert isinstance(made, ResumableWork)
        return made

    def _subject(self, request: SubjectRequest) -> Subject:
        """Loaded once, whatever the number of images."""
        whole = replace(request, limit=None)
        if whole not in self._subjects:
            most = [job.subject.limit for each in self.parts for job in each.jobs.values()
                    if replace(job.subject, limit=None) == whole]  # fmt: skip
            limits = [limit for limit in most if limit is not None]
            self._subjects[whole] = replace(
                whole, limit=max(limits) if len(limits) == len(most) else None
            ).load()
        found = self._subjects[whole]
        return replace(found, data=found.data.take(request.limit))


def earlier_parts(folder: Path) -> dict[str, Any]:
    """What earlier runs said of the parts: a run of some of them forgets no others."""
    if not (folder / MANIFEST).is_file():
        return {}
    return {each["name"]: each for each in read_experiment(folder)["parts"]}


def commit() -> str | None:
    """The commit of the code that runs, where it runs from a checkout or an archive of one."""
    here = Path(vqshield.__file__)
    try:
        if not _git(here.parent, "ls-files", here.name):  # installed below somebody else's checkout
            return archived.COMMIT
        return _git(here.parent, "rev-parse", "HEAD") or archived.COMMIT
    except (OSError, subprocess.SubprocessError):
        return archived.COMMIT


def _git(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
    )
    return found.stdout.strip()

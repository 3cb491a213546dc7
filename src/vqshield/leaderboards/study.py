"""The leaderboard: many defenses, each in front of its classifier, through the same attackers and audit.

Nothing is attacked here. Of each row a ladder is climbed, its white-box figure is audited, and it is timed;
all of that lies in a folder of the row's own, where it continues if it was stopped:

board.json                  what all rows share, and the rows so far
rows/NAME/ladder/           the records of the attackers (vqshield.ladders.study)
rows/NAME/audit/            audit.json, and what was measured on the way
rows/NAME/cost/             how long an image takes
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from vqshield.auditing import QUICK, AuditReport, AuditSettings, read_audit
from vqshield.auditing.results import FAIL, PASS
from vqshield.auditing.run import FILE as AUDIT_FILE
from vqshield.auditing.run import check_images
from vqshield.auditing.study import audit
from vqshield.classifiers import BUNDLED, is_source
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY, NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import parse_json, write_json
from vqshield.core.serialization import from_plain, to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import DefenseLike
from vqshield.ladders.study import MAIN, PLAN, LadderRow, LadderSettings, LadderSummary, ladder
from vqshield.leaderboards.cost import Cost
from vqshield.leaderboards.rows import ALL, BoardRow, read_rows
from vqshield.runs.arguments import split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import MANIFEST
from vqshield.runs.records import PACKED, RECORDS
from vqshield.runs.study import Progress, no_progress
from vqshield.runs.target import Target, defenses_inside

BOARD = "board.json"
RUNGS_SHOWN = ("natural", "transfer", "ignorant", "score", "decision", "white-box")
"""The rungs of the ladder that a board runs. The grey-box attacker trains a network of their own for every
row, which is a ladder's business."""
_INSIDE = ("natural", "ignorant", "white-box")
_SHARES = {"ladder": 700, "audit": 280, "cost": 20}  # of a row's progress, by what usually takes long


@dataclass(frozen=True, kw_only=True)
class BoardSettings:
    """How thoroughly each row is measured; the same for all.

    Attributes:
        ladder: the attackers. Its suite is the one that is audited.
        audit: how thorough the audit is.
        audit_images: audit the first N images; None: all. An audit attacks each image many times.
    """

    ladder: LadderSettings = field(default_factory=lambda: LadderSettings(calls=(1000, 10_000)))
    audit: AuditSettings = field(default_factory=AuditSettings)
    audit_images: int | None = 100

    def __post_init__(self) -> None:
        if self.audit_images is not None:
            checks.whole("audit_images", self.audit_images, least=1)

    @classmethod
    def quick(cls) -> "BoardSettings":
        """A few minutes a row for 50 images and the bundled classifier on two CPU cores; longer where the
        suite has to learn a surrogate, since the defense brings none.
        """
        # An audit asks for every member several times over: the shortest suite.
        few = replace(LadderSettings.quick(), calls=(100,), draws=(1,), suite="adaptive-v1-quick")
        return cls(ladder=few, audit=QUICK, audit_images=None)


@dataclass(frozen=True, kw_only=True)
class BoardPlan:
    """What all rows of a folder share, and the rows themselves: board.json. Files go by their names alone."""

    data: str
    limit: int | None
    sources: tuple[str, ...]
    settings: BoardSettings
    rows: tuple[BoardRow, ...]


@dataclass(frozen=True, kw_only=True)
class BoardFigure:
    """What the attackers of one rung leave of a row; accuracies are fractions.

    Attributes:
        calls: calls of the model an image that the attacker may make, at most; None where it is not asked.
        used: how many of them an image took on average.
        mean, standard_error: over draws, and over images.
        seconds: what the attack took for all images together, where that is known.
        records: the file with a record of every image, from the board's folder.
    """

    rung: str
    calls: int | None
    used: float | None
    mean: float
    standard_error: float
    runs: int
    n: int
    seconds: float | None
    records: str


Verdict = Literal["passed", "failed", "suspicious", "undecided"]


@dataclass(frozen=True, kw_only=True)
class BoardAudit:
    """Whether the white-box figure can be believed.

    Attributes:
        verdict: "undecided" where no check failed, but some are undecided or were not run.
        not_passed: the checks that did not pass, R1 to R14, with their outcome.
        reported: what the suite leaves of the audited images; lowest: the least that anything left of them.
        file: audit.json, from the board's folder.
    """

    verdict: Verdict
    not_passed: Mapping[str, str]
    reported: float
    lowest: float
    n: int
    seconds: float
    file: str

    @classmethod
    def of(cls, report: AuditReport, file: str) -> "BoardAudit":
        """From an audit's report."""
        outcomes = {flag.name: flag.outcome for flag in report.flags}
        verdict: Verdict = "passed" if report.passed else "undecided"
        if report.audit.failed:
            verdict = "failed" if FAIL in outcomes.values() else "suspicious"
        return cls(
            verdict=verdict,
            not_passed={name: outcome for name, outcome in outcomes.items() if outcome != PASS},
            reported=report.audit.reported.mean,
            lowest=report.audit.lowest.mean,
            n=report.audit.n,
            seconds=report.seconds,
            file=file,
        )


@dataclass(frozen=True, kw_only=True)
class BoardCost:
    """Milliseconds an image, in batches of that many; records: from the board's folder."""

    defense_ms: float
    model_ms: float
    batch: int
    device: str
    records: str


@dataclass(frozen=True, kw_only=True)
class BoardResult:
    """A row with its figures; of one that is not finished, what there is.

    Attributes:
        figures: in the order of the rungs; query attacks after the largest number of calls.
        lowest: the least of them that an attacker leaves; None before there is one.
        not_run: rung → why it has no figure.
    """

    row: BoardRow
    complete: bool
    figures: tuple[BoardFigure, ...]
    lowest: BoardFigure | None
    not_run: Mapping[str, str]
    audit: BoardAudit | None
    cost: BoardCost | None

    def figure(self, rung: str) -> BoardFigure | None:
        """The figure of a rung; None where it was not run, or not yet."""
        return next((each for each in self.figures if each.rung == rung), None)


@dataclass(frozen=True, kw_only=True)
class BoardSummary:
    """What a leaderboard found: leaderboard.json."""

    title: str
    complete: bool
    data: str
    images: int
    sources: tuple[str, ...]
    settings: BoardSettings
    machine: Mapping[str, str]
    rows: tuple[BoardResult, ...]

    def row(self, name: str) -> BoardResult | None:
        """The row of that name."""
        return next((each for each in self.rows if each.row.name == name), None)

    @classmethod
    def read(cls, out: Path) -> "BoardSummary":
        """What a folder holds of a leaderboard, finished or not."""
        plan = _read_plan(out)
        if plan is None:
            raise InvalidInputError(f"there is no {BOARD} in {out}; no leaderboard was begun there")
        ladders = {row.name: _ladder_of(out, row) for row in plan.rows}
        rows = tuple(_result(out, plan, row, ladders[row.name]) for row in plan.rows)
        begun = next((each for each in ladders.values() if each is not None and each.images), None)
        images = 0 if begun is None else begun.images
        return cls(
            title=f"Leaderboard: {images} images of {plan.data}",
            complete=all(row.complete for row in rows),
            data=plan.data,
            images=images,
            sources=plan.sources,
            settings=plan.settings,
            machine={} if begun is None else begun.machine,
            rows=rows,
        )


def leaderboard(
    out: Path | str,
    rows: Sequence[str | Path | BoardRow | DefenseLike] = (ALL,),
    *,
    data: str = SAMPLE_NAME,
    data_dir: Path | str | None = None,
    classifier: str | None = None,
    sources: Sequence[str] | None = None,
    settings: BoardSettings | None = None,
    limit: int | None = None,
    device: str = "auto",
    executor: Executor | None = None,
    progress: Progress = no_progress,
) -> BoardSummary:
    """Measure several defenses alike: natural accuracy, five attackers, an audit, and the time.

    Args:
        out: a folder that keeps a record of every image; a board that was stopped continues there, and rows
            may be added later.
        rows: TOML files with a row each, folders of them, names of bundled rows, "all" for all bundled ones
            (the default), or `BoardRow` objects; or a Defense, a module or function from images to images, or
            a model that `vq.defend` made, as a row of that name.
        data: the name of a data set.
        data_dir: folder with the official files of a named data set (default: the cache folder).
        classifier: one classifier for all rows (default: each row's own).
        sources: classifiers of the transfer attacker (default: the bundled one where the data are CIFAR-10).
            A row's own classifier is never a source for it.
        settings: how thoroughly; `BoardSettings.quick()` is for a CPU.
        limit: use the first N images (default: all).
        device: "cpu", "cuda" or "auto".
        executor: where the work is done; without it, in this process.
        progress: called with what is being done, how much is done, and how much there is, in thousandths of
            a row.

    Returns:
        A result for each row that the folder holds, in the order in which they were first asked for.

    Raises:
        InvalidInputError: something given is wrong, or the folder holds a board of other settings.
        FileFormatError: a file that is no row, with the file and the key.

    Example:
        >>> import tempfile
        >>> from vqshield.auditing import AuditSettings
        >>> from vqshield.ladders.study import LadderSettings
        >>> from vqshield.leaderboards.study import BoardSettings
        >>> few = BoardSettings(
        ...     ladder=LadderSettings(calls=(100,), draws=(1,), suite="pgd:steps=1", runs=2, selection=1),
        ...     audit=AuditSettings(
        ...         runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True
        ...     ),
        ... )
        >>> found = vq.leaderboard(tempfile.mkdtemp(), ["bitdepth"], settings=few, limit=1)
        >>> [figure.rung for figure in found.row("bitdepth").figures]
        ['natural', 'ignorant', 'score', 'decision', 'white-box']
        >>> found.row("bitdepth").audit.verdict != "passed"  # no audit of one image does
        True
    """
    with ExitStack() as held:
        named = [each for each in rows if isinstance(each, str | Path | BoardRow)]
        pairs = [_held(each, classifier, held) for each in rows if each not in named]
        found = read_rows([*named, *(row for row, _ in pairs)])
        wanted = [row if classifier is None else replace(row, classifier=classifier) for row in found]
        models = {row.name: model for row, model in pairs}
        return _measured(
            Path(out), wanted, models, data=data, data_dir=None if data_dir is None else Path(data_dir),
            sources=sources, chosen=settings or BoardSettings(), limit=limit, device=device,
            executor=executor, progress=progress,
        )  # fmt: skip


def _held(given: Any, classifier: str | None, held: ExitStack) -> tuple[BoardRow, nn.Module | str]:
    """The row of an object, and its classifier."""
    whole = bool(defenses_inside(given))
    if whole and classifier is not None:
        raise InvalidInputError(f"a row brings its own model, and classifier={classifier!r} is given")
    model, defense = (given, None) if whole else (classifier or BUNDLED, given)
    model, (text,) = held.enter_context(split_model(model, defense))
    shown = text.removeprefix(f"{IN_MEMORY}: ") if text != NONE else type(model).__name__
    name = re.sub("[^A-Za-z0-9]+", "-", shown).strip("-") or "mine"
    return BoardRow(name=name, defense=text, classifier=model if isinstance(model, str) else IN_MEMORY), model


def _measured(
    folder: Path,
    wanted: Sequence[BoardRow],
    models: Mapping[str, nn.Module | str],
    *,
    data: str,
    data_dir: Path | None,
    sources: Sequence[str] | None,
    chosen: BoardSettings,
    limit: int | None,
    device: str,
    executor: Executor | None,
    progress: Progress,
) -> BoardSummary:
    """A board of rows; models: those rows' that are objects."""
    if sources is None:
        sources = (BUNDLED,) if data in (SAMPLE_NAME, "cifar10") else ()
    lines = []
    for row in wanted:
        model = models.get(row.name, row.classifier)
        target = target_from(model, data, None, limit=limit, data_dir=data_dir, device=device)
        others = tuple(each for each in sources if _place(each) != _place(row.classifier))
        lines.append(
            _Line(
                row=row, model=model, data=data, data_dir=data_dir, target=target, sources=others,
                settings=chosen, folder=folder / "rows" / row.name,
            )
        )  # fmt: skip
    for line in lines:
        line.check()  # all of them before the first is measured
    plan = BoardPlan(
        data=data,
        limit=limit,
        sources=tuple(map(_name, sources)),
        settings=chosen,
        rows=tuple(_by_name(row) for row in wanted),
    )
    write_json(folder / BOARD, to_plain(_added(folder, plan)))
    for number, line in enumerate(lines):
        line.run(executor, _within(progress, number, len(lines)))
    return BoardSummary.read(folder)


_RowProgress = Callable[[str, str, float], None]
"""Told the part of a row, what is being done, and how much of the part is done, as a share."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A row, and all that is measured of it."""

    row: BoardRow
    model: nn.Module | str
    data: str
    data_dir: Path | None
    target: Target
    sources: tuple[str, ...]
    settings: BoardSettings
    folder: Path

    @property
    def cost(self) -> Cost:
        return Cost(target=self.target, defense=self.row.defense)

    @property
    def defense(self) -> str | None:
        """By text; None where it is part of the model."""
        return None if defenses_inside(self.model) else self.row.defense

    def check(self) -> None:
        """Refuse a classifier or a defense that does not take these images, and too few images to audit."""
        given, audited = len(self.target.images), self.settings.audit_images
        check_images(given if audited is None else min(given, audited), self.settings.audit)
        try:
            _ = self.cost.manifest
        except InvalidInputError as error:
            raise InvalidInputError(f"row {self.row.name!r}: {error}") from error

    def run(self, executor: Executor | None, tell: _RowProgress) -> None:
        """To the end, from wherever it was stopped."""
        attackers, given = self.settings.ladder, self.target
        ladder(
            self.model, self.data, defense=self.defense, sources=self.sources, controls=(),
            settings=attackers, limit=given.limit, data_dir=self.data_dir, device=given.device,
            out=self.folder / "ladder", executor=executor,
            progress=lambda doing, done, total: tell("ladder", doing, done / max(total, 1)),
        )  # fmt: skip
        # The ladder has refused another classifier, other images and other settings: an audit that is there
        # is the one of this row, by whichever executor.
        if not (self.folder / "audit" / AUDIT_FILE).is_file():
            few = [each for each in (given.limit, self.settings.audit_images) if each is not None]
            audit(
                self.model, self.data, defense=self.defense, attacks=attackers.suite,
                norm=attackers.norm, eps=attackers.eps, settings=self.settings.audit, seed=attackers.seed,
                limit=min(few, default=None), data_dir=self.data_dir, device=given.device,
                out=self.folder / "audit", executor=executor,
                progress=lambda part: tell("audit", f"audit: {part}", 0.0),
            )  # fmt: skip
        run_study(
            self.cost,
            self.folder / "cost",
            executor=executor,
            progress=lambda doing, done, total: tell("cost", doing, done / max(total, 1)),
        )
        tell("cost", f"{self.row.name} done", 1.0)


def _within(progress: Progress, number: int, rows: int) -> _RowProgress:
    """The progress of a part of a row as that of the board, in thousandths of a row."""
    before = {"ladder": 0, "audit": _SHARES["ladder"], "cost": _SHARES["ladder"] + _SHARES["audit"]}

    def tell(part: str, doing: str, share: float) -> None:
        done = 1000 * number + before[part] + int(_SHARES[part] * min(share, 1.0))
        progress(f"row {number + 1} of {rows}, {doing.removeprefix(f'{MAIN}: ')}", done, 1000 * rows)

    return tell


def _added(out: Path, plan: BoardPlan) -> BoardPlan:
    """The plan with the rows that the folder has already; another board is refused."""
    before = _read_plan(out)
    if before is None:
        return plan
    if replace(before, rows=()) != replace(plan, rows=()):
        raise InvalidInputError(
            f"{out} holds a leaderboard of other images, sources or settings; run it as before to continue, "
            "choose another folder, or start over (--fresh)"
        )
    known = {row.name: row for row in before.rows}
    for row in plan.rows:
        held = known.setdefault(row.name, row)
        if (held.defense, held.classifier) != (row.defense, row.classifier):
            raise InvalidInputError(
                f"{out} has another row {row.name!r}, {held.defense} in front of {held.classifier}; this one "
                f"is {row.defense} in front of {row.classifier}: give it a name of its own"
            )
        known[row.name] = row  # who made it may be said better
    return replace(plan, rows=tuple(known.values()))


def _read_plan(out: Path) -> BoardPlan | None:
    path = out / BOARD
    if not path.is_file():
        return None
    return from_plain(BoardPlan, parse_json(path.read_bytes(), path), str(path))


def _ladder_of(out: Path, row: BoardRow) -> LadderSummary | None:
    folder = out / "rows" / row.name / "ladder"
    return LadderSummary.read(folder) if (folder / PLAN).is_file() else None


def _result(out: Path, plan: BoardPlan, row: BoardRow, found: LadderSummary | None) -> BoardResult:
    home = f"rows/{row.name}"
    figures = tuple(
        _figure(held, _records(out, f"{home}/ladder/{MAIN}/{'evaluation' if rung in _INSIDE else 'remote'}"))
        for rung in RUNGS_SHOWN
        if found is not None and (held := found.row(rung)) is not None
    )
    reasons = {} if found is None else {each.rung: each.reason for each in found.plan.not_measured}
    if "transfer" in reasons and plan.sources:
        reasons["transfer"] = "the only source is this very classifier"
    report, cost = out / home / "audit" / AUDIT_FILE, _cost(out, f"{home}/cost")
    audited = BoardAudit.of(read_audit(report), f"{home}/audit/{AUDIT_FILE}") if report.is_file() else None
    attacked = [each for each in figures if each.rung != "natural"]
    return BoardResult(
        row=row,
        complete=found is not None and found.complete and audited is not None and cost is not None,
        figures=figures,
        lowest=min(attacked, key=lambda each: each.mean, default=None),
        not_run={rung: reasons[rung] for rung in RUNGS_SHOWN if rung in reasons},
        audit=audited,
        cost=cost,
    )


def _figure(held: LadderRow, records: str) -> BoardFigure:
    return BoardFigure(
        rung=held.rung,
        calls=held.calls,
        used=held.used,
        mean=held.mean,
        standard_error=held.standard_error,
        runs=held.runs,
        n=held.n,
        seconds=held.seconds,
        records=records,
    )


def _cost(out: Path, home: str) -> BoardCost | None:
    if not (out / home / MANIFEST).is_file():
        return None
    found = Cost.read(out / home)
    if not found.records:
        return None
    record = found.records[0]
    return BoardCost(
        defense_ms=record.defense_ms,
        model_ms=record.model_ms,
        batch=record.batch,
        device=str(found.manifest.machine.get("device", "")),
        records=_records(out, home),
    )


def _records(out: Path, home: str) -> str:
    """The file of records of a study, packed or not."""
    return f"{home}/{PACKED if (out / home / PACKED).is_file() else RECORDS}"


def _by_name(row: BoardRow) -> BoardRow:
    return replace(row, classifier=_name(row.classifier))


def _name(classifier: str) -> str:
    """A classifier without the folder that it lies in."""
    return classifier if is_source(classifier) else Path(classifier).name


def _place(classifier: str) -> str:
    return classifier if is_source(classifier) else str(Path(classifier).absolute())

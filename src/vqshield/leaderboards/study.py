"""The leaderboard: many defenses, each in front of its classifier, through the same attackers and audit.

Nothing is attacked here. Of each row a ladder is climbed, its white-box figure is audited, and it is timed;
all of that lies in a folder of the row's own, where it continues if it was stopped:

board.json                  what all rows share, and the rows so far
rows/NAME/ladder/           the records of the attackers (vqshield.ladders.study)
rows/NAME/audit/            audit.json, and what was measured on the way
rows/NAME/cost/             how long an image takes
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from vqshield.auditing import QUICK, AuditReport, AuditSettings, read_audit
from vqshield.auditing.flags import check_images
from vqshield.auditing.results import FAIL, PASS
from vqshield.auditing.study import FILE as AUDIT_FILE
from vqshield.auditing.study import AuditStudy, audit_target
from vqshield.classifiers import BUNDLED
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY, NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import DefenseLike
from vqshield.ladders.rungs import RungName
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import MAIN, PLAN, Climb, LadderRow, LadderSummary, climb
from vqshield.leaderboards.cost import Cost
from vqshield.leaderboards.rows import ALL, BoardRow, read_rows
from vqshield.models.draws import Accuracy
from vqshield.runs.arguments import split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import MANIFEST, check_same, read_manifest
from vqshield.runs.records import PACKED, RECORDS
from vqshield.runs.study import Progress, Steps, no_progress
from vqshield.runs.target import Target, defenses_inside, full_path, short_name

if TYPE_CHECKING:
    from vqshield.reports.table import Table

BOARD = "board.json"
RUNGS_SHOWN: tuple[RungName, ...] = ("natural", "transfer", "ignorant", "score", "decision", "white-box")
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
class BoardFigure(Accuracy):
    """The accuracy of a row under the attackers of one rung.

    Attributes:
        calls: calls of the model an image that the attacker may make, at most; None where it is not asked.
        used: how many of them an image took on average.
        seconds: what the attack took for all images together, where that is known.
        records: the file with a record of every image, from the board's folder.
    """

    rung: RungName
    calls: int | None
    used: float | None
    seconds: float | None
    records: str

    @classmethod
    def of_row(cls, row: LadderRow, records: str) -> "BoardFigure":
        """From a row of a ladder."""
        shared = {each.name: getattr(row, each.name) for each in fields(cls) if each.name != "records"}
        return cls(records=records, **{**shared, "std": None})  # a board shows one spread


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

    @property
    def table(self) -> "Table":
        """The rows from the best to the worst for terminals, pages and documents, and for pandas."""
        from vqshield.leaderboards.page import board_table

        return board_table(self)

    def row(self, name: str) -> BoardResult | None:
        """The row of that name."""
        return next((each for each in self.rows if each.row.name == name), None)

    @classmethod
    def read(cls, out: Path) -> "BoardSummary":
        """What a folder holds of a leaderboard, finished or not."""
        plan = read_manifest(BoardPlan, out, file=BOARD)
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
        >>> from vqshield.ladders.settings import LadderSettings
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
    if sources is None:
        sources = (BUNDLED,) if data in (SAMPLE_NAME, "cifar10") else ()
    folder, chosen = Path(out), settings or BoardSettings()
    with ExitStack() as held:
        named = [each for each in rows if isinstance(each, str | Path | BoardRow)]
        pairs = [_held(each, classifier, held) for each in rows if each not in named]
        found = read_rows([*named, *(row for row, _ in pairs)])
        wanted = [row if classifier is None else replace(row, classifier=classifier) for row in found]
        models = {row.name: model for row, model in pairs}
        lines = [
            _Line(
                row=row,
                target=target_from(
                    models.get(row.name, row.classifier), data, None,
                    limit=limit, data_dir=data_dir, device=device,
                ),
                sources=tuple(each for each in sources if full_path(each) != full_path(row.classifier)),
                settings=chosen,
                folder=folder / "rows" / row.name,
            )
            for row in wanted
        ]  # fmt: skip
        for line in lines:
            line.check()  # all of them before the first is measured
        plan = BoardPlan(
            data=data,
            limit=limit,
            sources=tuple(map(short_name, sources)),
            settings=chosen,
            rows=tuple(replace(row, classifier=short_name(row.classifier)) for row in wanted),
        )
        write_json(folder / BOARD, to_plain(_added(folder, plan)))
        steps = Steps(progress, sum(_SHARES.values()) * len(lines))
        for number, line in enumerate(lines, start=1):
            line.run(executor, steps, f"row {number} of {len(lines)}, ")
        return BoardSummary.read(folder)


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


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A row, and all that is measured of it."""

    row: BoardRow
    target: Target
    sources: tuple[str, ...]
    settings: BoardSettings
    folder: Path

    @property
    def cost(self) -> Cost:
        return Cost(target=self.target, defense=self.row.defense)

    def check(self) -> None:
        """Refuse a classifier or a defense that does not take these images, and too few images to audit."""
        given, audited = len(self.target.images), self.settings.audit_images
        check_images(given if audited is None else min(given, audited), self.settings.audit)
        try:
            _ = self.cost.manifest
        except InvalidInputError as error:
            raise InvalidInputError(f"row {self.row.name!r}: {error}") from error

    def run(self, executor: Executor | None, steps: Steps, title: str) -> None:
        """To the end, from wherever it was stopped."""
        attackers = self.settings.ladder
        with steps.step(_SHARES["ladder"], title) as told:
            main = Climb(
                target=self.target, defense=self.row.defense, settings=attackers, sources=self.sources
            )
            climb(
                [main],
                out=self.folder / "ladder",
                executor=executor,
                progress=lambda doing, done, total: told(doing.removeprefix(f"{MAIN}: "), done, total),
            )
        # The ladder has refused another classifier, other images and other settings: an audit that is there
        # is the one of this row, by whichever executor.
        with steps.step(_SHARES["audit"], title) as told:
            if not (self.folder / "audit" / AUDIT_FILE).is_file():
                few = [each for each in (self.target.limit, self.settings.audit_images) if each is not None]
                audit = AuditStudy(
                    target=replace(self.target, limit=min(few, default=None)),
                    defense=self.row.defense,
                    attacks=(attackers.suite,),
                    norm=attackers.norm,
                    eps=attackers.eps,
                    settings=replace(self.settings.audit, seed=attackers.seed),
                )
                audit_target(
                    audit,
                    out=self.folder / "audit",
                    executor=executor,
                    progress=lambda part: told(f"audit: {part}", 0, 1),
                )
        with steps.step(_SHARES["cost"], title) as told:
            run_study(self.cost, self.folder / "cost", executor=executor, progress=told)
        steps.tell(f"{title}{self.row.name} done")


def _added(out: Path, plan: BoardPlan) -> BoardPlan:
    """The plan with the rows that the folder has already; another board is refused."""
    if not (out / BOARD).is_file():
        return plan
    before = read_manifest(BoardPlan, out, file=BOARD)
    check_same(out, before, plan, except_for=("rows",))
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


def _ladder_of(out: Path, row: BoardRow) -> LadderSummary | None:
    folder = out / "rows" / row.name / "ladder"
    return LadderSummary.read(folder) if (folder / PLAN).is_file() else None


def _result(out: Path, plan: BoardPlan, row: BoardRow, found: LadderSummary | None) -> BoardResult:
    home = f"rows/{row.name}"
    figures = tuple(
        BoardFigure.of_row(
            held, _records(out, f"{home}/ladder/{MAIN}/{'evaluation' if rung in _INSIDE else 'remote'}")
        )
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

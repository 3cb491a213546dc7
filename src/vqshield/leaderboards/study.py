"""The leaderboard: many defenses, each in front of its classifier, through the same attackers and audit.

For each row a ladder is climbed, its white-box accuracy is audited, and it is timed. An interrupted row
resumes in its folder:

board.json                  the settings that all rows share, and the rows so far
rows/NAME/ladder/           the records of the attackers (vqshield.ladders.study)
rows/NAME/audit/            audit.json, and its records
rows/NAME/cost/             the time per image
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from torch import nn

from vqshield.auditing import PASS, QUICK, AuditSettings, read_audit
from vqshield.auditing.flags import check_images
from vqshield.auditing.results import Verdict
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
from vqshield.ladders.rungs import INSIDE, RungName
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import MAIN, PLAN, Climb, LadderRow, LadderSummary, climb, read_if_started
from vqshield.leaderboards.cost import Cost
from vqshield.leaderboards.rows import ALL, BoardRow, read_rows
from vqshield.models.draws import Accuracy
from vqshield.reports.table import Table, Tabular
from vqshield.runs.arguments import split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import check_same, read_manifest
from vqshield.runs.records import PACKED, RECORDS
from vqshield.runs.study import Progress, Steps, no_progress
from vqshield.runs.target import Target, defenses_inside, full_path, short_name

BOARD = "board.json"
RUNGS_SHOWN: tuple[RungName, ...] = ("natural", "transfer", "ignorant", "score", "decision", "white-box")
"""The rungs of the ladder that a board runs. The grey-box attacker would train a network for every row."""
_SHARES = {"ladder": 700, "audit": 280, "cost": 20}  # of a row's progress


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
        """A few minutes per row for 50 images and the bundled classifier on two CPU cores; longer for a
        defense without a surrogate, since the suite has to learn one.
        """
        # An audit runs every member several times: the shortest suite.
        few = replace(LadderSettings.quick(), calls=(100,), draws=(1,), suite="adaptive-v1-quick")
        return cls(ladder=few, audit=QUICK, audit_images=None)


@dataclass(frozen=True, kw_only=True)
class BoardPlan:
    """The settings that all rows share, and the rows: board.json. Files are given without their folders."""

    data: str
    limit: int | None
    sources: tuple[str, ...]
    settings: BoardSettings
    rows: tuple[BoardRow, ...]


@dataclass(frozen=True, kw_only=True)
class BoardFigure(Accuracy):
    """The accuracy of a row under the attackers of one rung.

    Attributes:
        calls, used, seconds: as of a LadderRow.
        records: the file with a record of every image, relative to the board's folder.
    """

    rung: RungName
    calls: int | None
    used: float | None
    seconds: float | None
    records: str


@dataclass(frozen=True, kw_only=True)
class BoardAudit:
    """Whether the white-box accuracy can be believed.

    Attributes:
        verdict: "undecided" if no check failed, but some are undecided or were not run.
        not_passed: the checks that did not pass, R1 to R14, with their outcome.
        reported, lowest: accuracies of the audited images, under the suite and under any attack of the audit.
        file: audit.json, relative to the board's folder.
    """

    verdict: Verdict
    not_passed: Mapping[str, str]
    reported: float
    lowest: float
    n: int
    seconds: float
    file: str


@dataclass(frozen=True, kw_only=True)
class BoardCost:
    """Milliseconds per image, in batches of that many; records: relative to the board's folder."""

    defense_ms: float
    model_ms: float
    batch: int
    device: str
    records: str


@dataclass(frozen=True, kw_only=True)
class BoardResult:
    """The results of a row, as far as there are any.

    Attributes:
        figures: accuracies in the order of the rungs, of query attacks after the largest number of calls.
        lowest: the lowest of them under attack; None before there is one.
        not_run: rung → why it was not run.
    """

    row: BoardRow
    complete: bool
    figures: tuple[BoardFigure, ...]
    lowest: BoardFigure | None
    not_run: Mapping[RungName, str]
    audit: BoardAudit | None
    cost: BoardCost | None

    def figure(self, rung: str) -> BoardFigure | None:
        """The accuracy of a rung; None if it was not run yet, or not at all."""
        return next((figure for figure in self.figures if figure.rung == rung), None)

    @classmethod
    def read(cls, out: Path, plan: BoardPlan, row: BoardRow, ladder: LadderSummary | None) -> "BoardResult":
        """The results of a row in a board's folder."""
        home = f"rows/{row.name}"
        found = [] if ladder is None else [ladder.row(rung) for rung in RUNGS_SHOWN]
        figures = tuple(_figure(out, home, accuracy) for accuracy in found if accuracy is not None)
        attacked = [figure for figure in figures if figure.rung != "natural"]
        reasons = {} if ladder is None else {each.rung: each.reason for each in ladder.plan.not_measured}
        if "transfer" in reasons and plan.sources:
            reasons["transfer"] = "the only source is this very classifier"
        audit, cost = _audit(out, f"{home}/audit/{AUDIT_FILE}"), _cost(out, f"{home}/cost")
        return cls(
            row=row,
            complete=ladder is not None and ladder.complete and audit is not None and cost is not None,
            figures=figures,
            lowest=min(attacked, key=lambda figure: figure.mean, default=None),
            not_run={rung: reasons[rung] for rung in RUNGS_SHOWN if rung in reasons},
            audit=audit,
            cost=cost,
        )


def _figure(out: Path, home: str, row: LadderRow) -> BoardFigure:
    shared = {each.name: getattr(row, each.name) for each in fields(BoardFigure) if each.name != "records"}
    shared["std"] = None  # a board shows one spread
    study = "evaluation" if row.rung in INSIDE else "remote"
    return BoardFigure(**shared, records=_records(out, f"{home}/ladder/{MAIN}/{study}"))


def _audit(out: Path, file: str) -> BoardAudit | None:
    if not (out / file).is_file():
        return None
    report = read_audit(out / file)
    return BoardAudit(
        verdict=report.audit.verdict,
        not_passed={flag.name: flag.outcome for flag in report.flags if flag.outcome != PASS},
        reported=report.audit.reported.mean,
        lowest=report.audit.lowest.mean,
        n=report.audit.n,
        seconds=report.seconds,
        file=file,
    )


def _cost(out: Path, home: str) -> BoardCost | None:
    found = read_if_started(Cost, out / home)
    if found is None or not found.records:
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


@dataclass(frozen=True, kw_only=True)
class BoardSummary(Tabular):
    """The results of a leaderboard: leaderboard.json."""

    title: str
    complete: bool
    data: str
    images: int
    sources: tuple[str, ...]
    settings: BoardSettings
    machine: Mapping[str, str]
    rows: tuple[BoardResult, ...]

    @property
    def table(self) -> Table:
        """The rows from the best to the worst for terminals, pages and documents, and for pandas."""
        from vqshield.leaderboards.page import board_table

        return board_table(self)

    def row(self, name: str) -> BoardResult | None:
        """The row of that name."""
        return next((result for result in self.rows if result.row.name == name), None)

    @classmethod
    def read(cls, out: Path) -> "BoardSummary":
        """The summary of a leaderboard's folder, finished or not."""
        plan = read_manifest(BoardPlan, out, file=BOARD)
        folders = {row.name: out / "rows" / row.name / "ladder" for row in plan.rows}
        ladders = {
            name: LadderSummary.read(folder) for name, folder in folders.items() if (folder / PLAN).is_file()
        }
        rows = tuple(BoardResult.read(out, plan, row, ladders.get(row.name)) for row in plan.rows)
        started = next((ladder for ladder in ladders.values() if ladder.images), None)
        images = 0 if started is None else started.images
        return cls(
            title=f"Leaderboard: {images} images of {plan.data}",
            complete=all(row.complete for row in rows),
            data=plan.data,
            images=images,
            sources=plan.sources,
            settings=plan.settings,
            machine={} if started is None else started.machine,
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
        out: a folder that keeps a record of every image; an interrupted board resumes there, and rows may be
            added later.
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
        executor: where the work is done (default: in this process).
        progress: called with what is being done, how much is done, and how much there is, in thousandths of
            a row.

    Returns:
        A result for each row that the folder holds, in the order of their first runs.

    Raises:
        InvalidInputError: an argument is wrong, or the folder holds a board of other settings.
        FileFormatError: a file is not a row; the message names the file and the key.

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
        >>> [accuracy.rung for accuracy in found.row("bitdepth").figures]
        ['natural', 'ignorant', 'score', 'decision', 'white-box']
        >>> found.row("bitdepth").audit.verdict != "passed"  # no audit of one image does
        True
    """
    if sources is None:
        sources = (BUNDLED,) if data in (SAMPLE_NAME, "cifar10") else ()
    folder, chosen = Path(out), settings or BoardSettings()
    with ExitStack() as held:
        named = [row for row in rows if isinstance(row, str | Path | BoardRow)]
        objects = [
            _row_of(row, classifier, held) for row in rows if not isinstance(row, str | Path | BoardRow)
        ]
        found = read_rows([*named, *(row for row, _ in objects)])
        wanted = [row if classifier is None else replace(row, classifier=classifier) for row in found]
        models = {row.name: model for row, model in objects}
        climbs = [
            _climb_of(
                row,
                target_from(
                    models.get(row.name, row.classifier), data, None,
                    limit=limit, data_dir=data_dir, device=device,
                ),
                tuple(source for source in sources if full_path(source) != full_path(row.classifier)),
                chosen,
            )
            for row in wanted
        ]  # fmt: skip
        plan = BoardPlan(
            data=data,
            limit=limit,
            sources=tuple(map(short_name, sources)),
            settings=chosen,
            rows=tuple(replace(row, classifier=short_name(row.classifier)) for row in wanted),
        )
        write_json(folder / BOARD, to_plain(_added(folder, plan)))
        steps = Steps(progress, sum(_SHARES.values()) * len(climbs))
        for number, (row, main) in enumerate(zip(wanted, climbs, strict=True), start=1):
            title = f"row {number} of {len(climbs)}, "
            _measure(main, chosen, folder / "rows" / row.name, executor, steps, title)
            steps.tell(f"{title}{row.name} done")
        return BoardSummary.read(folder)


def _row_of(given: DefenseLike, classifier: str | None, held: ExitStack) -> tuple[BoardRow, nn.Module | str]:
    """The row of a defense or a defended model, and its classifier."""
    model: nn.Module | str = classifier or BUNDLED
    defense: DefenseLike | None = given
    if isinstance(given, nn.Module) and defenses_inside(given):
        if classifier is not None:
            raise InvalidInputError(f"a row brings its own model, and classifier={classifier!r} is given")
        model, defense = given, None
    model, (spec,) = held.enter_context(split_model(model, defense))
    shown = spec.removeprefix(f"{IN_MEMORY}: ") if spec != NONE else type(model).__name__
    name = re.sub("[^A-Za-z0-9]+", "-", shown).strip("-") or "mine"
    return BoardRow(name=name, defense=spec, classifier=model if isinstance(model, str) else IN_MEMORY), model


def _climb_of(row: BoardRow, target: Target, sources: tuple[str, ...], settings: BoardSettings) -> Climb:
    """The ladder of a row; refuses too few images, and a classifier or defense that does not take them."""
    images, audited = len(target.images), settings.audit_images
    check_images(images if audited is None else min(images, audited), settings.audit)
    try:
        _ = Cost(target=target, defense=row.defense).manifest
        return Climb(target=target, defense=row.defense, settings=settings.ladder, sources=sources)
    except InvalidInputError as error:
        raise InvalidInputError(f"row {row.name!r}: {error}") from error


def _measure(
    main: Climb, settings: BoardSettings, folder: Path, executor: Executor | None, steps: Steps, title: str
) -> None:
    """Measure a row to the end, from wherever it was interrupted."""
    target, attackers = main.target, settings.ladder
    with steps.step(_SHARES["ladder"], title) as report:
        climb(
            [main],
            out=folder / "ladder",
            executor=executor,
            progress=lambda doing, done, total: report(doing.removeprefix(f"{MAIN}: "), done, total),
        )
    # The ladder has refused another classifier, other images and other settings: an audit that is there is
    # the one of this row, by whichever executor.
    with steps.step(_SHARES["audit"], title) as report:
        if not (folder / "audit" / AUDIT_FILE).is_file():
            limits = [limit for limit in (target.limit, settings.audit_images) if limit is not None]
            study = AuditStudy(
                target=replace(target, limit=min(limits, default=None)),
                defense=main.defense,
                attacks=(attackers.suite,),
                norm=attackers.norm,
                eps=attackers.eps,
                settings=replace(settings.audit, seed=attackers.seed),
            )
            audit_target(
                study,
                out=folder / "audit",
                executor=executor,
                progress=lambda part: report(f"audit: {part}", 0, 1),
            )
    with steps.step(_SHARES["cost"], title) as report:
        cost = Cost(target=target, defense=main.defense)
        run_study(cost, folder / "cost", executor=executor, progress=report)


def _added(out: Path, plan: BoardPlan) -> BoardPlan:
    """The plan with the rows that the folder has already; another board is refused."""
    if not (out / BOARD).is_file():
        return plan
    before = read_manifest(BoardPlan, out, file=BOARD)
    check_same(out, before, plan, except_for=("rows",))
    known = {row.name: row for row in before.rows}
    for row in plan.rows:
        held = known.get(row.name, row)
        if (held.defense, held.classifier) != (row.defense, row.classifier):
            raise InvalidInputError(
                f"{out} has another row {row.name!r}, {held.defense} in front of {held.classifier}; this one "
                f"is {row.defense} in front of {row.classifier}: give it a name of its own"
            )
        known[row.name] = row  # its title and author may change
    return replace(plan, rows=tuple(known.values()))

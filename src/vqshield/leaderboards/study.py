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
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import nn

from vqshield.auditing import QUICK, AuditReport, AuditSettings, read_audit
from vqshield.auditing.flags import check_images
from vqshield.auditing.study import FILE as AUDIT_FILE
from vqshield.auditing.study import AuditStudy, audit_target
from vqshield.classifiers import BUNDLED, load_classifier
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY, NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import DefenseLike
from vqshield.ladders.rungs import INSIDE, RungName
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import MAIN, PLAN, Climb, LadderRow, LadderSummary, climb, read_if_started
from vqshield.leaderboards.cost import Cost, CostRecord
from vqshield.leaderboards.rows import ALL, BoardRow, read_rows
from vqshield.models.calling import ask, differ, evaluating
from vqshield.reports.table import Table, Tabular
from vqshield.runs.arguments import split_model, target_from
from vqshield.runs.executors import Executor, run_study
from vqshield.runs.manifests import check_same, read_manifest
from vqshield.runs.records import PACKED, RECORDS
from vqshield.runs.study import Progress, Steps, no_progress
from vqshield.runs.target import PROBED, Target, defenses_inside, short_name

BOARD = "board.json"
RUNGS_SHOWN: tuple[RungName, ...] = ("natural", "transfer", "ignorant", "score", "decision", "white-box")
"""The rungs of the ladder that a board runs. The grey-box attacker would train a network for every row."""
_SHOWN = ("mean", "standard_error", "runs", "n", "rung", "calls", "used", "seconds")  # of a LadderRow
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
class BoardResult:
    """The ladder, the audit and the cost of a row, as far as they are measured.

    Attributes:
        not_run: rung → why it was not run.
        device: on which the cost was measured.
        files: records of the ladder ("evaluation", "remote") and of "cost", and the report of the "audit",
            relative to the board's folder.
    """

    row: BoardRow
    ladder: LadderSummary | None
    not_run: Mapping[RungName, str]
    audit: AuditReport | None
    cost: CostRecord | None
    device: str
    files: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Whether all of it is measured."""
        finished = self.ladder is not None and self.ladder.complete
        return finished and self.audit is not None and self.cost is not None

    @property
    def figures(self) -> tuple[LadderRow, ...]:
        """Accuracies in the order of the rungs, of query attacks after the largest number of calls."""
        rows = [] if self.ladder is None else map(self.ladder.row, RUNGS_SHOWN)
        return tuple(row for row in rows if row is not None)

    @property
    def lowest(self) -> LadderRow | None:
        """The lowest of them under attack; None before there is one."""
        attacked = [row for row in self.figures if row.rung != "natural"]
        return min(attacked, key=lambda row: row.mean, default=None)

    def figure(self, rung: str) -> LadderRow | None:
        """The accuracy of a rung; None if it was not run yet, or not at all."""
        return next((row for row in self.figures if row.rung == rung), None)

    def records(self, row: LadderRow) -> str:
        """The file with a record of every image behind an accuracy."""
        return self.files["evaluation" if row.rung in INSIDE else "remote"]

    @classmethod
    def read(cls, out: Path, plan: BoardPlan, row: BoardRow) -> "BoardResult":
        """The results of a row in a board's folder."""
        home = f"rows/{row.name}"
        folders = {each: f"{home}/ladder/{MAIN}/{each}" for each in ("evaluation", "remote")}
        folders["cost"] = f"{home}/cost"
        files = {
            study: f"{folder}/{PACKED if (out / folder / PACKED).is_file() else RECORDS}"
            for study, folder in folders.items()
        }
        files["audit"] = f"{home}/audit/{AUDIT_FILE}"
        climbed = (out / home / "ladder" / PLAN).is_file()
        ladder = LadderSummary.read(out / home / "ladder") if climbed else None
        reasons = {} if ladder is None else {each.rung: each.reason for each in ladder.plan.not_measured}
        if "transfer" in reasons and plan.sources:
            reasons["transfer"] = "the only source is this very classifier"
        cost = read_if_started(Cost, out / folders["cost"])
        return cls(
            row=row,
            ladder=ladder,
            not_run={rung: reasons[rung] for rung in RUNGS_SHOWN if rung in reasons},
            audit=read_audit(out / files["audit"]) if (out / files["audit"]).is_file() else None,
            cost=next(iter(cost.records), None) if cost else None,
            device=str(cost.manifest.machine.get("device", "")) if cost else "",
            files=files,
        )

    def plain(self) -> dict[str, Json]:
        """As leaderboard.json has it."""
        figures = {row.rung: {**_named(row, _SHOWN), "records": self.records(row)} for row in self.figures}
        audit, cost = self.audit, self.cost
        return {
            "row": to_plain(self.row),
            "complete": self.complete,
            "figures": list(figures.values()),
            "lowest": self.lowest and figures[self.lowest.rung],
            "not_run": self.not_run,
            "audit": audit and {
                "verdict": audit.verdict, "not_passed": audit.not_passed, "reported": audit.reported.mean,
                "lowest": audit.lowest.mean, "n": audit.n, "seconds": audit.seconds,
                "file": self.files["audit"],
            },
            "cost": cost and {
                **_named(cost, ("defense_ms", "model_ms", "batch")), "device": self.device,
                "records": self.files["cost"],
            },
        }  # fmt: skip


def _named(row: object, names: Sequence[str]) -> dict[str, Json]:
    return {name: getattr(row, name) for name in names}


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

    def plain(self) -> dict[str, Json]:
        """As leaderboard.json has it."""
        return {**to_plain(replace(self, rows=())), "rows": [row.plain() for row in self.rows]}

    @classmethod
    def read(cls, out: Path) -> "BoardSummary":
        """The summary of a leaderboard's folder, finished or not."""
        plan = read_manifest(BoardPlan, out, file=BOARD)
        rows = tuple(BoardResult.read(out, plan, row) for row in plan.rows)
        ladders = [row.ladder for row in rows if row.ladder is not None and row.ladder.images]
        images = ladders[0].images if ladders else 0
        return cls(
            title=f"Leaderboard: {images} images of {plan.data}",
            complete=all(row.complete for row in rows),
            data=plan.data,
            images=images,
            sources=plan.sources,
            settings=plan.settings,
            machine=ladders[0].machine if ladders else {},
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
    named = [row for row in rows if isinstance(row, str | Path | BoardRow)]
    with ExitStack() as held:
        objects = [
            _row_of(each, classifier, held) for each in rows if not isinstance(each, str | Path | BoardRow)
        ]
        found = read_rows([*named, *(row for row, _ in objects)])
        wanted = [row if classifier is None else replace(row, classifier=classifier) for row in found]
        models = {row.name: model for row, model in objects}
        climbs = []
        for row in wanted:
            model = models.get(row.name, row.classifier)
            target = target_from(model, data, None, limit=limit, data_dir=data_dir, device=device)
            climbs.append(_climb_of(row, target, tuple(sources), chosen))
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


def _is_itself(source: str, target: Target) -> bool:
    """Whether a source gives the logits of the attacked classifier, which it then is, whatever its name."""
    images, _ = target.part(range(PROBED))
    loaded = load_classifier(source, device=target.place)
    with torch.no_grad(), evaluating(target.model):
        own, others = ask(target.model, images), ask(loaded, images)
    return own.shape == others.shape and not differ(own, others)


def _climb_of(row: BoardRow, target: Target, sources: tuple[str, ...], settings: BoardSettings) -> Climb:
    """The ladder of a row; refuses too few images, and a classifier or defense that does not take them."""
    images, audited = len(target.images), settings.audit_images
    check_images(images if audited is None else min(images, audited), settings.audit)
    try:
        _ = Cost(target=target, defense=row.defense).manifest
        others = tuple(source for source in sources if not _is_itself(source, target))
        return Climb(target=target, defense=row.defense, settings=settings.ladder, sources=others)
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
                target=replace(target, limit=min(limits, default=None)), defense=main.defense,
                attacks=(attackers.suite,), norm=attackers.norm, eps=attackers.eps,
                settings=replace(settings.audit, seed=attackers.seed),
            )  # fmt: skip
            audit_target(
                study, out=folder / "audit", executor=executor,
                progress=lambda part: report(f"audit: {part}", 0, 1),
            )  # fmt: skip
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

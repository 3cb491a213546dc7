"""`vqshield leaderboard`: many defenses, measured alike, on one page."""

from dataclasses import replace
from typing import Annotated

import typer

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import list_suites
from vqshield.auditing import LEAST_IMAGES
from vqshield.cli.calibrate import calibrated_file
from vqshield.cli.derived import Option, Presets, PythonOnly, Values, python_only
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import DATA, CalibrationImages, Precision, command
from vqshield.cli.resumable import RecordOptions, Resumable, kept_in
from vqshield.core.display_names import NONE
from vqshield.leaderboards.page import PAGE, SUMMARY, board_notes, board_table, write_board
from vqshield.leaderboards.rows import ALL, BoardRow, list_rows, read_rows
from vqshield.leaderboards.study import BoardSettings, BoardSummary
from vqshield.leaderboards.study import leaderboard as measure
from vqshield.runs.study import Progress

FULL, QUICK = BoardSettings(), BoardSettings.quick()
QUICK_IMAGES = LEAST_IMAGES
RESULT = Resumable(
    read=BoardSummary.read,
    tables=lambda summary: [board_table(summary).without("classifier", "made_by").terminal(notes=False)],
    notes=board_notes,
    write=write_board,
    files=f"The page is {{out}}/{PAGE}, figures are in {{out}}/{SUMMARY}",
)


@command(
    measure,
    Presets(FULL, QUICK),
    Presets(FULL.ladder, QUICK.ladder),
    rows=Option(
        type=list[str],
        argument=True,
        help=f"Rows: TOML files, folders of them, {ALL} (the bundled ones), or some of "
        f"{', '.join(list_rows())}. Without any, {ALL}.",
        default=(None, f"stands for {ALL}"),
    ),
    data=DATA,
    sources=Option("source"),
    settings=PythonOnly("made from the options of its fields"),
    ladder=PythonOnly("made from the options of its fields"),
    audit=PythonOnly("made from --quick, --runs and --batch"),
    suite=Option(
        help=f"The white-box suite that is audited, of {', '.join(list_suites())}, or an attack as for "
        "evaluate."
    ),
    calls=Option(
        type=int, help="Model calls per image that query attacks may make.", parse=lambda typed, _: (typed,)
    ),
    selection=PythonOnly("as many as --runs"),
    query_precision=PythonOnly("made from --precision"),
    out=kept_in("vqshield-leaderboard"),
    **python_only(
        "fixed, so that rows compare",
        *("draws", "ignorant", "transfer", "diversity", "own_arch", "own_epochs", "own_batch", "own_seed"),
    ),
)
def leaderboard(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    calibrate: CalibrationImages = None,
    precision: Precision = PRECISIONS[0],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick/--full",
            help=f"Use fewer images ({QUICK_IMAGES}), calls and steps: a few minutes per row on two CPU "
            "cores.",
        ),
    ] = False,
) -> None:
    """Put many defenses through the same attackers, audit each, and write one page that sorts by a click.

    A row is a small TOML file: add yours, and run the same command again in the same folder.
    """
    usual = QUICK if quick else FULL
    ladder = values.settings(usual.ladder, selection=values["runs"] or usual.ladder.selection)
    runs, batch = values["runs"] or usual.audit.runs, values["batch"] or usual.audit.batch
    settings = values.settings(
        usual,
        ladder=ladder.in_precision(precision),
        audit=replace(usual.audit, runs=runs, batch=batch),
    )
    if quick and values["limit"] is None:
        values["limit"] = QUICK_IMAGES
    executor = where.create(values["device"], here=True)

    def run(progress: Progress) -> BoardSummary:
        rows = read_rows(values["rows"] or (ALL,))
        if values["classifier"] is not None:
            rows = [replace(row, classifier=values["classifier"]) for row in rows]
        if calibrate is not None:
            rows = [each for row in rows for each in _with_calibrated(row, calibrate, values)]
        return values.call(
            measure, rows=rows, classifier=None, settings=settings, executor=executor, progress=progress
        )

    RESULT.carry_out(records, run)


def _with_calibrated(row: BoardRow, images: str, values: Values) -> list[BoardRow]:
    """A row, and the same with its classifier calibrated behind its defense."""
    if row.defense == NONE:
        return [row]
    file = values.call(
        calibrated_file, classifier=row.classifier, defense=row.defense, images=images
    ).absolute()
    name, title = f"{row.name}-calibrated", f"{row.shown}, calibrated"
    return [row, replace(row, name=name, classifier=str(file), title=title)]

"""`vqshield leaderboard`: many defenses, measured alike, on one page."""

from dataclasses import replace

from vqshield.attacks import PRECISIONS
from vqshield.auditing import LEAST_IMAGES
from vqshield.cli.calibrate import calibrated_file
from vqshield.cli.derived import Option, Presets, PythonOnly, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.ladder import DECLARED
from vqshield.cli.options import DATA, CalibrationImages, Precision, Quick, command
from vqshield.cli.resumable import RecordOptions, carry_out, kept_in
from vqshield.cli.unused import rendered_only
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.progress import Progress
from vqshield.leaderboards.page import PAGE, SUMMARY, board_notes, board_table, write_board
from vqshield.leaderboards.rows import ALL, BoardRow, list_rows, read_rows
from vqshield.leaderboards.study import BoardSettings, BoardSummary
from vqshield.leaderboards.study import leaderboard as measure

FULL, QUICK = BoardSettings(), BoardSettings.quick()
QUICK_IMAGES = LEAST_IMAGES
UNUSED = (rendered_only(),)


@command(
    measure,
    Presets(FULL, QUICK),
    Presets(FULL.ladder, QUICK.ladder),
    rows=Option(
        type=list[str],
        argument=True,
        help=f"Rows: TOML files, folders of them, {ALL} (the bundled ones), or some of "
        f"{', '.join(list_rows())}. Without any, {ALL}.",
        default=(None, f"means {ALL}"),
    ),
    data=DATA,
    ladder=PythonOnly("made from the options of its fields"),
    audit=PythonOnly("made from --quick, --samples and --batch"),
    audit_images=Option("audit_limit"),
    calls=Option(
        type=int, help="Model calls per image that query attacks may make.", parse=lambda typed, _: (typed,)
    ),
    limit=Option(help=f"Use the first N images (default: all; with --quick {QUICK_IMAGES})."),
    out=kept_in("leaderboard"),
    **DECLARED,
    **dict.fromkeys(("own_arch", "own_epochs"), PythonOnly("no row has a network of its own")),
)
def leaderboard(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    calibrate: CalibrationImages = None,
    precision: Precision = PRECISIONS[0],
    quick: Quick = False,
) -> None:
    """Measure many defenses alike, and compare them on one page.

    Each goes through the same attackers and is audited. A row is a small TOML file: add yours, and run the
    same command again in the same folder.
    """
    usual = QUICK if quick else FULL
    ladder = values.settings(usual.ladder, selection=values["runs"] or usual.ladder.selection)
    audit = values.settings(usual.audit, seed=usual.audit.seed)
    settings = values.settings(usual, ladder=ladder.in_precision(precision), audit=audit)
    if quick and values["limit"] is None:
        values["limit"] = QUICK_IMAGES
    executor = where.create(values["device"], here=True)

    def run(progress: Progress) -> BoardSummary:
        rows = read_rows(values["rows"] or (ALL,))
        if values["classifier"] is not None:
            rows = [replace(row, classifier=values["classifier"]) for row in rows]
        if calibrate is not None:
            if {row.defense for row in rows} == {NONE}:
                raise InvalidInputError("--calibrate given without a row that has a defense; add one")
            rows = [shown for row in rows for shown in _with_calibrated(row, calibrate, values)]
        return values.call(
            measure, rows=rows, classifier=None, settings=settings, executor=executor, progress=progress
        )

    carry_out(
        records,
        run,
        read=BoardSummary.read,
        tables=lambda summary: [board_table(summary).without("classifier", "made_by").terminal(notes=False)],
        notes=board_notes,
        write=write_board,
        plain=BoardSummary.plain,
        files=f"The page is {{out}}/{PAGE}, results are in {{out}}/{SUMMARY}",
    )


def _with_calibrated(row: BoardRow, images: str, values: Values) -> list[BoardRow]:
    """A row, and the same with its classifier calibrated behind its defense."""
    if row.defense == NONE:
        return [row]
    file = values.call(calibrated_file, classifier=row.classifier, defense=row.defense, images=images)
    name, title = f"{row.name}-calibrated", f"{row.shown}, calibrated"
    return [row, replace(row, name=name, classifier=str(file.absolute()), title=title)]

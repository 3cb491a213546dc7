"""`vqshield ladder`: against which attackers a defense protects, and at what cost for the attacker."""

from pathlib import Path

from vqshield.attacks import PRECISIONS
from vqshield.classifiers import named_defense
from vqshield.classifiers.sources import BUNDLED, HARDENED
from vqshield.cli.calibrate import calibrated_file
from vqshield.cli.derived import Option, Presets, PythonOnly, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import ATTACKS, SAMPLES, CalibrationImages, Precision, Quick, command
from vqshield.cli.resumable import RecordOptions, carry_out, kept_in, write_summary
from vqshield.cli.unused import Unused, option_is, rendered_only
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.core.progress import Progress
from vqshield.ladders.page import ladder_notes, ladder_table, render_ladder
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import BARE, LadderSummary
from vqshield.ladders.study import ladder as measure

FULL, QUICK = LadderSettings(), LadderSettings.quick()
QUICK_IMAGES = 32
BUNDLED_ONES = (BUNDLED, HARDENED)
DECLARED: dict[str, Option | PythonOnly] = {
    "sources": Option("source"),
    "settings": PythonOnly("made from the options of its fields"),
    "suite": Option("attack", help=f"The white-box attack, which leaderboard audits: {ATTACKS}."),
    "runs": SAMPLES,
    "selection": PythonOnly("as many as --samples"),
    "query_precision": PythonOnly("made from --precision"),
    **dict.fromkeys(
        ("draws", "ignorant", "transfer", "diversity", "own_batch", "own_seed"),
        PythonOnly("fixed, so that results compare"),
    ),
}
"""Of ladders, alone or as rows of a leaderboard."""
UNUSED = (
    rendered_only(),
    Unused("without --train-dir", option_is("train_dir", None), "train_data own_arch own_epochs"),
)


def _write(out: Path, summary: LadderSummary) -> None:
    write_summary(out, summary)
    write_atomically(out / "report.html", render_ladder(summary).encode())


@command(
    measure,
    Presets(FULL, QUICK),
    controls=Option("control"),
    calls=Option(parse=lambda typed, _: tuple(sorted(typed))),
    limit=Option(help=f"Use the first N images (default: all; with --quick {QUICK_IMAGES})."),
    out=kept_in("ladder"),
    **DECLARED,
)
def ladder(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    calibrate: CalibrationImages = None,
    precision: Precision = PRECISIONS[0],
    quick: Quick = False,
) -> None:
    """Attack a defense with attackers who know more and more.

    From transferred images to the white-box: one table and one page. Each rung says what its attacker has to
    know, how often they query the model, and how long it took. With --quick and a bundled classifier, the
    other bundled one is the source of transferred images.
    """
    usual = QUICK if quick else FULL
    settings = values.settings(usual, selection=values["runs"] or usual.selection).in_precision(precision)
    if quick and values["limit"] is None:
        values["limit"] = QUICK_IMAGES
    if quick and not values["sources"] and values["model"] in BUNDLED_ONES:  # the first ladder has every rung
        values["sources"] = [name for name in BUNDLED_ONES if name != values["model"]]
    executor = where.create(values["device"])

    def run(progress: Progress) -> LadderSummary:
        if calibrate is not None:
            values["controls"] = _with_calibrated(values, calibrate)
        return values.call(measure, settings=settings, executor=executor, progress=progress)

    carry_out(
        records,
        run,
        read=LadderSummary.read,
        tables=lambda summary: [ladder_table(summary).without("knows").terminal(notes=False)],
        notes=ladder_notes,
        write=_write,
        files="The page is {out}/report.html, results are in {out}/summary.json",
    )


def _with_calibrated(values: Values, images: str) -> list[str]:
    """The baselines, the calibrated classifier among them."""
    classifier = values["model"]
    behind = values["defense"] or named_defense(classifier) or NONE
    if behind == NONE:
        raise InvalidInputError("--calibrate given without a defense; give --defense")
    file = values.call(calibrated_file, classifier=classifier, defense=behind, images=images)
    return [*(values["controls"] or [f"{BARE}={classifier}"]), f"calibrated={file}+{behind}"]

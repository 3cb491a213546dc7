"""`vqshield evaluate`: the accuracy of a classifier under attacks, with and without a defense."""

from pathlib import Path

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import with_precision
from vqshield.cli.calibrate import calibrated_spec
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import ATTACKS, CalibrationImages, Precision, command
from vqshield.cli.resumable import RecordOptions, carry_out, kept_in, write_summary
from vqshield.cli.unused import PRECISE, Unused, rendered_only
from vqshield.core.files import write_atomically
from vqshield.core.progress import Progress
from vqshield.evaluation.gallery import Gallery
from vqshield.evaluation.page import caveats, evaluation_table, render_evaluation
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.study import evaluate as measure
from vqshield.evaluation.summary import CURVE, EvaluationSummary

UNUSED = (
    rendered_only(),
    Unused(
        "without --attack",
        lambda typed: not typed["attack"],
        "norm eps selection precision curve pictures",
    ),
    PRECISE,
)


@command(
    measure,
    attacks=Option("attack", help=f"O{ATTACKS[1:]} (default: only clean accuracy)."),
    batch_norm=PythonOnly("made from --calibrate"),
    out=kept_in("evaluate"),
    pictures=Option(
        default=(4, "a command writes a page"),
        help="Attack N images again for pictures on the page.",
    ),
)
def evaluate(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    calibrate: CalibrationImages = None,
    precision: Precision = PRECISIONS[0],
) -> None:
    """Measure the accuracy of a classifier under attacks.

    Prints a table; writes a page, summary.json, and records.jsonl with a line for every image.
    """
    executor = where.create(values["device"])

    def run(progress: Progress) -> EvaluationSummary:
        return values.call(
            measure,
            attacks=[with_precision(attack, precision) for attack in values["attacks"] or ()],
            batch_norm=calibrated_spec(values["model"], values["defense"], calibrate),
            executor=executor,
            progress=progress,
        )

    carry_out(
        records,
        run,
        read=_read,
        tables=lambda summary: [evaluation_table(summary).terminal()],
        notes=caveats,
        write=_write,
        files="The page is {out}/report.html, results are in {out}/summary.json and records.jsonl",
    )


def _read(out: Path) -> EvaluationSummary:
    points = [Evaluation.read(each.parent) for each in (out / CURVE).glob("*/manifest.json")]
    return EvaluationSummary.of(Evaluation.read(out)).with_curve(points)


def _write(out: Path, summary: EvaluationSummary) -> None:
    write_summary(out, summary)
    html = render_evaluation(summary, Evaluation.read(out), Gallery.read(out))
    write_atomically(out / "report.html", html.encode())

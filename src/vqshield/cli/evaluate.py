"""`vqshield evaluate`: the accuracy of a classifier under attacks, with and without a defense."""

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import with_precision
from vqshield.cli.calibrate import calibrated_spec
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import ATTACKS, CalibrationImages, Precision, command
from vqshield.cli.resumable import RecordOptions, carry_out, kept_in
from vqshield.cli.unused import PRECISE, Unused, rendered_only
from vqshield.core.progress import Progress
from vqshield.evaluation.page import caveats, evaluation_table
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.study import evaluate as measure
from vqshield.evaluation.summary import EvaluationSummary

UNUSED = (
    rendered_only(),
    Unused("without --attack", lambda typed: not typed["attack"], "norm eps selection precision"),
    PRECISE,
)


@command(
    measure,
    attacks=Option("attack", help=f"A{ATTACKS[1:]} (default: none, clean accuracy alone)."),
    batch_norm=PythonOnly("made from --calibrate"),
    out=kept_in("evaluate"),
)
def evaluate(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    calibrate: CalibrationImages = None,
    precision: Precision = PRECISIONS[0],
) -> None:
    """Measure the accuracy of a classifier under attacks.

    Prints a table; writes summary.json, and records.jsonl with a line for every image.
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
        read=lambda out: EvaluationSummary.of(Evaluation.read(out)),
        tables=lambda summary: [evaluation_table(summary).terminal()],
        notes=caveats,
    )

"""`vqshield evaluate`: the accuracy of a classifier under attacks, with and without a defense."""

from vqshield.attacks import PRECISIONS, list_attacks
from vqshield.attacks.suites import list_suites, with_precision
from vqshield.cli.calibrate import calibrated_spec
from vqshield.cli.derived import Option, PythonOnly, Values
from vqshield.cli.executors import ExecutorOptions
from vqshield.cli.options import CalibrationImages, Precision, command
from vqshield.cli.resumable import RecordOptions, Resumable, kept_in
from vqshield.evaluation.page import caveats, evaluation_table
from vqshield.evaluation.study import Evaluation, EvaluationSummary
from vqshield.evaluation.study import evaluate as measure
from vqshield.runs.study import Progress

RESULT = Resumable(
    read=lambda out: EvaluationSummary.of(Evaluation.read(out)),
    tables=lambda summary: [evaluation_table(summary).terminal()],
    notes=caveats,
)


@command(
    measure,
    attacks=Option(
        "attack",
        help=f"An attack, of {', '.join(list_attacks())}, as in pgd:steps=20,eot=5,surrogate=soft "
        f"(surrogate=none: ignores the defense), or a suite, of {', '.join(list_suites())} (default: none, "
        "clean accuracy alone).",
    ),
    batch_norm=PythonOnly("made from --calibrate"),
    out=kept_in("vqshield-evaluation"),
)
def evaluate(
    values: Values,
    where: ExecutorOptions,
    records: RecordOptions,
    calibrate: CalibrationImages = None,
    precision: Precision = PRECISIONS[0],
) -> None:
    """Attack a defended classifier: a table, summary.json, and records.jsonl with a line for every image."""
    executor = where.create(values["device"])

    def run(progress: Progress) -> EvaluationSummary:
        return values.call(
            measure,
            attacks=[with_precision(each, precision) for each in values["attacks"] or ()],
            batch_norm=calibrated_spec(values["model"], values["defense"], calibrate),
            executor=executor,
            progress=progress,
        )

    RESULT.carry_out(records, run)

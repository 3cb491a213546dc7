"""`vqshield gate`: measure what a policy names, and fail a build that is worse by more than noise."""

from pathlib import Path
from typing import Annotated

import typer

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import Option, Values
from vqshield.cli.options import command
from vqshield.cli.output import AsJson, show, show_json
from vqshield.cli.resumable import set_aside
from vqshield.core.errors import InvalidInputError
from vqshield_deploy.gating.gate import gate as run_gate
from vqshield_deploy.gating.reports import JSON, JUNIT, MARKDOWN, write_gate

Fresh = Annotated[bool, typer.Option("--fresh", help="Set what is in --out aside, and measure again.")]


@command(run_gate, policy=Option(argument=True, metavar="POLICY.toml"))
def gate(values: Values, fresh: Fresh = False, as_json: AsJson = False) -> None:
    """Fail a build where robustness is worse.

    Measures the runs of a policy, and compares them with thresholds or with earlier runs on the same images.
    Writes gate.json, junit.xml and summary.md. Ends with 0 (ok), 1 (worse) or 2 (could not measure).
    """
    out = Path(values["out"])
    try:
        if fresh:
            set_aside(out)
        with progress_bar(hidden=as_json) as progress:
            report = values.call(run_gate, progress=progress)
        write_gate(out, report)
    except Exception as error:  # status 1 says that the model is worse, and nothing else
        raise InvalidInputError(f"could not measure: {error}") from error
    if as_json:
        show_json(report)
    else:
        show(report.table.terminal(), *report.notes, "", f"Results in {out}: {JSON}, {JUNIT}, {MARKDOWN}")
    raise typer.Exit(report.exit_code)

"""`vqshield certify --norm l1`: the exact certificate of a splitting."""

import json
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from vqshield.certification.l1 import L1Certification, certify_l1
from vqshield.certification.summary import L1Summary
from vqshield.cli.resumable import run_to_end, set_aside, write_summary
from vqshield.core.serialization import to_plain
from vqshield.runs.executors import Executor
from vqshield.runs.study import Progress


def certify_exactly(
    classifier: str,
    data: str,
    *,
    defense: str | None,
    after: str | None,
    radii: Sequence[float],
    seed: int,
    batch: int,
    precision: str,
    limit: int | None,
    data_dir: Path | None,
    device: str,
    out: Path,
    fresh: bool,
    summary_only: bool,
    as_json: bool,
    executor: Executor | None,
) -> None:
    """Run or sum up, and show the table."""

    def stored() -> L1Summary:
        return L1Summary.of(L1Certification.read(out), radii=radii)

    def run(progress: Progress) -> L1Summary:
        return certify_l1(
            classifier, data, defense=defense, after=after, radii=radii, seed=seed, batch=batch,
            precision=precision, limit=limit, data_dir=data_dir, device=device, out=out, executor=executor,
            progress=progress,
        )  # fmt: skip

    if fresh and not summary_only:
        set_aside(out)
    summary = stored() if summary_only else run_to_end(run, stored, out, hidden=as_json)
    write_summary(out, summary)
    if as_json:
        typer.echo(json.dumps(to_plain(summary), indent=1))
        return
    console = Console()
    for table in summary.tables():
        console.print(table.terminal())
    for line in summary.caveats():
        console.print(line, markup=False, highlight=False)
    typer.echo(f"\nFigures in {out / 'summary.json'}, every image in {out / 'records.jsonl'}")

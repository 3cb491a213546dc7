"""`vqshield leaderboard`: many defenses, measured alike, on one page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import list_suites
from vqshield.auditing import LEAST_IMAGES
from vqshield.cli.calibrate import CalibrationImages, calibrated_file
from vqshield.cli.executors import (
    Address,
    ExecutorName,
    Retries,
    TaskCpus,
    TaskGpus,
    Workers,
    executor_for,
)
from vqshield.cli.options import (
    AsJson,
    Data,
    DataDir,
    Device,
    Eps,
    Fresh,
    Limit,
    Norm,
    Precision,
    Seed,
    SummaryOnly,
    UsualBatch,
    UsualRuns,
    parse_eps,
)
from vqshield.cli.resumable import run_to_end, set_aside
from vqshield.core.display_names import NONE
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.leaderboards.page import PAGE, SUMMARY, board_notes, board_table, write_board
from vqshield.leaderboards.rows import ALL, BoardRow, list_rows, read_rows
from vqshield.leaderboards.study import BoardSettings, BoardSummary
from vqshield.leaderboards.study import leaderboard as measure
from vqshield.runs.study import Progress

FULL, QUICK = BoardSettings(), BoardSettings.quick()
QUICK_IMAGES = LEAST_IMAGES


def leaderboard(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Rows: TOML files, folders of them, {ALL} (the bundled ones), or some of "
            f"{', '.join(list_rows())}. Without any, {ALL}."
        ),
    ] = None,
    classifier: Annotated[
        str | None, typer.Option(help="One classifier for all rows, instead of their own.")
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="A classifier that the transfer attacker holds; may be repeated. Without any, small-cifar10 "
            "where the data are CIFAR-10. A row's own classifier is left out."
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help=f"The white-box attack that is audited, of {', '.join(list_suites())}, or an attack as for "
            f"evaluate; without it, {FULL.ladder.suite}, with --quick {QUICK.ladder.suite}."
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(
            help="Calls of the model for an image that query attacks may make; without it, "
            f"{FULL.ladder.calls[-1]}, with --quick {QUICK.ladder.calls[-1]}."
        ),
    ] = None,
    audit_images: Annotated[
        int | None,
        typer.Option(help=f"The first images that are audited; without it, {FULL.audit_images}, or --limit."),
    ] = None,
    calibrate: CalibrationImages = None,
    data: Data = SAMPLE_NAME,
    data_dir: DataDir = None,
    norm: Norm = FULL.ladder.norm,
    eps: Eps = None,
    limit: Limit = None,
    runs: UsualRuns = None,
    seed: Seed = FULL.ladder.seed,
    batch: UsualBatch = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick/--full",
            help=f"Fewer images ({QUICK_IMAGES}), calls and steps: a few minutes per row on two CPU cores.",
        ),
    ] = False,
    precision: Precision = PRECISIONS[0],
    device: Device = "auto",
    executor: ExecutorName = "local",
    workers: Workers = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    retries: Retries = None,
    out: Annotated[
        Path,
        typer.Option(help="Folder for records, page and summary; a run that was stopped goes on there."),
    ] = Path("vqshield-leaderboard"),
    fresh: Fresh = False,
    summary_only: SummaryOnly = False,
    as_json: AsJson = False,
) -> None:
    """Put many defenses through the same attackers, audit each, and write one page that sorts by a click.

    A row is a small TOML file: add yours, and run the same command again in the same folder.
    """
    usual = QUICK if quick else FULL
    settings = replace(
        usual,
        ladder=replace(
            usual.ladder,
            norm=norm,
            eps=None if eps is None else parse_eps(eps, norm),
            suite=suite or usual.ladder.suite,
            calls=(calls,) if calls else usual.ladder.calls,
            runs=runs or usual.ladder.runs,
            selection=runs or usual.ladder.selection,
            seed=seed,
            batch=batch or usual.ladder.batch,
        ).in_precision(precision),
        audit=replace(usual.audit, runs=runs or usual.audit.runs, batch=batch or usual.audit.batch),
        audit_images=audit_images or usual.audit_images,
    )

    def run(progress: Progress) -> BoardSummary:
        given = read_rows(rows or (ALL,))
        board = given if classifier is None else [replace(row, classifier=classifier) for row in given]
        if calibrate is not None:
            board = [
                each for row in board for each in _with_calibrated(row, calibrate, data_dir, device, out)
            ]
        return measure(
            out, board, data=data, data_dir=data_dir, sources=source,
            settings=settings, limit=QUICK_IMAGES if quick and limit is None else limit, device=device,
            progress=progress,
            executor=executor_for(
                executor, device=device, here=True, workers=workers, address=address, cpus=task_cpus,
                gpus=task_gpus, retries=retries,
            ),
        )  # fmt: skip

    def stored() -> BoardSummary:
        return BoardSummary.read(out)

    if fresh and not summary_only:
        set_aside(out)
    summary = stored() if summary_only else run_to_end(run, stored, out, hidden=as_json, write=write_board)
    write_board(out, summary)
    if as_json:
        typer.echo(json.dumps(to_plain(summary), indent=1))
        return
    Console().print(board_table(summary).without("classifier", "made_by").terminal(notes=False))
    for line in board_notes(summary):
        typer.echo(line)
    typer.echo(f"\nThe page is {out / PAGE}, figures are in {out / SUMMARY}")


def _with_calibrated(
    row: BoardRow, images: str, data_dir: Path | None, device: str, out: Path
) -> list[BoardRow]:
    """A row, and the same with its classifier calibrated behind its defense."""
    if row.defense == NONE:
        return [row]
    name = f"{row.name}-calibrated"
    file = calibrated_file(row.classifier, row.defense, images, data_dir=data_dir, device=device, out=out)
    return [row, replace(row, name=name, classifier=str(file.absolute()), title=f"{row.shown}, calibrated")]

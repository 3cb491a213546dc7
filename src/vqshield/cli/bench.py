"""`vqshield bench`: how fast the shield is on this machine, beside other k-means."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn
from rich.table import Table
from rich.text import Text

from vqshield.bench import Bench, BenchRecord, BenchRow, BenchSettings, list_implementations, list_workloads
from vqshield.cli.bars import progress_bar
from vqshield.errors import InvalidInputError
from vqshield.files import write_json
from vqshield.plain import to_plain

SHOWN = {"ten": "10 iterations, random start", "default": "default settings"}


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="A selection, within a minute on two cores.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: the GPU where there is one.")] = "auto",
    workload: Annotated[
        list[str] | None, typer.Option(help=f"Only these, of {', '.join(list_workloads())}; may be repeated.")
    ] = None,
    implementation: Annotated[
        list[str] | None, typer.Option(help=f"Only these, of {', '.join(list_implementations())}.")
    ] = None,
    threads: Annotated[
        str, typer.Option(help="Numbers of threads, as in 1,2; without it one and all (quick: all).")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json, the whole record.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Measure images a second of every backend and of the k-means libraries that are installed."""
    settings = BenchSettings(
        quick=quick,
        device=device,
        workloads=_names(workload),
        implementations=_names(implementation),
        threads=_numbers(threads),
    )
    with progress_bar(
        "{task.description:44}", hidden=as_json, amount=MofNCompleteColumn(), transient=True
    ) as bar:
        task = bar.add_task("starting", total=None)
        measured = Bench(settings, lambda doing: bar.update(task, description=doing, advance=1))
        bar.update(task, total=measured.count, completed=-1)  # a measurement is reported when it begins
        try:
            measured.run()
        finally:  # what is finished is kept, on Ctrl-C too
            if out is not None:
                write_json(out / "bench.json", to_plain(measured.record()))
    record = measured.record()
    if as_json:
        typer.echo(json.dumps(to_plain(record), indent=1))
    else:
        _show(record, Console())


def _names(given: list[str] | None) -> tuple[str, ...]:
    """Names from an option that may be repeated or hold several between commas."""
    return tuple(name.strip() for each in given or () for name in each.split(",") if name.strip())


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise InvalidInputError(
            f"threads={text!r} should be whole numbers between commas, as in 1,2"
        ) from error


def _show(record: BenchRecord, console: Console) -> None:
    machine = record.machine
    table = Table(title=f"Images a second on {machine.processor}, {machine.device}")
    table.add_column("implementation", overflow="fold")
    for heading in ("threads", "images/s", "result ÷ ours", "of peak"):
        # A number that is cut short is a wrong number.
        table.add_column(heading, justify="right", no_wrap=True)
    groups: dict[str, list[BenchRow]] = {}
    for row in record.rows:
        title = f"{row.workload} {row.step}, {SHOWN[row.settings]}"
        groups.setdefault(title, []).append(row)
    for title, rows in groups.items():
        table.add_section()
        table.add_row(Text(title, style="bold"))
        for row in rows:
            ratio = row.inertia_ratio if row.step == "kmeans" else row.distortion_ratio
            table.add_row(
                f"  {row.implementation}{' *' if row.note else ''}",
                str(row.threads),
                _rate(row.images_per_second),
                "not finite" if ratio is None else f"{ratio:.4f}",
                "" if row.share_of_peak is None else f"{row.share_of_peak:.1%}",
            )
    console.print(table)
    for row in record.rows:
        if row.note:
            console.print(f"* {row.workload} {row.implementation} {row.step}: {row.note}")
    for each in record.classifier_ratios:
        if each.settings == "default":
            console.print(
                f"{each.workload}: {each.implementation} with default settings takes "
                f"{each.share_of_forward:.1%} of ResNet18's time ({each.threads} threads)"
            )
    for skipped in record.skipped:
        console.print(f"not measured: {skipped.name} ({skipped.reason})")


def _rate(images: float) -> str:
    return f"{images:,.0f}" if images >= 100 else f"{images:.1f}"

"""`vqshield demo`: what the shield does and does not do, in about two minutes."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vqshield.cli.bars import progress_bar
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.demo.page import FOR_WHOM, demo_table, render_demo
from vqshield.demo.study import Demo, DemoSettings

DEFAULT = DemoSettings()


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the figures.")] = Path("vqshield-demo"),
    images: Annotated[int, typer.Option(help="How many of the 500 bundled images.")] = DEFAULT.images,
    steps: Annotated[int, typer.Option(help="Steps of each attack.")] = DEFAULT.steps,
    draws: Annotated[int, typer.Option(help="Draws averaged by the informed attack.")] = DEFAULT.draws,
    runs: Annotated[int, typer.Option(help="Fresh draws behind each figure.")] = DEFAULT.runs,
    calls: Annotated[
        int, typer.Option(help="Calls of the model an image, for the attacker who asks.")
    ] = DEFAULT.calls,
    seed: Annotated[int, typer.Option(help="Seed of defenses and attacks.")] = DEFAULT.seed,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Attack the bundled classifier with and without each shield: a table, and a page with pictures."""
    settings = DemoSettings(images=images, steps=steps, draws=draws, runs=runs, calls=calls, seed=seed)
    with progress_bar("{task.description:10}", hidden=as_json) as bar:
        task = bar.add_task("starting", total=None)
        measured = Demo(settings, lambda doing, count: bar.update(task, description=doing, advance=count))
        bar.update(task, total=measured.work)
        try:
            measured.run()
        finally:  # what is finished is kept, on Ctrl-C too
            _write(measured, out)
    summary = measured.summary()
    if as_json:
        typer.echo(json.dumps(to_plain(summary), indent=1))
        return
    for sentence in FOR_WHOM:
        typer.echo(sentence)
    Console().print(demo_table(summary).terminal(notes=False))
    for sentence in summary.sentences:
        typer.echo(sentence)
    typer.echo(f"\nPictures and details in {out / 'report.html'}, figures in {out / 'summary.json'}")


def _write(measured: Demo, out: Path) -> None:
    if not measured.rows:
        return
    summary = measured.summary()
    write_json(out / "summary.json", to_plain(summary))
    write_atomically(out / "report.html", render_demo(summary, measured.gallery()).encode())

"""`vqshield demo`: what defenses do and do not do, in about two minutes."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import PythonOnly, Values, derived
from vqshield.cli.options import AsJson
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.demo.page import FOR_WHOM, demo_table, render_demo
from vqshield.demo.study import Demo, DemoSettings


@derived(DemoSettings, eps=PythonOnly("the page speaks of 8/255"))
def demo(
    values: Values,
    out: Annotated[Path, typer.Option(help="Folder for the page and the results.")] = Path("vqshield-demo"),
    as_json: AsJson = False,
) -> None:
    """Attack the bundled classifier with and without each shield: a table, and a page with pictures."""
    settings = values.call(DemoSettings)
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

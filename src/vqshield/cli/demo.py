"""`vqshield demo`: what defenses do and do not do, in about two minutes."""

from pathlib import Path
from typing import Annotated

import typer

from vqshield.cli.bars import progress_bar
from vqshield.cli.derived import PythonOnly, Values, derived
from vqshield.cli.output import AsJson, show, show_json
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import to_plain
from vqshield.demo.page import FOR_WHOM, demo_table, render_demo
from vqshield.demo.study import Demo, DemoSettings


@derived(
    DemoSettings,
    eps=PythonOnly("the page speaks of 8/255"),
)
def demo(
    values: Values,
    out: Annotated[Path, typer.Option(help="Folder for the page and the results.")] = Path("vqshield-demo"),
    as_json: AsJson = False,
) -> None:
    """See in two minutes what defenses stop and do not stop.

    Attacks the bundled classifier with and without each defense: a table, and a page with pictures.
    """
    with progress_bar(hidden=as_json) as progress:
        measured = Demo(values.call(DemoSettings), progress)
        try:
            measured.run()
        finally:  # what is finished is kept, on Ctrl-C too
            if measured.rows:
                summary = measured.summary()
                write_json(out / "summary.json", to_plain(summary))
                write_atomically(out / "report.html", render_demo(summary, measured.gallery()).encode())
    if as_json:
        show_json(summary)
        return
    show(*FOR_WHOM, demo_table(summary).terminal(notes=False), *summary.sentences)
    show("", f"Pictures and details in {out / 'report.html'}, results in {out / 'summary.json'}")

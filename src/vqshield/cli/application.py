"""The typer application: which commands there are, and how an error or Ctrl-C ends any of them."""

import errno
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import vqshield
from vqshield.cli.audit import audit
from vqshield.cli.bench import bench
from vqshield.cli.certify import certify
from vqshield.cli.demo import demo
from vqshield.cli.download import download
from vqshield.cli.evaluate import evaluate
from vqshield.cli.list import list_registered
from vqshield.cli.purify import purify
from vqshield.cli.reproduce import report, reproduce
from vqshield.cli.train import train
from vqshield.errors import VqshieldError, printable

FAILED = 1  # nothing was wrong with the command: a full disk, no permission
BAD_INPUT = 2  # the code that typer itself uses for a wrong option
INTERRUPTED = 130  # what shells expect after Ctrl-C


class PlainEndings(TyperGroup):
    """A command group whose expected failures end in one line on stderr, never in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except VqshieldError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from error
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # not the system's, or typer's own business: `| head`
                raise
            typer.echo(
                f"error: {error.strerror}" + (f": {printable(error.filename)}" if error.filename else ""),
                err=True,
            )
            raise typer.Exit(FAILED) from error
        except KeyboardInterrupt as error:
            typer.echo(": ".join(filter(None, ["interrupted", str(error)])), err=True)
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    cls=PlainEndings,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Shield an image classifier by vector quantization, and see which attacks it stops and which not.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vqshield {vqshield.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    pass


app.command("demo")(demo)
app.command("evaluate")(evaluate)
app.command("certify")(certify)
app.command("reproduce")(reproduce)
app.command("report")(report)
app.command("purify")(purify)
app.command("train")(train)
app.command("list")(list_registered)
app.command("bench")(bench)
app.command("audit")(audit)
app.command("download")(download)

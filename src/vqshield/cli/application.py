"""The typer application: which commands there are, and how an error, Ctrl-C or SIGTERM ends any of them.

A command's file is imported when the command is called: `vqshield --help` does not wait for torch.
"""

import ast
import errno
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import vqshield
from vqshield.cli.unused import Unused, refuse_unused
from vqshield.core.errors import InvalidInputError, VqshieldError, printable

Click = Any
"""An object of click, which typer has under a private name."""
FAILED = 1  # nothing was wrong with the command: a full disk, no permission
BAD_INPUT = 2  # the code that typer itself uses for a wrong option
INTERRUPTED, TERMINATED = 130, 143  # what shells expect after Ctrl-C, and after SIGTERM

GROUPS = {
    "Start": ("demo", "app", "doctor", "list"),
    "Protect": ("calibrate", "harden", "purify", "export", "serve"),
    "Measure": ("evaluate", "audit", "ladder", "leaderboard", "certify", "gate", "compare", "bench"),
    "Paper": ("reproduce", "train", "download"),
}
"""The commands in the order of the help. Each is a function of its name in the module of its name."""
ADDED = "vqshield.commands"
"""The group of entry points for commands of other distributions."""
ELSEWHERE = {
    "app": "app", "compare": "deploy", "export": "deploy", "gate": "deploy", "serve": "deploy",
    "reproduce": "paper", "train": "paper",
}  # fmt: skip
"""Commands of other distributions, vqshield-FOLDER, with their folders in this repository."""


@cache
def commands() -> dict[str, str]:
    """All commands with their modules, those of other installed distributions among them."""
    names = [name for group in GROUPS.values() for name in group]
    ours = {name: f"vqshield.cli.{name}:{name}" for name in names if name not in ELSEWHERE}
    ours["list"] += "_registered"  # list alone is Python's
    added = {point.name: point.value for point in entry_points(group=ADDED)}
    known = ours | added
    return {name: known[name] for name in [*names, *sorted({*added} - {*names})] if name in known}


class ToStderr(logging.Handler):
    """Log lines on whatever stderr is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {record.getMessage()}", err=True)


class LazyCommands(TyperGroup):
    """A command group that imports a command when it is called, and ends expected failures in one line."""

    _listing = False

    def list_commands(self, ctx: Click) -> list[str]:
        return list(commands())

    def get_command(self, ctx: Click, cmd_name: str) -> Click:
        if cmd_name not in commands():
            if folder := ELSEWHERE.get(cmd_name):
                raise InvalidInputError(
                    f"`vqshield {cmd_name}` is a command of vqshield-{folder}, which is not installed; in a "
                    f"clone: pip install ./{folder} -c constraints.txt"
                )
            return None
        if self._listing:
            group = next((group for group, names in GROUPS.items() if cmd_name in names), "Other")
            return TyperCommand(cmd_name, help=command_help(cmd_name), rich_help_panel=group)
        return load_command(cmd_name)

    def format_help(self, ctx: Click, formatter: Click) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def invoke(self, ctx: Click) -> object:
        """Run the chosen command; an expected failure ends in one line on stderr, never in a traceback."""
        terminations: list[int] = []
        try:
            with _sigterm_interrupts(terminations):
                return super().invoke(ctx)
        except VqshieldError as error:
            _explain(f"error: {error}")
            raise typer.Exit(BAD_INPUT) from error
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # not the system's, or typer's own business: `| head`
                raise
            place = f": {printable(error.filename)}" if error.filename else ""
            _explain(f"error: {error.strerror}{place}")
            raise typer.Exit(FAILED) from error
        except KeyboardInterrupt as error:
            how, code = ("terminated", TERMINATED) if terminations else ("interrupted", INTERRUPTED)
            _explain(": ".join(filter(None, [how, str(error)])))
            raise typer.Exit(code) from error


def _explain(text: str) -> None:
    from vqshield.cli.output import show  # here, so that --help does not wait for rich

    show(text, err=True)


@contextmanager
def _sigterm_interrupts(received: list[int]) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that a command sums up what is finished; add the signal to the list."""

    def interrupt(number: int, _: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends it twice: the summary is written
        received.append(number)
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class StrictCommand(TyperCommand):
    """A command that refuses options without effect."""

    def invoke(self, ctx: Click) -> object:
        refuse_unused(unused_options(self.name or ""), ctx)
        return super().invoke(ctx)


def command_function(name: str) -> Callable[..., None]:
    """The function behind a command."""
    module, _, function = commands()[name].partition(":")
    found: Callable[..., None] = getattr(import_module(module), function)
    return found


def unused_options(name: str) -> Sequence[Unused]:
    """The options of a command that some values of others leave without effect."""
    rules: Sequence[Unused] = getattr(import_module(commands()[name].partition(":")[0]), "UNUSED", ())
    return rules


def command_help(name: str) -> str:
    """The docstring of a command, read from its file without importing it."""
    module, _, function = commands()[name].partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return ast.get_docstring(node) or ""
    return ""


def load_command(name: str) -> Click:
    """The command itself, its file imported now."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(name, cls=StrictCommand)(command_function(name))
    command = typer.main.get_command(alone)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyCommands,
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Defend an image classifier by vector quantization, and measure which attacks this stops.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from vqshield.quantization.kernels import kernel_name
        from vqshield.runs.code import commit

        typer.echo(f"vqshield {vqshield.__version__}, commit {commit() or 'unknown'}, {kernel_name('auto')}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every finished step.")] = False,
) -> None:
    log = logging.getLogger("vqshield")
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    if not any(isinstance(handler, ToStderr) for handler in log.handlers):
        log.addHandler(ToStderr())

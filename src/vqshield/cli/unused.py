"""Options that have no effect next to others: refused when they are typed, never silently ignored.

The module of a command lists its rules as UNUSED; a test holds every option of every command against them.
What a value of --data or --executor has no use for, its own code refuses: `data.load` and cli/executors.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from vqshield.core.errors import InvalidInputError

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Unused:
    """Options that some values of other options leave without effect.

    Attributes:
        why: which value does, with the other option's name: "without --attack".
        when: whether the parameters of a command have it.
        options: names of the parameters without effect; empty: all parameters except those in kept.
    """

    why: str
    when: Callable[[Values], bool]
    options: str = ""
    kept: str = ""


def option_is(name: str, *values: object) -> Callable[[Values], bool]:
    """Whether an option has one of these values."""
    return lambda typed: typed[name] in values


def rendered_only(kept: str = "") -> Unused:
    """The rule of a command that keeps records; kept: options that its summary depends on."""
    return Unused(
        "with --render-only", option_is("render_only", True), kept=f"render_only out as_json {kept}"
    )


PRECISE = Unused(
    "where every --attack names its own precision",
    lambda typed: bool(typed["attack"]) and all("precision=" in attack for attack in typed["attack"]),
    "precision",
)


def refuse_unused(rules: Sequence[Unused], context: typer.Context) -> None:
    """Refuse options that were typed and have no effect, before the command does anything."""
    typed = [
        option
        for option in context.command.params
        if getattr(context.get_parameter_source(option.name or ""), "name", None) == "COMMANDLINE"
    ]
    for rule in rules:
        named, kept = rule.options.split(), rule.kept.split()
        idle = [
            option.opts[0] for option in typed if (option.name in named if named else option.name not in kept)
        ]
        if idle and rule.when(context.params):
            flags, it = ", ".join(idle), "it" if len(idle) == 1 else "them"
            raise InvalidInputError(
                f"{flags} given {rule.why}, with no effect; leave {it} out or change the other option"
            )

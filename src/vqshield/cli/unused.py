"""Options that have no effect next to others: refused when they are typed, never silently ignored.

What a value of --data or --executor has no use for, its own code refuses: `data.load` and cli/executors.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        options: names of the parameters without effect; empty: all parameters except those kept.
        kept: names of the parameters that keep their effect, where options is empty.
    """

    why: str
    when: Callable[[Values], bool]
    options: str = ""
    kept: str = ""

    def names(self, parameter: str) -> bool:
        """Whether the parameter has no effect then."""
        return parameter in self.options.split() if self.options else parameter not in self.kept.split()


def option_is(name: str, *values: object) -> Callable[[Values], bool]:
    """Whether an option has one of these values."""
    return lambda given: given[name] in values


def _all_precise(given: Values) -> bool:
    return bool(given["attack"]) and all("precision=" in each for each in given["attack"])


def _is_folder(given: Values) -> bool:
    from vqshield.data import list_datasets  # with torch, which the help of all commands does without

    return given["data"] not in list_datasets()


_KEPT = "summary_only out as_json"
_SUMMED_UP = Unused("with --summary-only", option_is("summary_only", True), kept=_KEPT)
_PRECISE = Unused("where every --attack names its own precision", _all_precise, "precision")
_DRAWN, _VOTED = "attack eps draws delta", "n0 n alpha"
UNUSED: dict[str, tuple[Unused, ...]] = {
    "evaluate": (
        _SUMMED_UP,
        Unused("without --attack", lambda given: not given["attack"], "norm eps selection precision"),
        _PRECISE,
    ),
    "audit": (_PRECISE,),
    "certify": (
        replace(_SUMMED_UP, kept=f"{_KEPT} norm radius"),
        Unused("with --norm l1", option_is("norm", "l1"), f"certificate {_DRAWN} {_VOTED}"),
        Unused("without --norm l1", option_is("norm", "l2"), "after"),
        Unused(
            "with --norm l1 and without --after",
            lambda given: (given["norm"], given["after"]) == ("l1", None),
            "seed",
        ),
        Unused("without --certificate draws or all", option_is("certificate", "vote", "sequential"), _DRAWN),
        Unused("with --certificate draws", option_is("certificate", "draws"), f"{_VOTED} radius"),
    ),
    "ladder": (
        _SUMMED_UP,
        Unused("without --train-dir", option_is("train_dir", None), "train_data own_arch own_epochs"),
    ),
    "leaderboard": (_SUMMED_UP,),
    "calibrate": (Unused("with a folder as --data", _is_folder, "data_dir split"),),
}
"""By command; another distribution's module has a table of its own, of this name. A test
holds every option of every command against these tables.
"""


def refuse_unused(rules: Sequence[Unused], context: typer.Context) -> None:
    """Refuse options that were typed and have no effect, before the command does anything."""
    typed = [
        each
        for each in context.command.params
        if getattr(context.get_parameter_source(each.name or ""), "name", None) == "COMMANDLINE"
    ]
    for rule in rules:
        idle = [each.opts[0] for each in typed if rule.names(each.name or "")]
        if idle and rule.when(context.params):
            flags, it = ", ".join(idle), "it" if len(idle) == 1 else "them"
            raise InvalidInputError(
                f"{flags} given {rule.why}, with no effect; leave {it} out or change the other option"
            )

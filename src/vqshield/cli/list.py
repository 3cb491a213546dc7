"""`vqshield list`: what is registered, read from the registries themselves."""

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from vqshield import attacks
from vqshield.attacks import list_attacks
from vqshield.attacks.suites import list_suites
from vqshield.attacks.threats import Threat
from vqshield.classifiers import classifier_forms, list_classifiers
from vqshield.core.settings import format_settings
from vqshield.data import list_datasets
from vqshield.defenses import defense_class, known_settings, list_all_defenses
from vqshield.quantization.kernels import availability
from vqshield.surrogates import list_surrogates

Entry = dict[str, Any]
REQUIRED = "required"


class Kind(StrEnum):
    """What can be listed, by the word on the command line."""

    DEFENSES = "defenses"
    ATTACKS = "attacks"
    SUITES = "suites"
    SURROGATES = "surrogates"
    CLASSIFIERS = "classifiers"
    DATA = "data"
    BACKENDS = "backends"


def list_registered(
    kind: Annotated[Kind | None, typer.Argument(help="One kind alone; without it, all of them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show what there is: defenses and attacks with their settings, suites, classifiers, data, backends."""
    listing = {each.value: _LISTS[each]() for each in Kind if kind in (None, each)}
    if as_json:
        typer.echo(json.dumps(listing, indent=2))
        return
    console = Console(highlight=False)
    for title, entries in listing.items():
        console.print(Text(title, style="bold"))
        for entry in entries:
            for line in _lines(entry):
                console.print(line)


def _list_defenses() -> list[Entry]:
    return [
        {"name": name, "description": _summary(defense_class(name)), "settings": _defaults(name)}
        for name in list_all_defenses()
    ]


def _defaults(defense: str) -> Entry:
    """The settings; one without a default has to be given."""
    none: object = inspect.Parameter.empty
    return {key: REQUIRED if value is none else value for key, value in known_settings(defense).items()}


def _list_attacks() -> list[Entry]:
    """Each with its own settings, then those that any attack takes (--attack pgd:steps=40,surrogate=soft)."""
    common = {field.name: field.default for field in fields(Threat) if field.default is not MISSING}
    entries = []
    for name in list_attacks():
        attack = attacks.create(name, attacks.ball("linf", 8 / 255))
        own = {each: getattr(attack, each) for each in attacks.known_settings(name) if each != "seed"}
        entries.append({"name": name, "description": _summary(type(attack)), "settings": own | common})
    return entries


def _list_classifiers() -> list[Entry]:
    networks = [{"name": name, "description": "a network for vqshield train"} for name in list_classifiers()]
    ready = [{"name": name, "description": said} for name, said in classifier_forms().items()]
    return networks + ready


def _summary(documented: type) -> str:
    """The first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def _names(registry: Callable[[], Any]) -> Callable[[], list[Entry]]:
    return lambda: [{"name": name} for name in registry()]


_LISTS: dict[Kind, Callable[[], list[Entry]]] = {
    Kind.DEFENSES: _list_defenses,
    Kind.ATTACKS: _list_attacks,
    Kind.SUITES: _names(list_suites),
    Kind.SURROGATES: _names(list_surrogates),
    Kind.CLASSIFIERS: _list_classifiers,
    Kind.DATA: _names(list_datasets),
    Kind.BACKENDS: lambda: [{"name": name, "description": said} for name, said in availability().items()],
}


def _lines(entry: Entry) -> Iterator[Padding]:
    yield Padding.indent(Text(entry["name"], style="cyan"), 2)
    if entry.get("description"):
        yield Padding.indent(Text(entry["description"]), 4)
    if entry.get("settings"):
        yield Padding.indent(Text(format_settings(entry["settings"]), style="dim"), 4)

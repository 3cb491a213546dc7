"""`vqshield list`: what is registered, read from the registries themselves."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, get_args

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from vqshield import attacks
from vqshield.attacks.suites import list_suites
from vqshield.attacks.threats import Threat
from vqshield.classifiers import classifier_forms, list_classifiers
from vqshield.cli.output import AsJson, show_json
from vqshield.core.settings import format_settings
from vqshield.data import list_datasets
from vqshield.defenses import defense_class, known_settings, list_all_defenses
from vqshield.quantization.kernels import availability
from vqshield.surrogates import list_surrogates

Entry = dict[str, Any]
REQUIRED = "required"


Kind = Literal["defenses", "attacks", "suites", "surrogates", "classifiers", "data", "backends"]
"""What can be listed."""


def list_registered(
    kind: Annotated[Kind | None, typer.Argument(help="One kind alone; without it, all of them.")] = None,
    as_json: AsJson = False,
) -> None:
    """List defenses, attacks, suites, classifiers, data and backends.

    Defenses and attacks are listed with their settings.
    """
    listing = {listed: _LISTS[listed]() for listed in get_args(Kind) if kind in (None, listed)}
    if as_json:
        show_json(listing)
        return
    console = Console(highlight=False)
    for title, entries in listing.items():
        console.print(Text(title, style="bold"))
        for entry in entries:
            console.print(Padding.indent(Text(entry["name"], style="cyan"), 2))
            if entry.get("description"):
                console.print(Padding.indent(Text(entry["description"]), 4))
            if entry.get("settings"):
                console.print(Padding.indent(Text(format_settings(entry["settings"]), style="dim"), 4))


def _list_defenses() -> list[Entry]:
    """Each with its settings; one without a default is required."""
    required: object = inspect.Parameter.empty
    entries = []
    for name in list_all_defenses():
        defaults = known_settings(name).items()
        settings = {key: REQUIRED if value is required else value for key, value in defaults}
        entries.append({"name": name, "description": _summary(defense_class(name)), "settings": settings})
    return entries


def _list_attacks() -> list[Entry]:
    """Each with its own settings, then those that any attack takes (--attack pgd:steps=40,surrogate=soft)."""
    common = {field.name: field.default for field in fields(Threat) if field.default is not MISSING}
    entries = []
    for name in attacks.list_attacks():
        attack = attacks.create(name, attacks.ball("linf", 8 / 255))
        own = {key: getattr(attack, key) for key in attacks.known_settings(name) if key != "seed"}
        entries.append({"name": name, "description": _summary(type(attack)), "settings": own | common})
    return entries


def _summary(documented: type) -> str:
    """The first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())


def _names(names: Iterable[str]) -> list[Entry]:
    return [{"name": name} for name in names]


def _described(descriptions: Mapping[str, str]) -> list[Entry]:
    return [{"name": name, "description": text} for name, text in descriptions.items()]


_LISTS: dict[Kind, Callable[[], list[Entry]]] = {
    "defenses": _list_defenses,
    "attacks": _list_attacks,
    "suites": lambda: _names(list_suites()),
    "surrogates": lambda: _names(list_surrogates()),
    "classifiers": lambda: _described(
        dict.fromkeys(list_classifiers(), "a network for vqshield train") | classifier_forms()
    ),
    "data": lambda: _names(list_datasets()),
    "backends": lambda: _described(availability()),
}

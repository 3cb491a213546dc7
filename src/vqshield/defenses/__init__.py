"""The defenses by name. A new one is a new file with a Defense subclass and one line in _DEFENSES."""

import inspect
from typing import Any

from vqshield import checks
from vqshield.defenses.base import Defense
from vqshield.defenses.prd import PRD
from vqshield.defenses.randdisc import RandDisc
from vqshield.defenses.swrd import SWRD
from vqshield.settings import refuse_unknown

_DEFENSES: dict[str, type[Defense]] = {"randdisc": RandDisc, "prd": PRD, "swrd": SWRD}


def list_defenses() -> list[str]:
    """The names of the registered defenses."""
    return list(_DEFENSES)


def defense_class(name: str) -> type[Defense]:
    """The class behind a name."""
    return _DEFENSES[checks.one_of("defense", name, _DEFENSES)]


def known_settings(name: str) -> dict[str, Any]:
    """The settings of a defense with their defaults, its own first."""
    chain = [defense_class(name).__init__, Defense.__init__]
    parameters = [p for init in chain for p in inspect.signature(init).parameters.values()]
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def create(name: str, **settings: Any) -> Defense:
    """A defense by its name; an unknown name or setting is answered with the known ones."""
    chosen = defense_class(name)
    refuse_unknown(name, settings, list(known_settings(name)))
    return chosen(**settings)


__all__ = ["PRD", "SWRD", "Defense", "RandDisc", "create", "defense_class", "known_settings", "list_defenses"]

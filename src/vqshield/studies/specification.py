"""What an evaluation measures: the settings as typed, checked before any work, and written out in full."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from vqshield import attacks, checks, surrogates
from vqshield.attacks import Ball
from vqshield.defenses import Quantizer, list_defenses, quantizer_from_text
from vqshield.errors import InvalidInputError
from vqshield.runs.records import Key
from vqshield.settings import parse_spec
from vqshield.suites import expand
from vqshield.threats import Threat

NONE = "none"
"""No defense, or no attack."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Which defenses, against which attacks, measured how often.

    defenses: as typed, "swrd:size=3"; "none": attack the bare classifier too, as a baseline. Its natural
        accuracy is measured in any case.
    attacks: threats as typed, "pgd:steps=20,eot=5", or names of suites.
    runs: draws of the defense that are reported; selection: other draws, by which the strongest of several
        attacks is chosen for each image (None: as many as runs).
    batch: images of a chunk, the unit of work; a chunk's results depend on nothing but the specification.
    """

    defenses: tuple[str, ...] = ("swrd",)
    attacks: tuple[str, ...] = ()
    norm: str = "linf"
    eps: float = 8 / 255
    runs: int = 10
    selection: int | None = None
    seed: int = 0
    batch: int = 100

    def __post_init__(self) -> None:
        ball = self.ball
        for name in ("runs", "batch"):
            checks.whole(name, getattr(self, name), least=1)
        if self.selection is not None:
            checks.whole("selection", self.selection, least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        for name, texts in (("defense", self.defenses), ("attack", self.attacks)):
            twice = [text for text in texts if texts.count(text) > 1]
            if twice:
                raise InvalidInputError(f"{name} {twice[0]!r} is given twice; give it once")
        if not self.defenses:
            raise InvalidInputError(f"no defense is given; give one of {', '.join(_known_defenses())}")
        for text in self.defenses:
            defense(text, seed=0)
        for text in self.attacks:
            expand(text, ball)

    @property
    def ball(self) -> Ball:
        """Where attacks may move an image to."""
        return attacks.ball(self.norm, self.eps)

    @property
    def chosen_selection(self) -> int:
        """How many draws the attacks are compared on."""
        return self.runs if self.selection is None else self.selection

    def described(self) -> dict[str, Any]:
        """The settings with everything that names and defaults stand for, as JSON can hold it."""
        return {
            "norm": self.norm,
            "eps": self.eps,
            "runs": self.runs,
            "selection": self.chosen_selection,
            "seed": self.seed,
            "batch": self.batch,
            "defenses": [_described_defense(text) for text in self.defenses],
            "attacks": [
                {"name": text, "threats": [_described_threat(each) for each in expand(text, self.ball)]}
                for text in self.attacks
            ],
        }


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The unit of work: one attack (or none) on one chunk of images in front of one defense (or none)."""

    defense: str
    attack: str
    level: str
    images: range

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, self.attack, image) for image in self.images]


def cells(specification: Mapping[str, Any]) -> list[Cell]:
    """All the work, chunk after chunk: a run that is stopped has every attack on the same images."""
    chosen = [each["name"] for each in specification["defenses"]]
    members = [
        (each["name"], each["level"]) for entry in specification["attacks"] for each in entry["threats"]
    ]
    plan = [(NONE, NONE, NONE)]  # the bare classifier, always: what a defense costs is seen beside it
    for name in chosen:
        plan += [(name, NONE, NONE)] if name != NONE else []
        plan += [(name, attack, level) for attack, level in members]
    count, batch = specification["data"]["images"], specification["batch"]
    return [
        Cell(defense=name, attack=attack, level=level, images=range(first, min(first + batch, count)))
        for first in range(0, count, batch)
        for name, attack, level in plan
    ]


def defense(text: str, *, seed: int) -> Quantizer | None:
    """A defense as typed, with that seed; None for "none"."""
    name, settings = parse_spec(text)
    checks.one_of("defense", name, _known_defenses())
    if name == NONE:
        if settings:
            raise InvalidInputError(f"{text!r} has settings; {NONE} takes none")
        return None
    return quantizer_from_text(text, seed=seed)


def _known_defenses() -> list[str]:
    return [*list_defenses(), NONE]


def _described_defense(text: str) -> dict[str, Any]:
    chosen = defense(text, seed=0)
    if chosen is None:
        return {"name": NONE}
    return {"name": text, "settings": {**chosen.settings(), "backend": chosen.backend}}


def _described_threat(chosen: Threat) -> dict[str, Any]:
    described: dict[str, Any] = _described(chosen)
    if isinstance(chosen.surrogate, str) and chosen.surrogate != NONE:
        described["surrogate"] = _described(surrogates.get(chosen.surrogate))
    return described


def _described(value: Any) -> Any:
    """A dataclass as a dict with its kind; seeds are left out, as every chunk has its own."""
    if not is_dataclass(value):
        return value if isinstance(value, int | float | str | None) else repr(value)
    parts = {
        each.name: _described(getattr(value, each.name)) for each in fields(value) if each.name != "seed"
    }
    return {"kind": type(value).__name__, **parts}

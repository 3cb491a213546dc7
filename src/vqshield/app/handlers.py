"""What the page's events call. Values of its controls in, values for its parts out; nothing is kept between
calls, and whatever is wrong with a picture or a setting becomes a notice: the page lives on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vqshield.app import fragments
from vqshield.app.attacking import attack
from vqshield.app.choices import SETTINGS, Choice, settings_of, usual
from vqshield.app.shielding import shield
from vqshield.app.subjects import Limits, Subject, bundled, uploaded
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.images.files import Bytes


@dataclass(frozen=True, kw_only=True)
class Controls:
    """What the controls of the page hold.

    number: of the bundled picture. upload: where the visitor's own lies, which then is the one.
    """

    number: float
    upload: str | None
    defense: str
    size: float
    codes: float
    sigma: float
    tau: float
    beta: float

    def choice(self) -> Choice:
        """The defense; a slider's whole numbers may come as 25.0."""
        return Choice(
            defense=self.defense, size=_whole("s", self.size), codes=_whole("k", self.codes),
            sigma=self.sigma, tau=self.tau, beta=self.beta,
        )  # fmt: skip

    def subject(self, limits: Limits) -> Subject:
        """The picture."""
        if self.upload is not None:
            return uploaded(Path(self.upload), limits)
        return bundled(_whole("picture", self.number))


@dataclass(frozen=True, kw_only=True)
class View:
    """What an event shows; None clears a part of the page.

    pair: two pictures of equal size for the slider between them, (h, w, 3) bytes.
    """

    notice: str
    worth: str | None = None
    pair: tuple[Bytes, Bytes] | None = None
    answers: str | None = None
    codebook: str | None = None


def show_shield(controls: Controls, limits: Limits, *, seed: int | None = None) -> View:
    """The picture, clean and shielded."""

    def shielded(subject: Subject, choice: Choice) -> View:
        found = shield(subject, choice, seed=seed)
        return View(
            notice=fragments.notice(subject.note),
            pair=(fragments.enlarged(subject.picture), fragments.enlarged(found.quantized)),
            answers=fragments.shield_answers(found, choice, label=subject.label),
            codebook=fragments.codebook_panel(found.centres),
        )

    return _shown(controls, limits, shielded)


def show_attack(controls: Controls, kind: str, limits: Limits, *, seed: int | None = None) -> View:
    """The picture as the classifier sees it, clean and attacked."""

    def attacked(subject: Subject, choice: Choice) -> View:
        found = attack(subject, choice, kind, limits=limits, seed=seed)
        return View(
            notice=fragments.notice(subject.note),
            pair=(fragments.enlarged(subject.small), fragments.enlarged(found.image)),
            answers=fragments.attack_answers(found, choice),
        )

    return _shown(controls, limits, attacked)


def _shown(controls: Controls, limits: Limits, show: Callable[[Subject, Choice], View]) -> View:
    """A view with what was measured of the defense; an error becomes a notice."""
    worth = None
    try:
        choice = controls.choice()
        worth = fragments.recorded_panel(choice)
        return replace(show(controls.subject(limits), choice), worth=worth)
    except (VqshieldError, MemoryError) as error:
        return View(notice=fragments.notice(str(error) or "not enough memory", problem=True), worth=worth)


@dataclass(frozen=True, kw_only=True)
class Control:
    """What a slider becomes when another defense is chosen; one that the defense does not have is fixed."""

    value: float
    fixed: bool


def controls_of(defense: str) -> dict[str, Control]:
    """The sliders of a defense, by their names in Controls, at the settings that it was measured with."""
    chosen, free = usual(defense), settings_of(defense)
    return {name: Control(value=getattr(chosen, name), fixed=name not in free) for name in SETTINGS}


def _whole(name: str, value: float) -> int:
    """25.0, as sliders say it, as 25."""
    number = checks.real(name, value)
    if not number.is_integer():
        raise InvalidInputError(f"{name}={value} should be a whole number")
    return int(number)

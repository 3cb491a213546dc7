"""What the page's events call. Values of its controls in, values for its parts out; nothing is kept between
calls, and whatever is wrong with a picture or a setting becomes a notice: the page lives on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.images.files import Bytes
from vqshield_app import fragments
from vqshield_app.choices import Choice
from vqshield_app.experiments import attack, shield
from vqshield_app.subjects import Limits, Subject, bundled, uploaded


@dataclass(frozen=True, kw_only=True)
class Controls:
    """The values of the page's controls: the number of a bundled picture, the path of an upload that is used
    instead, and the fields of a Choice.
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
        """The defense."""
        return Choice(
            defense=self.defense, size=_whole("s", self.size), codes=_whole("k", self.codes),
            sigma=self.sigma, tau=self.tau, beta=self.beta,
        )  # fmt: skip

    def subject(self, limits: Limits) -> Subject:
        """The picture."""
        if self.upload is not None:
            return uploaded(Path(self.upload), limits)
        return bundled(_whole("picture", self.number))


class View(NamedTuple):
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
        result = shield(subject, choice, seed=seed)
        return View(
            notice=fragments.notice(subject.note),
            pair=(fragments.enlarged(subject.picture), fragments.enlarged(result.quantized)),
            answers=fragments.shield_answers(result, choice, label=subject.label),
            codebook=fragments.codebook_panel(result.centres),
        )

    return _shown(controls, limits, shielded)


def show_attack(
    controls: Controls, kind: str, eps: float, limits: Limits, *, seed: int | None = None
) -> View:
    """The picture as the classifier sees it, clean and attacked."""

    def attacked(subject: Subject, choice: Choice) -> View:
        result = attack(subject, choice, kind, eps, limits=limits, seed=seed)
        return View(
            notice=fragments.notice(subject.note),
            pair=(fragments.enlarged(subject.small), fragments.enlarged(result.image)),
            answers=fragments.attack_answers(result, choice, kind),
        )

    return _shown(controls, limits, attacked)


def _shown(controls: Controls, limits: Limits, show: Callable[[Subject, Choice], View]) -> View:
    """A view with what was measured of the defense; an error becomes a notice."""
    worth = None
    try:
        choice = controls.choice()
        worth = fragments.recorded_panel(choice)
        return show(controls.subject(limits), choice)._replace(worth=worth)
    except (VqshieldError, MemoryError) as error:
        return View(notice=fragments.notice(str(error) or "not enough memory", problem=True), worth=worth)


def _whole(name: str, value: float) -> int:
    """25.0, as sliders say it, as 25."""
    number = checks.real(name, value)
    if not number.is_integer():
        raise InvalidInputError(f"{name}={value} should be a whole number")
    return int(number)

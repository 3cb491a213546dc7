"""The policy of a gate: what is measured, and what must hold. A TOML file is read into these classes."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vqshield.auditing.results import Verdict
from vqshield.core import checks
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import file_exists, parse_toml, read_text
from vqshield.core.serialization import from_plain
from vqshield.core.settings import did_you_mean, parse_number
from vqshield.ladders.study import MAIN
from vqshield_deploy.gating.finished import CERTIFIED

VERBS = ("evaluate", "ladder", "audit", "certify")
LEAST_IMAGES = 30  # with fewer, means are far from normal


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What a gate measures (`command`, as "evaluate --defense swrd --limit 200") or reads (`folder`)."""

    command: str | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if (self.folder is None) == (self.command is None):
            raise InvalidInputError("a run has either a command or the folder of a finished run; give one")
        words = self.arguments
        if self.command is not None and (not words or words[0] not in VERBS):
            raise InvalidInputError(f"command={self.command!r} should begin with one of {', '.join(VERBS)}")
        for word in words:
            if word.partition("=")[0] in ("--out", "--fresh", "--render-only"):
                raise InvalidInputError(f"{word} in command={self.command!r} is the gate's; leave it out")

    @property
    def arguments(self) -> list[str]:
        """The words of the command."""
        try:
            return shlex.split(self.command or "")
        except ValueError as error:
            raise InvalidInputError(f"command={self.command!r} cannot be split: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Check:
    """What must hold for one result of a run: exactly one of `least`, `baseline` and `verdict`.

    Attributes:
        run: the name of a run.
        attack: "clean", an attack or suite as in the command, "adaptive" (the strongest on each image), a
            rung as in "score@500", or a certified accuracy as in "certified@0.1".
        subject: "model", "bare" for the classifier without its defense, or a control of a ladder.
        least: the accuracy that the model must have.
        baseline: the folder of an earlier run on the same images; tolerance: the drop that is accepted.
        verdict: the worst verdict of an audit that is accepted.
    """

    run: str
    attack: str | None = None
    subject: str = MAIN
    least: float | None = None
    baseline: Path | None = None
    tolerance: float = 0.0
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        rules = [name for name in ("least", "baseline", "verdict") if getattr(self, name) is not None]
        if len(rules) != 1 or (self.attack is None) != (rules == ["verdict"]):
            raise InvalidInputError("a check has attack and least, attack and baseline, or verdict; give one")
        if self.least is not None:
            checks.real("least", self.least, most=1.0)
        if checks.real("tolerance", self.tolerance, most=1.0) and self.baseline is None:
            raise InvalidInputError(f"tolerance={self.tolerance} belongs to baseline, which is missing")
        _ = self.radii  # refuses "certified@" without a number

    @property
    def radii(self) -> tuple[float, ...]:
        """The radius of a certified accuracy."""
        if not (self.attack or "").startswith(CERTIFIED):
            return ()
        return (parse_number("radius", str(self.attack).removeprefix(CERTIFIED)),)

    @property
    def title(self) -> str:
        """The run, and its result."""
        subject = "" if self.subject == MAIN else f" of {self.subject}"
        return f"{self.run}: {self.attack or 'audit'}{subject}"

    @property
    def rule(self) -> str:
        """What must hold."""
        if self.baseline is not None:
            below = f"at most {100 * self.tolerance:g} points" if self.tolerance else "not"
            return f"{below} below {self.baseline}"
        return f"{self.verdict} or better" if self.least is None else f"at least {100 * self.least:g} %"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a gate measures, and what must hold.

    Attributes:
        level: the chance that noise fails a build where nothing is worse, over all checks together.
        least_images: a check on fewer images counts as not measured.
        run, check: the runs by name, and the checks.
    """

    level: float
    least_images: int = 100
    run: Mapping[str, PlannedRun] = field(default_factory=dict)
    check: tuple[Check, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.level <= 0.2:
            raise InvalidInputError(f"level={self.level} should be above 0 and at most 0.2, as in 0.05")
        checks.whole("least_images", self.least_images, least=LEAST_IMAGES)
        if wrong := [name for name in self.run if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name)]:
            raise InvalidInputError(f"run {wrong[0]!r} should have a name of letters, digits, - and _")
        checked = [each.run for each in self.check]
        if unknown := [name for name in checked if name not in self.run]:
            known = f"{', '.join(self.run) or 'none'}{did_you_mean(unknown[0], self.run)}"
            raise InvalidInputError(f"a check is of run {unknown[0]!r}; the runs are {known}")
        if not checked or {*self.run} - {*checked}:
            raise InvalidInputError("every run needs a [[check]], and there should be one at least")

    @classmethod
    def read(cls, path: Path | str) -> "Policy":
        """The policy of a TOML file; a FileFormatError names the place and what would be valid."""
        if not file_exists(Path(path)):
            raise FileFormatError(f"policy {path} is not a file; give one, as in docs/gate.md")
        return from_plain(cls, parse_toml(read_text(Path(path)), path), str(path))

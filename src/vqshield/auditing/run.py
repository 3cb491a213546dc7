"""An audit in one call: measured, kept in a folder where it can be resumed, and written to audit.json."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield import attacks as known_attacks
from vqshield.attacks.suites import expand
from vqshield.auditing.auditor import audit
from vqshield.auditing.flags import LEAST_IMAGES, POWER
from vqshield.auditing.results import AuditReport
from vqshield.auditing.settings import QUICK, AuditSettings
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import Journal, write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.core.settings import parse_spec
from vqshield.defenses import Defense, Preprocessor, from_text, list_defenses

FILE = "audit.json"
_SPECIFICATION = "specification"


@dataclass(frozen=True, kw_only=True)
class _Data:
    name: str
    images: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class _Classifier:
    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class _Specification:
    """All that the measurements depend on: a folder with another one is not resumed."""

    data: _Data
    classifier: _Classifier
    defense: str
    defense_settings: Mapping[str, Json]
    given: tuple[str, ...]
    norm: str
    eps: float
    settings: AuditSettings
    machine: Mapping[str, Json]
    held_out: _Data | None = field(default=None, metadata={"omit": True})


def run_audit(
    model: nn.Module, defense: str | Defense, images: Tensor, labels: Tensor, *,
    attacks: Sequence[str] = ("adaptive-v1-quick",), norm: str = "linf", eps: float | None = None,
    settings: AuditSettings = QUICK, held_out: tuple[Tensor, Tensor] | None = None, out: Path | None = None,
    progress: Callable[[str], None] | None = None, data: str = "images", data_sha256: str | None = None,
    classifier: str = "model", classifier_sha256: str | None = None,
) -> AuditReport:  # fmt: skip
    """Can the robust accuracy that these attacks report for a defended classifier be believed?

    Args:
        model: the classifier: images (B, q, h, w) in [0, 1] to logits (B, classes), on the images' device.
        defense: what stands in front of it, an object or text: "swrd:size=3,codes=25". Its own seed does not
            matter: every draw comes from the settings' seed.
        images: float images in [0, 1], (N, q, h, w), at least `LEAST_IMAGES` of them.
        labels: their true classes, int64, (N,).
        attacks: the attacks whose figure is judged, threats or suites as text: "pgd:steps=20,eot=5".
        norm: of the attacks' budget, "linf", "l2" or "l1".
        eps: the attacks' budget, in units of [0, 1] (default: 8/255 for linf, 0.5 for l2, 12 for l1).
        settings: how thorough; QUICK for a CPU, AuditSettings() for a GPU.
        held_out: images and labels that whoever made the model has not seen, for R11.
        out: a folder for audit.json and for all that is measured on the way. An audit that was stopped is
            resumed there. None: nothing is written.
        progress: called with the name of each part that is about to be measured.
        data, classifier: their names in the report.
        data_sha256, classifier_sha256: what tells them from others on resuming; computed if not given.

    Returns:
        The report: its flags with outcomes, figures and meanings, and everything it was made with.

    Raises:
        InvalidInputError: for a value that cannot be used, too few images, or a folder that holds another
            audit.

    Example:
        >>> import torch
        >>> from vqshield.auditing import AuditSettings, run_audit
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2)).eval()
        >>> images, labels = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 0, 1])
        >>> few = AuditSettings(
        ...     runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True
        ... )
        >>> report = run_audit(
        ...     model, "prd:size=2,codes=4", images, labels, attacks=["pgd:steps=1"], settings=few
        ... )
        >>> report.passed, report.audit.n
        (False, 4)
        >>> report.flags[0].title
        'an unbounded attack leaves nothing'
    """
    check_audit(defense, attacks, norm=norm, eps=eps)
    ball = known_attacks.ball(norm, eps)
    shield, shown = _shield(defense, settings.seed)
    checks.image_batch(images)
    check_images(len(images), settings)
    specification = _Specification(
        data=_Data(name=data, images=len(images), sha256=data_sha256 or _digest({"": images, "y": labels})),
        classifier=_Classifier(name=classifier, sha256=classifier_sha256 or _digest(model.state_dict())),
        defense=shown,
        defense_settings=shield.settings(),
        given=tuple(attacks),
        norm=norm,
        eps=ball.eps,
        settings=settings,
        machine=environment(images.device),
        held_out=None if held_out is None else _held_out(*held_out),
    )
    began, known = time.perf_counter(), None if out is None else _resumed(out, specification)
    found = audit(
        model, shield.to(images.device), images, labels, attacks=attacks, ball=ball, settings=settings,
        held_out=held_out, known=known, report=progress or (lambda part: None),
    )  # fmt: skip
    report = AuditReport(
        data=data,
        classifier=classifier,
        defense=shown,
        given=tuple(attacks),
        norm=norm,
        eps=ball.eps,
        settings=settings,
        machine=specification.machine,
        seconds=round(time.perf_counter() - began if known is None else known.seconds(), 1),
        audit=found,
    )
    if out is not None:
        write_json(out / FILE, report.plain())
    return report


def check_audit(defense: str | Defense, attacks: Sequence[str], *, norm: str, eps: float | None) -> None:
    """Refuse what cannot be audited before anything is loaded, measured or written."""
    _shield(defense, seed=0)
    ball = known_attacks.ball(norm, eps)
    for text in attacks:
        expand(text, ball)


def check_images(count: int, settings: AuditSettings) -> None:
    """Refuse fewer images than an audit can pass on, unless the settings say that this is a rehearsal."""
    if count < LEAST_IMAGES and not settings.rehearsal:
        name = next(name for name, (least, _) in POWER.items() if least == LEAST_IMAGES)
        raise InvalidInputError(
            f"{count} images cannot pass an audit, since {name} needs {LEAST_IMAGES}; give at least "
            f"{LEAST_IMAGES} (AuditSettings(rehearsal=True) takes fewer, and no such audit passes)"
        )


class _Measured(Journal):
    """What an audit has measured, and in a file of its own how long that took: runs of it add up."""

    def __init__(self, out: Path) -> None:
        super().__init__(out / "measured.jsonl")
        self._times, self._began = Journal(out / "times.jsonl"), time.perf_counter()
        self._new = False

    def __setitem__(self, key: str, value: Json) -> None:
        super().__setitem__(key, value)
        self._new = True
        self._note()

    def seconds(self) -> float:
        """Of every run that measured something."""
        if self._new:
            self._note()
        return float(sum(self._times.values()))

    def _note(self) -> None:
        now = time.perf_counter()
        self._times[str(len(self._times))] = now - self._began
        self._began = now


def _held_out(images: Tensor, labels: Tensor) -> _Data:
    checks.image_batch(images)
    return _Data(name="held out", images=len(images), sha256=_digest({"": images, "y": labels}))


def _resumed(out: Path, specification: _Specification) -> _Measured:
    known, wanted = _Measured(out), to_plain(specification)
    if _SPECIFICATION not in known:
        known[_SPECIFICATION] = wanted
    if known[_SPECIFICATION] != wanted:
        raise InvalidInputError(f"{out} holds what another audit has measured; choose another folder")
    return known


def _shield(defense: str | Defense, seed: int) -> tuple[Defense, str]:
    """The defense, and what a report calls it."""
    if isinstance(defense, Defense):
        name = defense.name if isinstance(defense, Preprocessor) else type(defense).__name__
        return defense, defense.spec or name
    if not isinstance(defense, str):
        raise InvalidInputError(
            f"defense should be a Defense such as SWRD(), or its text, not {type(defense).__name__}"
        )
    if parse_spec(defense)[0] == NONE:
        raise InvalidInputError(
            f"defense={defense!r} leaves nothing to audit; give one of {', '.join(list_defenses())}"
        )
    return from_text(defense, seed=seed), defense


def _digest(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, values in tensors.items():
        found.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        found.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()

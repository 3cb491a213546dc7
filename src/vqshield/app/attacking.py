"""A picture under attack: defense-unaware, by queries, or adaptive.

The attacks are those of the results that the page shows (`vqshield demo`), and one by queries.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vqshield.app.choices import Choice
from vqshield.app.shielding import Answers, ask
from vqshield.app.subjects import Limits, Subject
from vqshield.attacks import Linf
from vqshield.attacks.threats import Threat, threat
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.defended import Defended
from vqshield.demo.pictures import as_bytes, moved_bytes
from vqshield.demo.study import DemoSettings

QUERIES = 500
_DEMO = DemoSettings()


@dataclass(frozen=True, kw_only=True)
class AttackKind:
    """An attack that can be pressed for, and what its button says."""

    title: str
    explanation: str
    threat: Threat


ATTACKS = {
    "ignorant": AttackKind(
        title="ignores the shield",
        explanation=f"{_DEMO.steps} steps of PGD on the bare classifier; the shield comes as a surprise.",
        threat=Threat(name="ignorant", level="ignorant", attack=_DEMO.ignorant, surrogate="none"),
    ),
    "queries": AttackKind(
        title="asks the shielded model",
        explanation=f"{QUERIES} queries of the shielded model (Square), no gradients.",
        threat=threat(f"square:queries={QUERIES}", Linf(_DEMO.eps)),
    ),
    "through": AttackKind(
        title="goes through the shield",
        explanation=f"{_DEMO.steps} steps of PGD through the shield, with gradients made for quantizers, "
        f"averaged over {_DEMO.draws} draws.",
        threat=Threat(
            name="through", level="adaptive", attack=_DEMO.adaptive, surrogate="soft", eot=_DEMO.draws
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What the page shows of an attack.

    Attributes:
        image: the attacked picture, (3, 32, 32), bytes; largest: its largest change of a value, in bytes.
        label: the class that the attack leads away from; known: whether that is the true one, or what the
            bare classifier said of the clean picture.
        bare_before, bare, before, answers: the answers of the bare classifier and of the shielded one, about
            the clean picture and about the attacked one. No draw that the attack saw is among them.
        seconds: that the attack took.
    """

    kind: str
    image: Tensor
    largest: int
    label: int
    known: bool
    bare_before: Answers
    bare: Answers
    before: Answers
    answers: Answers
    seconds: float


def attack(
    subject: Subject, choice: Choice, kind: str, *, limits: Limits, seed: int | None = None
) -> Attacked:
    """Attack a picture at the size that the classifier sees.

    Args:
        subject: the picture.
        choice: the defense.
        kind: one of ATTACKS.
        limits: how long it may take.
        seed: of the defense, for a result that can be repeated.

    Raises:
        InvalidInputError: an unknown kind, a picture that the defense cannot take, or too long an attack.
    """
    chosen = ATTACKS[checks.one_of("attack", kind, ATTACKS)].threat
    quantizer, classifier = choice.quantizer(seed), choice.classifier()
    model = Defended(classifier, quantizer)
    bare_before = ask(classifier, subject.small, draws=1)
    label = bare_before.first if subject.label is None else subject.label
    began = time.perf_counter()
    stopped = _Stopped(classifier, limits.attack_seconds)
    found = chosen(stopped, quantizer, subject.small[None], torch.tensor([label]))
    seconds = time.perf_counter() - began
    clean = as_bytes(subject.small[None])
    image = moved_bytes(clean, found, chosen.attack.ball)[0]
    shown = image.float() / 255
    return Attacked(
        kind=kind,
        image=image,
        largest=int((image.int() - clean[0].int()).abs().max()),
        label=label,
        known=subject.label is not None,
        bare_before=bare_before,
        bare=ask(classifier, shown, draws=1),
        before=ask(model, subject.small),
        answers=ask(model, shown),
        seconds=seconds,
    )


class _Stopped(nn.Module):
    """The same classifier, which raises an error once the time is over; attacks query it in every step."""

    def __init__(self, classifier: nn.Module, seconds: float) -> None:
        super().__init__()
        self.classifier, self._seconds = classifier, seconds
        self._end = time.monotonic() + seconds
        self.training = classifier.training

    def forward(self, images: Tensor) -> Tensor:
        if time.monotonic() > self._end:
            raise InvalidInputError(
                f"the attack was stopped after {self._seconds:g} s; choose a smaller s or k, or try again "
                "when fewer people are here"
            )
        logits: Tensor = self.classifier(images)
        return logits

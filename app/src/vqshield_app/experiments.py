"""Shield a picture and attack it: what the page shows after a click.

The attacks are those of the results that the page shows (`vqshield demo`), and one by queries.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vqshield.attacks import Linf
from vqshield.attacks.threats import Threat, threat
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.defended import Defended
from vqshield.demo.study import DemoSettings
from vqshield.images.pictures import as_bytes, moved_bytes
from vqshield.models.calling import Model
from vqshield.models.draws import draw_predictions
from vqshield_app.choices import Choice
from vqshield_app.subjects import Limits, Subject

DRAWS = 20
QUERIES = 500
EPSILON, MOST_EPSILON = 8, 16
"""The attacks' usual budget and the largest, in 255ths."""
_DEMO = DemoSettings()

Answers = Counter[int]
"""How many samples gave each class for one picture: the most frequent class first, of ties the lowest."""


@dataclass(frozen=True, kw_only=True)
class Shielded:
    """A shielded picture and its classes.

    Attributes:
        quantized: the sample that is shown, of the picture's shape.
        centres: its codebook, (k, 3, s, s), the darkest first.
        bare, answers: the classes without and with the shield.
        seconds: for the sample that is shown. answering: for all that were classified.
    """

    quantized: Tensor
    centres: Tensor
    bare: Answers
    answers: Answers
    seconds: float
    answering: float


@torch.no_grad()
def shield(subject: Subject, choice: Choice, *, seed: int | None = None) -> Shielded:
    """Shield a picture and classify it; without a seed, every call has fresh noise.

    Raises:
        InvalidInputError: a picture that this defense cannot take, such as one with fewer patches than k.
    """
    quantizer, classifier = choice.quantizer(seed), choice.classifier()
    picture = subject.picture[None]
    streams = quantizer.streams(picture)  # of one sample: the codebook below is the one behind the picture
    began = time.perf_counter()
    quantized = quantizer(picture, streams=streams)[0]
    seconds = time.perf_counter() - began
    centres = quantizer.codebook(picture, streams=streams)[0]
    began = time.perf_counter()
    answers = ask(Defended(classifier, quantizer), subject.small)
    answering = time.perf_counter() - began
    side = math.isqrt(centres.shape[1] // 3)
    patches = centres.clamp(0, 1).view(len(centres), 3, side, side)
    return Shielded(
        quantized=quantized,
        centres=patches[patches.mean((1, 2, 3)).argsort(stable=True)],
        bare=ask(classifier, subject.small, draws=1),
        answers=answers,
        seconds=seconds,
        answering=answering,
    )


@dataclass(frozen=True, kw_only=True)
class AttackKind:
    """An attack that visitors can choose, and what the page says of it."""

    title: str
    explanation: str
    threat: Callable[[DemoSettings], Threat]


ATTACKS = {
    "ignorant": AttackKind(
        title="Defense-unaware: attacks the bare classifier",
        explanation=f"{_DEMO.steps} steps of PGD on the bare classifier.",
        threat=lambda demo: Threat(name="ignorant", level="ignorant", attack=demo.ignorant, surrogate="none"),
    ),
    "queries": AttackKind(
        title="Query: sees the scores of the defended model",
        explanation=f"{QUERIES} queries of the defended model (Square), no gradients.",
        threat=lambda demo: threat(f"square:queries={QUERIES}", Linf(demo.eps)),
    ),
    "through": AttackKind(
        title="Adaptive: has gradients through the defense",
        explanation=f"{_DEMO.steps} steps of PGD through the defense, with gradients made for quantizers, "
        f"averaged over {_DEMO.eot} samples.",
        threat=lambda demo: Threat(
            name="through", level="adaptive", attack=demo.adaptive, surrogate="soft", eot=demo.eot
        ),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """An attacked picture and its classes.

    Attributes:
        clean, image: the picture before and after, (3, 32, 32), bytes.
        largest: the largest change of a value, in bytes. eps: the budget of the attack, in 255ths.
        label: the class that the attack leads away from; known: whether that is the true one, or what the
            bare classifier said of the clean picture, bare_before.
        bare: the bare classifier's answer about the attacked picture.
        before, answers: the shielded classifier's about the clean and the attacked picture, from samples that
            the attack did not see.
        seconds: that the attack took.
    """

    clean: Tensor
    image: Tensor
    largest: int
    eps: float
    label: int
    known: bool
    bare_before: Answers
    bare: Answers
    before: Answers
    answers: Answers
    seconds: float


def attack(
    subject: Subject,
    choice: Choice,
    kind: str,
    eps: float = EPSILON,
    *,
    limits: Limits,
    seed: int | None = None,
) -> Attacked:
    """Attack a picture at the size that the classifier sees; without a seed, with fresh noise.

    Raises:
        InvalidInputError: an unknown kind, eps not from 1 to 16, a picture that the defense cannot take, or
            too long an attack.
    """
    checks.one_of("attack", kind, ATTACKS)
    checks.real("epsilon", eps, least=1, most=MOST_EPSILON)
    chosen = ATTACKS[kind].threat(replace(_DEMO, eps=eps / 255))
    quantizer, classifier = choice.quantizer(seed), choice.classifier()
    model = Defended(classifier, quantizer)
    bare_before = ask(classifier, subject.small, draws=1)
    label = next(iter(bare_before)) if subject.label is None else subject.label
    began = time.perf_counter()
    stopped = _Stopped(classifier, limits.attack_seconds)
    adversarial = chosen(stopped, quantizer, subject.small[None], torch.tensor([label]))
    seconds = time.perf_counter() - began
    clean = as_bytes(subject.small[None])
    image = moved_bytes(clean, adversarial, chosen.attack.ball)[0]
    shown = image.float() / 255
    return Attacked(
        clean=clean[0],
        image=image,
        eps=eps,
        largest=int((image.int() - clean[0].int()).abs().max()),
        label=label,
        known=subject.label is not None,
        bare_before=bare_before,
        bare=ask(classifier, shown, draws=1),
        before=ask(model, subject.small),
        answers=ask(model, shown),
        seconds=seconds,
    )


def ask(model: Model, image: Tensor, *, draws: int = DRAWS) -> Answers:
    """Classify an image in fresh samples."""
    no_labels = torch.zeros(1, dtype=torch.int64)  # answers are counted, not judged
    answers = draw_predictions(model, image[None], no_labels, runs=draws).predictions[:, 0].tolist()
    return Counter(dict(sorted(Counter(answers).items(), key=lambda pair: (-pair[1], pair[0]))))


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

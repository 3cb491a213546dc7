"""A picture behind a shield: one draw for the eyes, twenty for the classes."""

import math
import time
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.app.choices import Choice
from vqshield.app.subjects import Subject
from vqshield.defended import Defended
from vqshield.models.calling import Model
from vqshield.models.draws import draw_predictions

DRAWS = 20


@dataclass(frozen=True)
class Answers:
    """What a model took one picture for, in several draws.

    counts: draws by class, the most frequent first; ties: the lowest class.
    """

    counts: dict[int, int]

    @property
    def draws(self) -> int:
        """How many there were."""
        return sum(self.counts.values())

    @property
    def first(self) -> int:
        """The most frequent class."""
        return next(iter(self.counts))

    def of(self, label: int) -> int:
        """How many draws gave that class."""
        return self.counts.get(label, 0)


@dataclass(frozen=True, kw_only=True)
class Shielded:
    """What the page shows of a shielded picture.

    Attributes:
        quantized: the draw that is shown, of the picture's shape.
        centres: its codebook, (k, 3, s, s), the darkest first.
        bare: the bare classifier's answer; it has no draws.
        answers: those behind the shield.
        seconds: for the draw that is shown. answering: for all that were classified.
    """

    quantized: Tensor
    centres: Tensor
    bare: Answers
    answers: Answers
    seconds: float
    answering: float


@torch.no_grad()
def shield(subject: Subject, choice: Choice, *, seed: int | None = None) -> Shielded:
    """Shield a picture and ask the classifier about it.

    Args:
        subject: the picture.
        choice: the defense.
        seed: for a result that can be repeated; None: fresh noise in every call, as a defense in use has it.

    Raises:
        InvalidInputError: a picture that this defense cannot take, such as one with fewer patches than k.
    """
    quantizer, classifier = choice.quantizer(seed), choice.classifier()
    picture = subject.picture[None]
    streams = quantizer.streams(picture)  # of one draw: the codebook below is the one behind the picture
    began = time.perf_counter()
    quantized = quantizer(picture, streams=streams)[0]
    seconds = time.perf_counter() - began
    centres = quantizer.codebook(picture, streams=streams)[0]
    began = time.perf_counter()
    answers = ask(Defended(classifier, quantizer), subject.small)
    answering = time.perf_counter() - began
    return Shielded(
        quantized=quantized,
        centres=_patches(centres),
        bare=ask(classifier, subject.small, draws=1),
        answers=answers,
        seconds=seconds,
        answering=answering,
    )


def ask(model: Model, image: Tensor, *, draws: int = DRAWS) -> Answers:
    """What a model takes an image for in fresh draws."""
    nobody_knows = torch.zeros(1, dtype=torch.int64)  # answers are counted, not judged
    found = draw_predictions(model, image[None], nobody_knows, runs=draws).predictions[:, 0].tolist()
    return Answers(dict(sorted(Counter(found).items(), key=lambda each: (-each[1], each[0]))))


def _patches(centres: Tensor) -> Tensor:
    """The centres (k, d) as patches (k, 3, s, s), the darkest first."""
    side = math.isqrt(centres.shape[1] // 3)
    patches = centres.clamp(0, 1).view(len(centres), 3, side, side)
    return patches[patches.mean((1, 2, 3)).argsort(stable=True)]

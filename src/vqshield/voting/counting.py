"""Counting the votes of many samples, as `certify` and `Voting` both do it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from vqshield import certificates
from vqshield.certificates import Coverage
from vqshield.certificates.splitting import LEVELS
from vqshield.certificates.vote import radius_of
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense, Splitting
from vqshield.models.calling import Model, ask, check_finite, check_rows
from vqshield.models.draws import outputs

VOTE, SEQUENTIAL = "vote", "sequential"
_AT_ONCE = 16  # samples made at once for each image of a block, at least: without gradients many fit
_BATCHES = 40  # forward passes of a block, about, at most
_SAVED = 8  # times fewer samples, about, where they may stop early
_RADII = 10  # of a curve, about
_ROUNDING = 1e-3  # of a level, in an 8-bit value

Advance = Callable[[int], None]
"""Called with how many samples were just made, or saved."""
Count = Callable[[str, Tensor, int], Tensor]
"""(purpose, places, samples) → how often fresh samples of that purpose give each class, (places, classes)."""


@dataclass(frozen=True)
class Election:
    """What samples say about N images.

    Attributes:
        selected: the class that the selection samples chose, (N,).
        counts: how many of the other samples gave each class, (N, classes).
        samples: how many other samples there were, (N,).
        lower: lower bounds on the probability of `selected`, and of each further class, (classes bounded, N).
        radii: certified L2 radii of `selected`, 0 where nothing is certified, (N,).
    """

    selected: Tensor
    counts: Tensor
    samples: Tensor
    lower: Tensor
    radii: Tensor


def elect(
    count: Count,
    images: int,
    *,
    coverage: Coverage | None,
    selection: int,
    samples: int,
    alpha: float,
    sequential: bool = False,
    radii: Sequence[float] = (),
    also: Sequence[Tensor] = (),
    advance: Advance = lambda saved: None,
) -> Election:
    """Choose a class per image with `selection` samples, and bound its probability with other samples.

    Args:
        count: makes the samples.
        images: how many.
        coverage: what the L2 certificate may assume of the defense; None: nothing is certified.
        selection, samples, alpha, radii: as of `Voting`.
        sequential: look at the samples now and then, and stop where all radii are decided; the looks share
            alpha. Otherwise there is one look, at all samples.
        also: further classes to bound, each (N,).
        advance: called with how many samples early stopping saved.
    """
    looks = certificates.looks(draws=samples) if sequential else (samples,)
    thresholds: tuple[float, ...] = (0.5,)
    if sequential and coverage is not None:
        decisive = decisive_radii(coverage, radii, samples=samples, alpha=alpha)
        thresholds = certificates.thresholds_for(radii=decisive, **asdict(coverage))
    going = torch.arange(images)
    counts = count("selection", going, selection)
    classes = (counts.argmax(-1), *also)
    counts = torch.zeros_like(counts)
    lower = torch.zeros(len(classes), images, dtype=torch.float64)
    made = torch.zeros(images, dtype=torch.int64)
    before = 0
    for look, total in enumerate(looks):
        counts[going] += count(f"look {look}" if sequential else "estimation", going, total - before)
        made[going] = before = total
        for bound, bounded in zip(lower, classes, strict=True):
            top = of_class(counts, bounded)[going]
            new = certificates.look_bound(count=top, draws=total, look=look, alpha=alpha, looks=looks)
            bound[going] = torch.maximum(bound[going], new)  # all of them hold together
        top = of_class(counts, classes[0])[going]
        done = certificates.decided(
            lower=lower[0, going], count=top, draws=total, thresholds=thresholds, futility=alpha
        )
        advance(int(done.sum()) * (samples - total))
        going = going[~done]
        if len(going) == 0:
            break
    certified = radius_of(lower[0], **asdict(coverage)) if coverage else torch.zeros_like(lower[0])
    return Election(classes[0], counts, made, lower, certified)


def of_class(counts: Tensor, classes: Tensor) -> Tensor:
    """The count of one class in each row, (N,)."""
    return counts.gather(1, classes[:, None])[:, 0]


def block_size(samples: int, *, batch: int, sequential: bool = False, most: int | None = None) -> int:
    """How many images are voted on together, which share the seeds of their samples.

    most: at most so many (default: as many as have several samples in a batch).
    """
    expected = math.ceil(samples / _SAVED) if sequential else samples
    return max(1, min(batch // _AT_ONCE if most is None else most, _BATCHES * batch // expected))


def sampled_logits(
    classify: Model, defense: Defense | None, images: Tensor, samples: int, *, batch: int,
    advance: Advance = lambda made: None,
) -> Iterator[Tensor]:  # fmt: skip
    """Logits of fresh samples, (some, N, classes) at a time, so that a million need no memory."""

    def model(shown: Tensor) -> Tensor:
        return classify(shown if defense is None else defense(shown))

    some = max(1, batch // len(images))
    for start in range(0, samples, some):
        block = outputs(model, images, runs=min(some, samples - start), batch=batch).cpu()
        advance(block.shape[0] * block.shape[1])
        yield block


def count_classes(blocks: Iterable[Tensor], *, classes: int = 0) -> Tensor:
    """How often each class came out of logits (some, N, C), (N, C), or (N, classes) where those are more."""
    counts: Tensor | None = None
    for block in blocks:
        if counts is None:
            counts = torch.zeros(block.shape[1], max(classes, block.shape[2]), dtype=torch.int64)
        answers = block.argmax(-1).T
        counts.scatter_add_(1, answers, torch.ones_like(answers))
    assert counts is not None  # one sample at least
    return counts


@torch.no_grad()
def count_shifts(
    model: Model, splitting: Splitting, images: Tensor, *, batch: int, advance: Advance = lambda made: None
) -> Tensor:
    """How many of all shifts of a splitting give each class, (N, classes)."""
    shifts, counts = splitting.levels, None
    for some in torch.split(torch.arange(len(images) * shifts, device=images.device), batch):
        image = some.div(shifts, rounding_mode="floor")
        logits = ask(model, splitting.shifted(images[image], some % shifts))
        check_rows(logits, len(some))
        check_finite(logits)
        if counts is None:
            counts = torch.zeros(len(images), logits.shape[-1], dtype=torch.int64, device=images.device)
        place = image * counts.shape[1] + logits.argmax(-1)
        counts.view(-1).scatter_add_(0, place, torch.ones_like(place))
        advance(len(some))
    assert counts is not None
    return counts.cpu()


def check_8_bit(images: Tensor, *, first: int = 0) -> None:
    """Refuse images, numbered from `first`, that a splitting would round silently."""
    levels = images.double() * LEVELS
    off = (levels - levels.round()).abs().flatten(1)
    if bool((off > _ROUNDING).any()):
        number = int((off.amax(1) > _ROUNDING).nonzero()[0])
        wrong = float(levels[number].flatten()[off[number].argmax()]) / LEVELS
        raise InvalidInputError(
            f"image {first + number} holds {wrong:.6g}, which is not a multiple of 1/255; the L1 "
            "certificate is of 8-bit images: round them first, as in images.mul(255).round().div(255)"
        )


def decisive_radii(
    coverage: Coverage, radii: Sequence[float], *, samples: int, alpha: float
) -> tuple[float, ...]:
    """The L2 radii that a sequential vote decides about: those given, or even ones."""
    largest = certificates.radius(counts_top=samples, draws=samples, alpha=alpha, **asdict(coverage))
    return tuple(radii) or tuple(even_radii(largest))


def even_radii(largest: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, below the largest radius that the samples can give."""
    if largest <= 0:  # too few samples to certify anything
        return [0.0]
    rough = largest / _RADII
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(number * step, 12) for number in range(math.ceil(largest / step))]

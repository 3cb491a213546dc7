"""Voting: a predictor that classifies by the majority of many samples, and abstains where it is not sure.

`certify` counts votes with the functions of this module, so what it certifies is what `Voting` predicts.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vqshield import certificates
from vqshield.certificates import ABSTAIN, Coverage
from vqshield.certificates.numbers import chance
from vqshield.certificates.splitting import LEVELS
from vqshield.certificates.vote import radius_of
from vqshield.classifiers.folding import PRECISIONS, fast_forward
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.defended import Defended, alteration_of
from vqshield.defenses import Defense, Splitting
from vqshield.models.calling import Model, ask, check_finite, check_rows, evaluating, own_dtype
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
    """

    selected: Tensor
    counts: Tensor
    samples: Tensor
    lower: Tensor


def elect(
    count: Count,
    images: int,
    *,
    selection: int,
    samples: int,
    alpha: float,
    sequential: bool = False,
    thresholds: Sequence[float] = (0.5,),
    also: Sequence[Tensor] = (),
    advance: Advance = lambda saved: None,
) -> Election:
    """Choose a class per image with `selection` samples, and bound its probability with other samples.

    Args:
        count: makes the samples.
        images: how many.
        selection, samples, alpha: as of `Voting`.
        sequential: look at the samples now and then, and stop where all thresholds are decided; the looks
            share alpha. Otherwise there is one look, at all samples.
        thresholds: the probabilities that a look decides about.
        also: further classes to bound, each (N,).
        advance: called with how many samples early stopping saved.
    """
    looks = certificates.looks(draws=samples) if sequential else (samples,)
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
    return Election(classes[0], counts, made, lower)


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
    model: Model, images: Tensor, samples: int, *, batch: int, advance: Advance = lambda made: None
) -> Iterator[Tensor]:
    """Logits of fresh samples, (some, N, classes) at a time, so that a million need no memory."""
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
    return counts


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


def largest_radius(coverage: Coverage, *, samples: int, alpha: float) -> float:
    """The L2 radius of an image whose samples all agree."""
    return certificates.radius(counts_top=samples, draws=samples, alpha=alpha, **asdict(coverage))


def even_radii(largest: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, below the largest radius that the samples can give."""
    if largest <= 0:  # too few samples to certify anything
        return [0.0]
    rough = largest / _RADII
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(number * step, 12) for number in range(math.ceil(largest / step))]


@dataclass(frozen=True)
class VotedClasses:
    """What `Voting` predicts for N images, on the CPU.

    Attributes:
        classes: the elected classes, or `vqshield.certificates.ABSTAIN` (-1), (N,).
        votes: how many of the counted samples gave the class that was chosen, (N,).
        samples: how many samples were counted, (N,).
        lower: lower bounds on the probability of the chosen class, which hold with probability 1 - alpha for
            each image; of a `Splitting` the exact share of all shifts, (N,).
        radii: certified radii in units of [0, 1], 0 where nothing is certified, (N,).
        norm: the norm of the radii, "l2" or "l1"; None: no certificate is known for the defense.

    Example:
        >>> voting = vq.Voting(vq.defend(classifier, "prd:sigma=0.1,tau=0.1"), samples=100, seed=0)
        >>> predicted = voting.predict(images)
        >>> predicted.norm, bool((predicted.votes <= predicted.samples).all())
        ('l2', True)
    """

    classes: Tensor
    votes: Tensor
    samples: Tensor
    lower: Tensor
    radii: Tensor
    norm: Literal["l2", "l1"] | None


class Voting(nn.Module):
    """Classifies images by the majority of many samples of a random model, and can abstain.

    `certify` certifies this vote: with the same model, settings and seed, both give the same classes,
    abstentions and radii. Behind a `Splitting`, a vote counts every shift once and has no randomness.

    Args:
        model: a model that `vq.defend` made, or any module whose outputs are random.
        samples: samples that are counted, at most.
        selection: further samples, which choose the class whose probability is bounded.
        alpha: probability, for each image, that the bound and the radius are wrong.
        abstain: answer ABSTAIN where the bound does not exceed 1/2. False: answer the chosen class.
        sequential: stop early where the vote is decided.
        radii: L2 radii that a sequential vote decides about (default: evenly up to the largest possible).
        seed: seed of all samples, which every call repeats. None: other samples in every call.
        batch: images per forward pass, one for each sample; also decides how many images share a seed.
        precision: precision of the classifier: "float32" or "bf16".

    Raises:
        InvalidInputError: a setting out of range; a seed for a model that has none; radii without an L2
            certificate.

    Example:
        >>> voting = vq.Voting(vq.defend(classifier, "swrd"), samples=20, selection=5, seed=0)
        >>> voting(images).shape, voting.predict(images).classes.shape
        (torch.Size([8, 10]), torch.Size([8]))
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        samples: int = 1000,
        selection: int = 100,
        alpha: float = 0.001,
        abstain: bool = True,
        sequential: bool = False,
        radii: Sequence[float] = (),
        seed: int | None = None,
        batch: int = 500,
        precision: str = "float32",
    ) -> None:
        super().__init__()
        self.model = model
        self.samples = checks.whole("samples", samples, least=1)
        self.selection = checks.whole("selection", selection, least=1)
        self.alpha = chance("alpha", alpha)
        self.abstain, self.sequential = abstain, sequential
        self.radii = tuple(checks.real("radius", each) for each in radii)
        self.seed = None if seed is None else checks.whole("seed", seed, least=0, below=2**64)
        self.batch = checks.whole("batch", batch, least=1)
        self.precision = checks.one_of("precision", precision, PRECISIONS)
        if seed is not None and self.defense is None:
            raise InvalidInputError(
                f"seed={seed} needs a model as vq.defend made it; this {type(model).__name__} draws random "
                "numbers of its own: leave the seed out"
            )
        if radii and (self.coverage is None or not sequential):
            raise InvalidInputError(
                f"radii={self.radii} need sequential=True and a defense with an L2 certificate"
            )

    @property
    def defense(self) -> Defense | None:
        """The defense whose samples are counted; None: the model is called as a whole."""
        model = self.model
        return model.defense if isinstance(model, Defended) and alteration_of(model) is None else None

    @property
    def coverage(self) -> Coverage | None:
        """What the L2 certificate may assume of the defense; None: it has no such certificate."""
        try:
            return Coverage.of(**self.defense.certificate_terms()) if self.defense else None
        except InvalidInputError:
            return None

    def forward(self, images: Tensor) -> Tensor:
        """The share of the samples that gave each class, (B, classes)."""
        if isinstance(self.defense, Splitting):
            shares = self._shifts(images, self.defense).double() / self.defense.levels
        else:
            counted = (count("estimation", places, self.samples) for count, places in self._blocks(images))
            shares = torch.cat(list(counted)).double() / self.samples
        return shares.to(images.device, torch.float32)

    def predict(self, images: Tensor) -> VotedClasses:
        """The elected class of each image, and the evidence for it."""
        if isinstance(self.defense, Splitting):
            return self._all_shifts(images, self.defense)
        coverage = self.coverage
        thresholds: tuple[float, ...] = (0.5,)
        if coverage and self.sequential:
            largest = largest_radius(coverage, samples=self.samples, alpha=self.alpha)
            decided = self.radii or even_radii(largest)
            thresholds = certificates.thresholds_for(radii=decided, **asdict(coverage))
        parts = []
        for count, places in self._blocks(images):
            election = elect(
                count, len(places), selection=self.selection, samples=self.samples, alpha=self.alpha,
                sequential=self.sequential, thresholds=thresholds,
            )  # fmt: skip
            lower = election.lower[0]
            answered = (lower > 0.5) | (not self.abstain)
            parts.append(
                (
                    torch.where(answered, election.selected, ABSTAIN),
                    of_class(election.counts, election.selected),
                    election.samples,
                    lower,
                    radius_of(lower, **asdict(coverage)) if coverage else torch.zeros_like(lower),
                )
            )
        classes, votes, samples, lower, radii = (torch.cat(column) for column in zip(*parts, strict=True))
        return VotedClasses(classes, votes, samples, lower, radii, norm="l2" if coverage else None)

    def _blocks(self, images: Tensor) -> Iterator[tuple[Count, Tensor]]:
        """For images that are voted on together: what counts their samples, and their places."""
        _check(images)
        key = int.from_bytes(os.urandom(8)) if self.seed is None else self.seed
        kind = SEQUENTIAL if self.sequential else VOTE
        classify, defense = self._classifier(images.device), self.defense
        name = "" if defense is None else defense.spec or f"{IN_MEMORY}: {type(defense).__name__}"

        def counter(start: int, block: Tensor) -> Count:
            def count(purpose: str, places: Tensor, samples: int) -> Tensor:
                model = classify
                if defense is not None:
                    seed = derived_seed(key, name, kind, start, purpose)
                    model = _behind(defense.reseeded(seed).to(images.device), classify)
                shown = block[places.to(images.device)]
                return count_classes(sampled_logits(model, shown, samples, batch=self.batch))

            return count

        size = block_size(self.samples, batch=self.batch, sequential=self.sequential)
        with evaluating(self.model):
            for start in range(0, len(images), size):
                block = images[start : start + size]
                yield counter(start, block), torch.arange(len(block))

    def _classifier(self, device: torch.device) -> Model:
        """The model behind the defense in its fastest form, or all of it where no defense was found."""
        if self.defense is None or not isinstance(self.model, Defended):
            return self.model
        classifier = self.model.classifier
        forward = fast_forward(classifier, device=device, precision=self.precision)
        return lambda images: forward(images.to(own_dtype(classifier, images.dtype)))

    def _shifts(self, images: Tensor, splitting: Splitting) -> Tensor:
        """How many of all shifts give each class, (B, classes)."""
        _check(images)
        pixels = splitting.pixels(images)
        check_8_bit(pixels)
        with evaluating(self.model):
            classify = self._classifier(pixels.device)
            return count_shifts(classify, splitting, pixels, batch=self.batch).cpu()

    def _all_shifts(self, images: Tensor, splitting: Splitting) -> VotedClasses:
        counts = self._shifts(images, splitting)
        votes = certificates.certify_all_shifts(counts=counts)
        top, samples = of_class(counts, votes.answers), torch.full_like(votes.answers, splitting.levels)
        return VotedClasses(votes.answers, top, samples, top / samples.double(), votes.radii, norm="l1")


def _behind(defense: Model, classify: Model) -> Model:
    return lambda images: classify(defense(images))


def _check(images: Tensor) -> None:
    checks.image_batch(images, (*checks.IMAGE_DTYPES, *checks.NARROW_DTYPES))
    if len(images) == 0:
        raise InvalidInputError("0 images were given; a vote needs at least 1")

"""The predictor that votes, and what it predicts."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vqshield.certificates import ABSTAIN, Coverage, certify_all_shifts
from vqshield.certificates.numbers import chance
from vqshield.classifiers.folding import PRECISIONS, fast_forward
from vqshield.core import checks
from vqshield.core.display_names import IN_MEMORY
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.defended import Defended, alteration_of
from vqshield.defenses import Defense, Splitting
from vqshield.models.calling import Model, own_dtype, repeatable
from vqshield.voting import counting
from vqshield.voting.counting import SEQUENTIAL, VOTE, Count, of_class


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
    abstentions and radii. Seeds depend on the defense's spec string: give `certify` the model itself, or
    `model.defense.spec`. Behind a `Splitting`, a vote counts every shift once and has no randomness.

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
        InvalidInputError: a setting out of range; a seed or radii for a model that they are not for.

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
        if not isinstance(model, nn.Module):
            raise InvalidInputError(f"model should be a module, not {type(model).__name__}")
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
                f"seed={seed} needs a model of vq.defend; leave it out for this {type(model).__name__}"
            )
        if radii and (self.coverage is None or not sequential):
            raise InvalidInputError(f"radii={self.radii} need sequential=True and an L2 certificate")

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
        if type(self.defense) is Splitting:
            shares = self._all_shifts(images, self.defense).double() / self.defense.levels
        else:
            counts = [count("estimation", places, self.samples) for count, places in self._blocks(images)]
            shares = torch.cat(counts).double() / self.samples
        return shares.to(images.device, torch.float32)

    def predict(self, images: Tensor) -> VotedClasses:
        """The elected class of each image, and the evidence for it."""
        if type(self.defense) is Splitting:
            counts = self._all_shifts(images, self.defense)
            exact = certify_all_shifts(counts=counts)
            top, shifts = of_class(counts, exact.answers), torch.full_like(exact.answers, self.defense.levels)
            return VotedClasses(exact.answers, top, shifts, top / shifts.double(), exact.radii, norm="l1")
        parts = [self._elected(count, len(places)) for count, places in self._blocks(images)]
        classes, votes, samples, lower, radii = map(torch.cat, zip(*parts, strict=True))
        return VotedClasses(classes, votes, samples, lower, radii, norm="l2" if self.coverage else None)

    def _elected(self, count: Count, images: int) -> tuple[Tensor, ...]:
        """The columns of the prediction for images that are voted on together."""
        found = counting.elect(
            count, images, coverage=self.coverage, selection=self.selection, samples=self.samples,
            alpha=self.alpha, sequential=self.sequential, radii=self.radii,
        )  # fmt: skip
        lower, votes = found.lower[0], of_class(found.counts, found.selected)
        answered = (lower > 0.5) | (not self.abstain)
        return torch.where(answered, found.selected, ABSTAIN), votes, found.samples, lower, found.radii

    def _blocks(self, images: Tensor) -> Iterator[tuple[Count, Tensor]]:
        """For images that are voted on together: what counts their samples, and their places.

        As in `certify`, the images of a block share seeds. The last bits of their bounds depend on the block.
        """
        _check(images)
        key = int.from_bytes(os.urandom(8)) if self.seed is None else self.seed
        kind, defense = SEQUENTIAL if self.sequential else VOTE, self.defense
        if defense is not None:  # as `Defended` does: bytes would reach the classifier as they are
            images = defense.pixels(images)
        name = "" if defense is None else defense.spec or f"{IN_MEMORY}: {type(defense).__name__}"
        classify = self._classifier(images.device)

        def counter(start: int, block: Tensor) -> Count:
            def count(purpose: str, places: Tensor, samples: int) -> Tensor:
                fresh, shown = None, block[places.to(block.device)]
                if defense is not None:
                    fresh = defense.reseeded(derived_seed(key, name, kind, start, purpose)).to(block.device)
                logits = counting.sampled_logits(classify, fresh, shown, samples, batch=self.batch)
                return counting.count_classes(logits)

            return count

        size = counting.block_size(self.samples, batch=self.batch, sequential=self.sequential)
        with repeatable(self.model):
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

    def _all_shifts(self, images: Tensor, splitting: Splitting) -> Tensor:
        """How many of all shifts give each class, (B, classes)."""
        _check(images)
        pixels = splitting.pixels(images)
        counting.check_8_bit(pixels)
        with repeatable(self.model):
            classify = self._classifier(pixels.device)
            return counting.count_shifts(classify, splitting, pixels, batch=self.batch)


def _check(images: Tensor) -> None:
    checks.image_batch(images, (*checks.IMAGE_DTYPES, *checks.NARROW_DTYPES))
    if len(images) == 0:
        raise InvalidInputError("0 images were given; a vote needs at least 1")

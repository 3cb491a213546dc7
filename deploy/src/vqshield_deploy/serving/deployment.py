"""From names and settings to a predictor: classifier, defense, votes, class names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vqshield.classifiers import Normalised, load_classifier, named_defense
from vqshield.classifiers.sources import metadata, weights_file
from vqshield.core import checks
from vqshield.core.display_names import NONE, display_defense
from vqshield.core.environment import pick_device
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.files import file_exists, parse_json
from vqshield.data import sample
from vqshield.data.base import asset
from vqshield.data.folders import imagenet_classes
from vqshield.defended import Defended
from vqshield.defenses import as_defense
from vqshield.voting import Voting
from vqshield_deploy.serving.predictor import Input, Predictor

SIDE = 32
IMAGENET = ("timm:", "torchvision:", "efficientnet-lite")
"""How the names of classifiers begin whose 1,000 classes are those of ImageNet."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What is served. It travels to other processes as it is.

    Attributes:
        classifier: a weights file, which may be that of `vqshield calibrate` or `harden`, or another source
            that `vqshield list classifiers` shows.
        defense: its spec string, "package.module:function" or "none" (default: the one that the classifier's
            file says it was fine-tuned behind, else swrd).
        mean, std: of each channel, in units of [0, 1], for a module:function that expects images normalised
            by them.
        class_names: read the names of the classes from this file, one per line (default: those of the
            classifier's card, or of its data set).
        side: resize images to this many pixels per side (default: the classifier's input size, else 32).
        votes: count this many samples per image, and abstain where they do not agree; 1: answer with the
            class of one sample and its probability.
        selection: choose the class whose votes are counted with this many further samples.
        alpha: probability, for each image, that the bound and the radius of a vote are wrong.
        abstain: answer without a class where the bound does not exceed 1/2.
        sequential: stop a vote early where it is decided.
        seed: give equal images equal answers, for tests (default: fresh samples, which attackers cannot
            rehearse).
        device: "cpu", "cuda", or "auto": the GPU where there is one.
    """

    classifier: str
    defense: str | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    class_names: Path | None = None
    side: int | None = None
    votes: int = 1
    selection: int = 10
    alpha: float = 0.001
    abstain: bool = True
    sequential: bool = False
    seed: int | None = None
    device: str = "cpu"

    @property
    def shield(self) -> str:
        """The defense, or "none"."""
        return self.defense or named_defense(self.classifier) or "swrd"

    def __str__(self) -> str:
        votes = f", {self.votes} votes" if self.votes > 1 else ""
        return f"{self.classifier} behind {display_defense(self.shield)}{votes}"

    def build(self) -> Predictor:
        """Load the classifier, and try it on a black image.

        Raises:
            InvalidInputError: settings that do not fit each other, or the classifier.
        """
        votes = checks.whole("votes", self.votes, least=1)
        classifier = self._classifier()
        model: nn.Module = classifier
        if self.shield != NONE:
            seed = self.seed if votes == 1 else None  # a vote has its own
            model = Defended(classifier, as_defense(self.shield, seed=seed)).eval()
        elif votes > 1 or self.seed is not None:
            option = f"votes={votes}" if votes > 1 else f"seed={self.seed}"
            raise InvalidInputError(f"{option} needs a defense: without one, all samples are the same")
        input, classes = self._input(classifier)
        if votes > 1:
            model = Voting(
                model, samples=votes, selection=self.selection, alpha=self.alpha, abstain=self.abstain,
                sequential=self.sequential, seed=self.seed,
            )  # fmt: skip
        names = class_names(self.classifier, classes, self.class_names)
        return Predictor(model, names=names, input=input, repeats=self.seed is not None)

    def _classifier(self) -> Normalised:
        classifier = load_classifier(self.classifier, device=pick_device(self.device))
        if self.mean is None and self.std is None:
            return classifier
        if self.mean is None or self.std is None:
            raise InvalidInputError("mean and std belong together; give both or neither")
        if bool((classifier.mean != 0).any()) or bool((classifier.std != 1).any()):
            raise InvalidInputError(
                f"mean={list(self.mean)} is given, and {self.classifier} normalises already; leave mean and "
                "std out"
            )
        return Normalised(
            classifier.network, mean=self.mean, std=self.std, size=classifier.size, crop=classifier.crop,
            resize=classifier.resize,
        ).to(classifier.mean.device)  # fmt: skip

    def _input(self, classifier: Normalised) -> tuple[Input, int]:
        """What the classifier is shown, and how many classes it tells apart; color comes before grey."""
        size = classifier.size or (SIDE, SIDE)
        if self.side is not None:
            size = (checks.whole("side", self.side, least=1, below=1 << 14),) * 2
        problem = ""
        for channels in (3, 1):
            try:
                with torch.inference_mode():
                    logits = classifier(torch.zeros(1, channels, *size, device=classifier.mean.device))
                shown = Input(size, channels, crop=classifier.crop, resize=classifier.resize)
                return shown, logits.shape[-1]
            except (RuntimeError, VqshieldError) as error:
                problem = problem or " ".join(str(error).split())[:300]
        raise InvalidInputError(
            f"classifier {self.classifier!r} takes no images of {size[1]}x{size[0]} pixels ({problem}); give "
            "its input size as side (--side)"
        )


def class_names(classifier: str, count: int, file: Path | None = None) -> tuple[str, ...]:
    """The names of a classifier's classes: those of a file, its card or its data set; empty: none known."""
    if file is not None:
        lines = [line.strip() for line in file.read_bytes().decode(errors="replace").splitlines()]
        names = [line for line in lines if line]
        if len(names) != count:
            raise InvalidInputError(
                f"{file} has {len(names)} names, one per line; the classifier has {count} classes"
            )
        return tuple(names)
    usual = "imagenet" if classifier.startswith(IMAGENET) else ""
    for known in (_card_names(classifier), _names_of(metadata(classifier).get("data", usual))):
        if len(known) == count:
            return tuple(map(str, known))
    return ()


def _card_names(classifier: str) -> Sequence[object]:
    """What the card next to a weights file lists as classes."""
    weights = weights_file(classifier)
    card = weights.with_suffix(".json") if weights.name else weights
    facts = parse_json(card.read_bytes(), card) if file_exists(card) else None
    names = facts.get("classes") if isinstance(facts, dict) else None
    return names if isinstance(names, list) else ()


def _names_of(data: str) -> Sequence[str]:
    """The class names of a data set, as far as the package has them."""
    if data == "cifar10":
        return sample(1).classes
    if data == "cifar100":
        return asset("cifar100-classes.txt").decode().split()
    return [*imagenet_classes().values()] if data == "imagenet" else ()

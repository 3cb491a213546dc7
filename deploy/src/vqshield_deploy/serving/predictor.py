"""Images to answers: the class of one sample, or of a vote that can abstain."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from vqshield.certificates import ABSTAIN
from vqshield.data.base import Size
from vqshield.defended import Defended
from vqshield.defenses import Defense, Quantizer
from vqshield.quantization import kernels
from vqshield.voting import Voting


class Sampled(BaseModel):
    """The answer of one sample."""

    name: str = Field(serialization_alias="class")
    index: int
    probability: float


class Voted(BaseModel):
    """The answer of a vote: `class` and `index` are null where it abstains.

    Attributes:
        name: name of the class, or its index as text; its key is `class`.
        index: index of the class.
        abstained: whether the bound is too low for an answer.
        votes: how many of the samples gave the class that the vote is about.
        samples: how many samples were counted.
        lower: lower bound on the probability of that class.
        radius: certified radius around the image as the classifier sees it, in units of [0, 1].
        norm: norm of the radius; null where the defense has no certificate.
    """

    name: str | None = Field(serialization_alias="class")
    index: int | None
    abstained: bool
    votes: int
    samples: int
    lower: float
    radius: float
    norm: Literal["l2", "l1"] | None


Answer = Sampled | Voted


@dataclass(frozen=True)
class Input:
    """What a classifier is shown: the size and channels of its images, and how pictures are cut for it."""

    size: Size = (32, 32)
    channels: int = 3
    crop: float = 1.0
    resize: str = "bicubic"


class Predictor:
    """Answers for batches of images.

    Args:
        model: a defended model, a classifier, or a `vq.Voting`.
        names: names of the classes; empty: their indices are their names.
        input: what the model is shown.
        repeats: equal images get equal answers, whatever else is in their batch. A vote needs a seed for
            that; a defended model answers with the first sample of its seed.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        names: Sequence[str] = (),
        input: Input | None = None,
        repeats: bool = False,
    ) -> None:
        self.model, self.input, self._repeats = model, input or Input(), repeats
        self.names = tuple(names)
        parameter = next(model.parameters(), None)
        self._device = torch.device("cpu") if parameter is None else parameter.device

    @property
    def answer(self) -> type[Answer]:
        """The kind of answer."""
        return Voted if isinstance(self.model, Voting) else Sampled

    @property
    def defense(self) -> Defense | None:
        """The defense of the model."""
        model = self.model.model if isinstance(self.model, Voting) else self.model
        return model.defense if isinstance(model, Defended) else None

    @property
    def backend(self) -> str:
        """The name of the quantizer's implementation."""
        defense = self.defense
        return kernels.get(defense.backend).name if isinstance(defense, Quantizer) else "none"

    def warm_up(self) -> None:
        """Answer a black image: the first call is slow."""
        self(torch.zeros(1, self.input.channels, *self.input.size, dtype=torch.uint8))

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> list[Answer]:
        """Answers to uint8 images (B, channels, height, width)."""
        pixels = images.to(self._device).float() / 255
        answer = self._vote if isinstance(self.model, Voting) else self._sample
        alone = 1 if self._repeats else len(pixels)  # samples may depend on the other images of a batch
        return [each for some in torch.split(pixels, alone) for each in answer(some)]

    def _sample(self, images: Tensor) -> Iterator[Answer]:
        first = {"streams": torch.zeros(1, dtype=torch.int64, device=self._device)} if self._repeats else {}
        best = self.model(images, **first).softmax(1).max(1)
        for index, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            yield Sampled(name=self._name(index), index=index, probability=probability)

    def _vote(self, images: Tensor) -> Iterator[Answer]:
        assert isinstance(self.model, Voting)
        found = self.model.predict(images)
        columns = found.classes, found.votes, found.samples, found.lower, found.radii
        for index, votes, samples, lower, radius in zip(*map(Tensor.tolist, columns), strict=True):
            abstained = index == ABSTAIN
            yield Voted(
                name=None if abstained else self._name(index), index=None if abstained else index,
                abstained=abstained, votes=votes, samples=samples, lower=lower, radius=radius,
                norm=found.norm,
            )  # fmt: skip

    def _name(self, index: int) -> str:
        return self.names[index] if self.names else str(index)

"""Pictures of what an attack does, and of what each defense makes of that: figures 1 and 10 of the paper.

Everything is done with the pictures as a PNG holds them: the attack's images are rounded to bytes, the
defenses are given those, and the classifier answers about what they make, rounded again. So every record
can be checked with its own picture.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield import checks
from vqshield.attacks import Ball, ball
from vqshield.certificates.numbers import positive
from vqshield.defenses import Quantizer
from vqshield.environment import environment
from vqshield.errors import InvalidInputError
from vqshield.images import encode_png
from vqshield.runs.records import Key, RecordFolder
from vqshield.runs.study import Report, ResumableWork
from vqshield.runs.target import Subject
from vqshield.seeds import derived_seed
from vqshield.studies.gallery_records import PictureRecord
from vqshield.studies.specification import NONE, EvaluationSettings, defense
from vqshield.threats import Threat, threat

CLEAN, ATTACKED = "clean", "attacked"
_ROUNDING = 1e-6  # of float32, in values up to 1


@dataclass(frozen=True, kw_only=True)
class GallerySettings:
    """Which images, attacked how, in front of which defenses; the defaults are the paper's on CIFAR-10.

    attack: a threat as typed that ignores defenses, since all of them are shown on the same attacked image.
    images: their places in the data, in the order in which they are shown.
    """

    defenses: tuple[str, ...] = ("randdisc:codes=25", "prd:size=2,codes=25", "swrd:size=3,codes=25")
    attack: str = "autoattack:surrogate=none"
    norm: str = "linf"
    eps: float = 8 / 255
    images: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    seed: int = 0

    def __post_init__(self) -> None:
        positive("eps", self.eps)
        if self.threat(seed=0).surrogate != NONE:
            raise InvalidInputError(
                f"attack={self.attack!r} goes through a defense, which would show each one another attacked "
                f"image; give it surrogate={NONE}"
            )
        if not self.images:
            raise InvalidInputError("images holds no number; give the places of the images to show, from 0")
        for image in self.images:
            checks.whole("images", image, least=0)
            if self.images.count(image) > 1:
                raise InvalidInputError(f"images holds {image} twice; give each image once")
        self._in_full()  # checks defenses and the seed
        for text in self.defenses:
            self.create(text, seed=0)

    @property
    def ball(self) -> Ball:
        """Where the attack may move an image to."""
        return ball(self.norm, self.eps)

    def threat(self, *, seed: int) -> Threat:
        """The attack."""
        return threat(self.attack, self.ball, seed=seed)

    def create(self, text: str, *, seed: int) -> Quantizer:
        """A defense as typed, with that seed."""
        chosen = defense(text, seed=seed)
        if chosen is None:
            raise InvalidInputError(
                f"defense {text!r} is the column {ATTACKED!r}, shown in any case; leave it out"
            )
        return chosen

    def described(self) -> dict[str, Any]:
        """The settings with everything that names and defaults stand for, as JSON can hold it."""
        full = self._in_full()
        shields = [{"defense": text, "caption": f"{ATTACKED}, then {text}"} for text in self.defenses]
        return {
            "norm": self.norm,
            "eps": self.eps,
            "images": list(self.images),
            "seed": self.seed,
            "attack": full["attacks"][0]["threats"][0],
            "defenses": full["defenses"],
            "columns": [
                {"defense": NONE, "caption": CLEAN},
                {"defense": NONE, "caption": ATTACKED},
                *shields,
            ],
        }

    def _in_full(self) -> dict[str, Any]:
        return EvaluationSettings(
            defenses=self.defenses, attacks=(self.attack,), norm=self.norm, eps=self.eps, seed=self.seed
        ).described()


@dataclass(frozen=True, kw_only=True)
class GalleryCell:
    """The unit of work: a row of the gallery, one image in every column."""

    image: int
    columns: tuple[tuple[str, str], ...]  # defense, caption

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(name, caption, self.image) for name, caption in self.columns]


def cells(specification: Mapping[str, Any]) -> list[GalleryCell]:
    """All the work, in the order in which the images are shown."""
    columns = tuple((each["defense"], each["caption"]) for each in specification["columns"])
    return [GalleryCell(image=image, columns=columns) for image in specification["images"]]


class Gallery(ResumableWork[GalleryCell, PictureRecord]):
    """Every image clean, attacked, and attacked behind each defense: one record a picture."""

    def __init__(
        self, settings: GallerySettings, subject: Subject, folder: Path, report: Report = lambda *_: None
    ) -> None:
        super().__init__(report)
        self.settings, self.subject = settings, subject
        count = len(subject.data)
        if max(settings.images) >= count:
            raise InvalidInputError(
                f"images holds {max(settings.images)}; {subject.data.name!r} has the images 0 to {count - 1}"
            )
        for text in settings.defenses:
            settings.create(text, seed=0).streams(subject.data.floats(slice(1)))  # is it large enough?
        self.specification: dict[str, Any] = {
            **subject.described(),
            "classes": list(subject.data.classes),
            **settings.described(),
            "machine": environment(subject.device),
        }
        self.cells: Sequence[GalleryCell] = cells(self.specification)
        self.records: RecordFolder[PictureRecord] = RecordFolder(
            folder, [cell.keys for cell in self.cells], PictureRecord.parse
        )

    def measure(self, cell: GalleryCell) -> list[PictureRecord]:
        """The pictures of one image, in the order of the columns."""
        part = slice(cell.image, cell.image + 1)
        clean, labels = as_bytes(self.subject.data.floats(part)), self.subject.data.labels[part]
        self._tell(cell, 0)
        attacked = self._attacked(cell, clean, labels)
        found = []
        for number, (text, caption) in enumerate(cell.columns, start=1):
            picture = clean if caption == CLEAN else attacked
            if text != NONE:
                seed = derived_seed(self.settings.seed, text, cell.image, "picture")
                shield = self.settings.create(text, seed=seed).to(self.subject.device)
                picture = as_bytes(shield(self._floats(attacked)))
            found.append(
                PictureRecord(
                    defense=text,
                    caption=caption,
                    image=cell.image,
                    label=int(labels),
                    answer=self._answer(picture),
                    height=picture.shape[2],
                    width=picture.shape[3],
                    png=base64.b64encode(encode_png(picture[0].permute(1, 2, 0).numpy())).decode("ascii"),
                )
            )
            self._tell(cell, number)
        return found

    def cost(self, cell: GalleryCell) -> int:
        """How many pictures it is."""
        return len(cell.columns)

    def title(self, cell: GalleryCell) -> str:
        """What a progress bar says meanwhile."""
        return f"pictures of image {cell.image}"

    def _attacked(self, cell: GalleryCell, clean: Tensor, labels: Tensor) -> Tensor:
        options, images = self.settings, self._floats(clean)
        chosen = options.threat(
            seed=derived_seed(options.seed, options.attack, f"eps={options.eps}", cell.image)
        )
        # An attack that ignores defenses needs none.
        found = chosen(self.subject.classifier, None, images, labels.to(images.device))
        return moved_bytes(clean, found, options.ball)

    @torch.no_grad()
    def _answer(self, picture: Tensor) -> int:
        return int(self.subject.classifier(self._floats(picture)).argmax(1))

    def _floats(self, picture: Tensor) -> Tensor:
        """Divided here and not on a GPU, whose last bit may differ from that of the data."""
        return (picture.float() / 255).to(self.subject.device)


def as_bytes(images: Tensor) -> Tensor:
    """Images in [0, 1] as a PNG holds them: uint8, on the CPU."""
    return images.detach().cpu().mul(255).round().byte()


def moved_bytes(clean: Tensor, moved: Tensor, within: Ball) -> Tensor:
    """What an attack made of clean bytes, as bytes that do not leave the ball.

    Rounding to the nearest byte can, where eps is no multiple of 1/255; then changes are rounded down.
    """
    change = moved.detach().cpu().double() * 255 - clean
    nearest = change.round()
    if float(within.length(nearest / 255).max()) > within.eps + _ROUNDING:
        nearest = (change + change.sign() * 255 * _ROUNDING).trunc()
    return (clean + nearest).byte()

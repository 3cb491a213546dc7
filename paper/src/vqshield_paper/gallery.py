"""Pictures of attacked images and of the images after each defense: Fig. 1 and 10 of the paper.

Everything is done with the pictures as a PNG holds them: the attack's images are rounded to bytes, the
defenses are given those, and the classifier answers about what they make, rounded again. So every record
can be checked with its own picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vqshield.attacks import Ball, ball
from vqshield.attacks.threats import Threat, threat
from vqshield.certificates.numbers import positive
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import derived_seed
from vqshield.defenses import Defense
from vqshield.images.pictures import GalleryPicture, GalleryRow, as_bytes, moved_bytes, png, png_uri
from vqshield.runs.arguments import defense_from, refuse_twice
from vqshield.runs.manifests import DefenseId, TargetManifest, ThreatId
from vqshield.runs.records import Key, Record
from vqshield.runs.study import CellProgress, Recorded, TargetStudy, no_cell_progress

CLEAN, ATTACKED = "clean", "attacked"


@dataclass(frozen=True, kw_only=True)
class PictureRecord(Record):
    """One picture of the gallery.

    caption: its column. answer: what the bare classifier takes this very picture for.
    png: the picture as a PNG file, in base64.
    """

    caption: str
    image: int
    label: int
    answer: int
    height: int
    width: int
    png: str

    @property
    def key(self) -> Key:
        return self.defense, self.caption, self.image


@dataclass(frozen=True, kw_only=True)
class GalleryColumn:
    """A column of the gallery: a defense, or none."""

    defense: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class GalleryManifest(TargetManifest):
    """What the pictures are of."""

    classes: tuple[str, ...]
    norm: str
    eps: float
    images: tuple[int, ...]
    seed: int
    attack: ThreatId
    defenses: tuple[DefenseId, ...]
    columns: tuple[GalleryColumn, ...]


@dataclass(frozen=True, kw_only=True)
class GalleryCell:
    """The unit of work: a row of the gallery, one image in every column."""

    image: int
    columns: tuple[GalleryColumn, ...]

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(column.defense, column.caption, self.image) for column in self.columns]


@dataclass(frozen=True, kw_only=True)
class Gallery(TargetStudy[GalleryManifest, GalleryCell, PictureRecord]):
    """Every image clean, attacked, and attacked behind each defense; the defaults are the paper's on
    CIFAR-10.

    Attributes:
        defenses: spec strings, one column each.
        attack: a spec string of one that ignores defenses, since all defenses get the same attacked image.
        norm, eps: its budget.
        images: their positions in the data, in display order.
    """

    defenses: tuple[str, ...] = ("randdisc:codes=25", "prd:size=2,codes=25", "swrd:size=3,codes=25")
    attack: str = "autoattack:surrogate=none"
    norm: str = "linf"
    eps: float = 8 / 255
    images: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    seed: int = 0

    manifest_type = GalleryManifest
    record_type = PictureRecord

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("eps", self.eps)
        if self._threat(seed=0).surrogate != NONE:
            raise InvalidInputError(
                f"attack={self.attack!r} goes through a defense, which would show each one another attacked "
                f"image; give it surrogate={NONE}"
            )
        if not self.images:
            raise InvalidInputError("images holds no number; give the places of the images to show, from 0")
        for image in self.images:
            checks.whole("images", image, least=0)
        refuse_twice("image", self.images)
        if not self.defenses:
            raise InvalidInputError("no defense is given; give at least one")
        refuse_twice("defense", self.defenses)
        checks.whole("seed", self.seed, least=0, below=2**64)
        _ = self.built  # refuses unknown defenses

    @property
    def ball(self) -> Ball:
        """Where the attack may move an image to."""
        return ball(self.norm, self.eps)

    def build(self, spec: str) -> Defense:
        return self._create(spec, seed=0)

    def described(self) -> Mapping[str, Any]:
        held = self.target.images
        if max(self.images) >= len(held):
            raise InvalidInputError(
                f"images holds {max(self.images)}; {held.name!r} has the images 0 to {len(held) - 1}"
            )
        return {
            "classes": held.classes,
            "attack": ThreatId.of(self._threat(seed=0)),
            "columns": (
                GalleryColumn(defense=NONE, caption=CLEAN),
                GalleryColumn(defense=NONE, caption=ATTACKED),
                *(GalleryColumn(defense=text, caption=f"{ATTACKED}, then {text}") for text in self.defenses),
            ),
        }

    @staticmethod
    def cells_of(manifest: GalleryManifest) -> list[GalleryCell]:
        """In display order of the images."""
        return [GalleryCell(image=image, columns=manifest.columns) for image in manifest.images]

    def measure(self, cell: GalleryCell, progress: CellProgress = no_cell_progress) -> list[PictureRecord]:
        part = slice(cell.image, cell.image + 1)
        clean, labels = as_bytes(self.target.images.floats(part)), self.target.images.labels[part]
        progress(self.title(cell), 0)
        attacked = self._attacked(cell, clean, labels)
        found = []
        for number, column in enumerate(cell.columns, start=1):
            picture = clean if column.caption == CLEAN else attacked
            if column.defense != NONE:
                seed = derived_seed(self.seed, column.defense, cell.image, "picture")
                defense = self._create(column.defense, seed=seed).to(self.target.place)
                picture = as_bytes(defense(self._floats(attacked)))
            found.append(
                PictureRecord(
                    defense=column.defense,
                    caption=column.caption,
                    image=cell.image,
                    label=int(labels),
                    answer=self._answer(picture),
                    height=picture.shape[2],
                    width=picture.shape[3],
                    png=png(picture[0]),
                )
            )
            progress(self.title(cell), number)
        return found

    def cost(self, cell: GalleryCell) -> int:
        """How many pictures it is."""
        return len(cell.columns)

    def title(self, cell: GalleryCell) -> str:
        return f"pictures of image {cell.image}"

    def _threat(self, *, seed: int) -> Threat:
        return threat(self.attack, self.ball, seed=seed)

    def _create(self, text: str, *, seed: int) -> Defense:
        defense = defense_from(text, seed=seed)
        if defense is None:
            raise InvalidInputError(
                f"defense {text!r} is the column {ATTACKED!r}, shown in any case; leave it out"
            )
        return defense

    def _attacked(self, cell: GalleryCell, clean: Tensor, labels: Tensor) -> Tensor:
        images = self._floats(clean)
        seed = derived_seed(self.seed, self.attack, f"eps={self.eps}", cell.image)
        found = self._threat(seed=seed)(self.target.model, None, images, labels.to(images.device))
        return moved_bytes(clean, found, self.ball)

    @torch.no_grad()
    def _answer(self, picture: Tensor) -> int:
        return int(self.target.model(self._floats(picture)).argmax(1))

    def _floats(self, picture: Tensor) -> Tensor:
        """Divided here and not on a GPU, whose last bit may differ from that of the data."""
        return (picture.float() / 255).to(self.target.place)


@dataclass(frozen=True, kw_only=True)
class GallerySummary:
    """The gallery, a strip an image; of a run that was stopped, the rows there are."""

    complete: bool
    rows: tuple[GalleryRow, ...]
    seconds: float
    manifest: GalleryManifest

    @classmethod
    def of(cls, recorded: Recorded[GalleryManifest, PictureRecord]) -> "GallerySummary":
        """From records."""
        manifest = recorded.manifest
        rows: dict[int, list[PictureRecord]] = {}
        for record in recorded.records:
            rows.setdefault(record.image, []).append(record)
        return cls(
            complete=len(recorded.records) == len(manifest.images) * len(manifest.columns),
            rows=tuple(
                GalleryRow(
                    label=manifest.classes[row[0].label],
                    pictures=tuple(
                        GalleryPicture(
                            caption=each.caption,
                            image=png_uri(each.png),
                            verdict=manifest.classes[each.answer],
                            correct=each.answer == each.label,
                        )
                        for each in row
                    ),
                )
                for row in rows.values()
            ),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )

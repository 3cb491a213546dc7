"""The KL diagnostic against the budget of an attack, image by image: figure 8 of the paper, with its floor.

A cell is one image in front of one defense, with all budgets: they share what is measured of the image
itself. It is a pure function of the specification. A fitted mixture bounds nothing: no kl is written down
without the floor beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield import checks
from vqshield.attacks import Ball, ball
from vqshield.defenses import Quantizer
from vqshield.diagnostics.measurement import DivergenceSettings, measure
from vqshield.environment import environment
from vqshield.errors import InvalidInputError
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.records import Key, RecordFolder
from vqshield.runs.study import Report, ResumableWork
from vqshield.runs.target import Subject
from vqshield.seeds import derived_seed
from vqshield.studies.kl_records import DivergenceRecord, what_at
from vqshield.studies.specification import NONE, EvaluationSettings, defense
from vqshield.threats import Threat, threat


@dataclass(frozen=True, kw_only=True)
class DivergenceStudySettings:
    """Which defenses, how far the images are moved and by what; the defaults are the paper's on CIFAR-10.

    eps: the budgets; 0: no attack, only other draws of the same image, so that kl is a second floor.
    attack: a threat as typed; those that ignore the defense give all defenses the same x'.
    images: the first so many of the data, or all where it has fewer.
    label_images: of the first so many the second term is measured too, which takes longest; None: of all.
    divergence: how kl is measured, with a seed of its own; seed is the attack's.
    """

    defenses: tuple[str, ...] = ("randdisc:codes=25", "prd:size=2,codes=25", "swrd:size=3,codes=25")
    eps: tuple[float, ...] = tuple(budget / 255 for budget in range(0, 17, 2))
    attack: str = "autoattack:surrogate=none"
    norm: str = "linf"
    images: int = 10
    label_images: int | None = None
    divergence: DivergenceSettings = field(default_factory=DivergenceSettings)
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("images", self.images, least=1)
        if self.label_images is not None:
            checks.whole("label_images", self.label_images, least=0)
        if not self.eps:
            raise InvalidInputError("eps holds no budget; give at least one, 0 for the floor alone")
        for eps in self.eps:
            self.threat(eps, seed=0)
            if self.eps.count(eps) > 1:
                raise InvalidInputError(f"eps holds {eps} twice; give each budget once")
        self._in_full(self.eps[0])  # checks defenses and the seed
        for text in self.defenses:
            self.create(text)

    def ball(self, eps: float) -> Ball:
        """Where the attack may move an image to."""
        return ball(self.norm, eps)

    def threat(self, eps: float, *, seed: int) -> Threat:
        """The attack with that budget."""
        return threat(self.attack, self.ball(eps), seed=seed)

    def create(self, text: str, *, seed: int = 0) -> Quantizer:
        """A defense as typed; one without codebooks is refused."""
        chosen = defense(text, seed=seed)
        if chosen is None:
            raise InvalidInputError(f"defense {text!r} has no codebooks to compare; give one that quantizes")
        return chosen

    def described(self) -> dict[str, Any]:
        """The settings with everything that names and defaults stand for, as JSON can hold it."""
        return {
            "norm": self.norm,
            "images": self.images,
            "label_images": self.label_images,
            "seed": self.seed,
            "divergence": asdict(self.divergence),
            "attacked": "together",  # for whoever wonders which random numbers an image was given
            "defenses": self._in_full(self.eps[0])["defenses"],
            "sources": [{"eps": float(eps), "attack": self._described_attack(eps)} for eps in self.eps],
        }

    def _described_attack(self, eps: float) -> dict[str, Any]:
        threats: list[dict[str, Any]] = self._in_full(eps)["attacks"][0]["threats"]
        return threats[0] if eps else {"name": NONE}

    def _in_full(self, eps: float) -> dict[str, Any]:
        return EvaluationSettings(
            defenses=self.defenses, attacks=(self.attack,), norm=self.norm, eps=eps, seed=self.seed
        ).described()


@dataclass(frozen=True, kw_only=True)
class DivergenceCell:
    """The unit of work: one image in front of one defense, moved by every budget."""

    defense: str
    image: int
    eps: tuple[float, ...]

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, what_at(eps), self.image) for eps in self.eps]


def cells(specification: Mapping[str, Any]) -> list[DivergenceCell]:
    """All the work, image after image: a study that is stopped has every defense and budget on the same."""
    budgets = tuple(float(source["eps"]) for source in specification["sources"])
    return [
        DivergenceCell(defense=each["name"], image=image, eps=budgets)
        for image in range(specification["images"])
        for each in specification["defenses"]
    ]


class DivergenceStudy(ResumableWork[DivergenceCell, DivergenceRecord]):
    """How far the codebooks of an attacked image are from those of the image: a record for every budget.

    shared: a folder for images that were found against the bare classifier, for other processes.
    """

    def __init__(
        self,
        settings: DivergenceStudySettings,
        subject: Subject,
        folder: Path,
        report: Report = lambda *_: None,
        *,
        shared: Path | None = None,
    ) -> None:
        super().__init__(report)
        self.settings, self.subject = settings, subject
        for text in settings.defenses:
            settings.create(text).streams(subject.data.floats(slice(1)))  # is the image large enough for it?
        self.specification: dict[str, Any] = {
            **subject.described(),
            **settings.described(),
            "images": min(settings.images, len(subject.data)),
            "machine": environment(subject.device),
        }
        self.cells: Sequence[DivergenceCell] = cells(self.specification)
        self.records: RecordFolder[DivergenceRecord] = RecordFolder(
            folder, [cell.keys for cell in self.cells], DivergenceRecord.parse
        )
        self._bare = settings.threat(settings.eps[0], seed=0).surrogate == NONE
        self._shared = shared
        self._known = AdversarialStore(self.specification, shared)
        self._attacked: dict[tuple[str, float], Tensor] = {}

    def measure(self, cell: DivergenceCell) -> list[DivergenceRecord]:
        """The diagnostic of one image and its attacked versions."""

        def stage(name: str) -> None:
            self._report(f"{self.title(cell)}: {name}", self._before[cell])

        image, label = self._part(slice(cell.image, cell.image + 1))
        stage("attack")
        moved = torch.cat([self._moved(cell, eps) for eps in cell.eps])
        shield = self.settings.create(cell.defense).to(self.subject.device)
        found = measure(shield, image, moved, settings=self._divergence(cell), report=stage)
        return [
            DivergenceRecord.of(
                each,
                defense=cell.defense,
                eps=eps,
                image=cell.image,
                label=int(label),
                distance=float(self.settings.ball(eps).distance(other, image)),
            )
            for each, eps, other in zip(found, cell.eps, torch.split(moved, 1), strict=True)
        ]

    def cost(self, cell: DivergenceCell) -> int:
        """How many codebooks are drawn: of x, of x again and of every x'."""
        return (2 + len(cell.eps)) * self.settings.divergence.codebooks

    def common(self, cell: DivergenceCell) -> str | None:
        """The attack, where the images that it found are kept in a folder for all."""
        return self.settings.attack if self._bare and self._shared is not None else None

    def title(self, cell: DivergenceCell) -> str:
        """What a progress bar says meanwhile."""
        return f"{cell.defense}, image {cell.image}"

    def _divergence(self, cell: DivergenceCell) -> DivergenceSettings:
        last = self.settings.label_images
        if last is None or cell.image < last:
            return self.settings.divergence
        return replace(self.settings.divergence, label_codebooks=0)

    def _part(self, part: slice) -> tuple[Tensor, Tensor]:
        place = self.subject.device
        return self.subject.data.floats(part).to(place), self.subject.data.labels[part].to(place)

    def _moved(self, cell: DivergenceCell, eps: float) -> Tensor:
        """x', which does not depend on the defense where the attack ignores it.

        All images are attacked together, whichever is asked for: a GPU takes as long for one of them.
        """
        if eps == 0:
            return self._part(slice(cell.image, cell.image + 1))[0]
        key = NONE if self._bare else cell.defense, eps
        if key not in self._attacked:
            self._attacked[key] = self._all_moved(cell.defense, eps)
        return self._attacked[key][cell.image : cell.image + 1]

    def _all_moved(self, name: str, eps: float) -> Tensor:
        options = self.settings
        seed = derived_seed(options.seed, options.attack, f"eps={eps}")
        chosen = options.threat(eps, seed=seed)
        images, labels = self._part(slice(self.specification["images"]))

        def find() -> Tensor:
            drawn = derived_seed(seed, name, "attacked draws")
            shield = options.create(name, seed=drawn).to(self.subject.device)
            return chosen(self.subject.classifier, shield, images, labels)

        if not self._bare:
            return find()
        described = next(source["attack"] for source in self.specification["sources"] if source["eps"] == eps)
        return self._known.images(
            find, natural=images, labels=labels, threat=described, ball=options.ball(eps), seed=seed
        )

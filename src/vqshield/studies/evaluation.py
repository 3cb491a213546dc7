"""Accuracy of a defended classifier under attack, image by image, in a run that may stop at any moment.

The work is cut into cells: a defense, an attack, a chunk of images. A cell is a pure function of the
specification: all its seeds come from there, so that a run that was stopped and resumed writes the same
bytes as one that was not.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vqshield.attacks import AutoAttack
from vqshield.defended import Defended
from vqshield.draws import Draws, draw_predictions
from vqshield.environment import environment
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.records import Record, Records
from vqshield.runs.study import Report, ResumableWork, repeatable
from vqshield.runs.target import Subject
from vqshield.seeds import derived_seed
from vqshield.studies.specification import NONE, Cell, EvaluationSettings, cells, defense
from vqshield.suites import expand
from vqshield.threats import Threat

__all__ = ["Evaluation", "Report", "repeatable"]

# It stops with every image that it breaks: a bare classifier's soon, others not before all has been tried.
_AUTOATTACK = {"bare": 150, "standard": 3000, "rand": 4000}


class Evaluation(ResumableWork[Cell, Record]):
    """Every attack on every image in front of every defense; run() writes the records, or goes on with them.

    All images are attacked, those already misclassified too. Draws that attacks are found with, draws that
    they are compared on, and draws that are reported have seeds of their own. Attacks that ignore the defense
    are made once for all defenses; shared: a folder that keeps their images for other runs and processes.
    """

    def __init__(
        self,
        settings: EvaluationSettings,
        subject: Subject,
        folder: Path,
        report: Report = lambda *_: None,
        *,
        shared: Path | None = None,
    ) -> None:
        super().__init__(report)
        self.settings, self.subject = settings, subject
        self.specification: dict[str, Any] = {
            **subject.described(),
            **settings.described(),
            "machine": environment(subject.device),
        }
        self.cells: Sequence[Cell] = cells(self.specification)
        self.records = Records(folder, [cell.keys for cell in self.cells])
        self._attacks = {
            each.name: (text, place)
            for text in settings.attacks
            for place, each in enumerate(expand(text, settings.ball))
        }
        self._described = {
            each["name"]: each for entry in self.specification["attacks"] for each in entry["threats"]
        }
        for text in settings.defenses:
            chosen = defense(text, seed=0)
            if chosen is not None:
                chosen.streams(subject.data.floats(slice(1)))  # is the image large enough for it?
        self._efforts = {name: _effort(self._threat(name, seed=0)) for name in self._attacks}
        self._shared = shared
        self._known = AdversarialStore(self.specification, shared)

    def measure(self, cell: Cell) -> list[Record]:
        """The records of one cell, in the order of its images."""
        with self._counted(cell):
            return self._measured(cell)

    def cost(self, cell: Cell) -> int:
        """About how many images are classified for it.

        An attack that ignores the defense is counted once, for the first defense: the others find it made.
        """
        draws = self.settings.runs
        if cell.attack != NONE:
            draws += self.settings.chosen_selection
            if self._described[cell.attack]["surrogate"] != NONE or cell.defense == self.settings.defenses[0]:
                draws += self._efforts[cell.attack]
        return draws * len(cell.images)

    def common(self, cell: Cell) -> tuple[str, int] | None:
        """The attack and the chunk, where its images are kept in a folder for other defenses."""
        if self._shared is None or cell.attack == NONE or not self._is_bare(cell):
            return None
        return cell.attack, cell.images.start

    def title(self, cell: Cell) -> str:
        """Defense and attack."""
        return cell.defense if cell.attack == NONE else f"{cell.defense}, {cell.attack}"

    def _measured(self, cell: Cell) -> list[Record]:
        data, place = self.subject.data, self.subject.device
        part = slice(cell.images.start, cell.images.stop)
        images, labels = data.floats(part).to(place), data.labels[part].to(place)
        found, right = images, None
        if cell.attack != NONE:
            found = self._attacked(cell, images, labels)
            right = self._draws(cell, "selection", found, labels).right.tolist()
        answers = self._draws(cell, "report", found, labels).predictions.T.tolist()
        distances = self.settings.ball.distance(found, images).tolist()
        return [
            Record(
                defense=cell.defense,
                attack=cell.attack,
                level=cell.level,
                image=image,
                label=int(data.labels[image]),
                distance=distances[number],
                selected=None if right is None else right[number],
                predictions=tuple(answers[number]),
            )
            for number, image in enumerate(cell.images)
        ]

    def _attacked(self, cell: Cell, images: Tensor, labels: Tensor) -> Tensor:
        if not self._is_bare(cell):
            return self._through(cell, images, labels)
        bare = replace(cell, defense=NONE)  # the same attack, whatever the defense
        return self._known.images(
            lambda: self._through(bare, images, labels),
            natural=images,
            labels=labels,
            threat={**self._described[cell.attack], "surrogate": NONE},
            ball=self.settings.ball,
            seed=self._seed(bare, "attack"),
        )

    def _is_bare(self, cell: Cell) -> bool:
        """Whether the attack is one on the classifier alone."""
        return NONE in (cell.defense, self._described[cell.attack]["surrogate"])

    def _through(self, cell: Cell, images: Tensor, labels: Tensor) -> Tensor:
        """The attack on the classifier behind the cell's defense."""
        chosen = self._threat(cell.attack, seed=self._seed(cell, "attack"))
        shield = defense(cell.defense, seed=self._seed(cell, "attacked draws"))
        if shield is None:  # nothing to attack through
            chosen = replace(chosen, surrogate=NONE)
        else:
            shield.to(images.device)
        return chosen(self.subject.classifier, shield, images, labels)

    def _draws(self, cell: Cell, purpose: str, images: Tensor, labels: Tensor) -> Draws:
        classifier, batch = self.subject.classifier, 4 * self.settings.batch  # no gradients to keep
        runs = self.settings.runs if purpose == "report" else self.settings.chosen_selection
        shield = defense(cell.defense, seed=self._seed(cell, purpose))
        if shield is None:  # every run would say the same
            once = draw_predictions(classifier, images, labels, runs=1, batch=batch)
            return Draws(once.predictions.expand(runs, -1), once.labels)
        model = Defended(classifier, shield.to(images.device))
        return draw_predictions(model, images, labels, runs=runs, batch=batch)

    def _threat(self, name: str, *, seed: int) -> Threat:
        text, place = self._attacks[name]
        return expand(text, self.settings.ball, seed=seed)[place]

    def _seed(self, cell: Cell, purpose: str) -> int:
        return derived_seed(self.settings.seed, cell.defense, cell.attack, cell.images.start, purpose)

    @contextmanager
    def _counted(self, cell: Cell) -> Iterator[None]:
        """Report every image that the classifier is asked about."""
        done = 0

        def count(_: object, __: object, logits: Tensor) -> None:
            nonlocal done
            done += len(logits)
            self._tell(cell, done)

        hook = self.subject.classifier.register_forward_hook(count)
        try:
            yield
        finally:
            hook.remove()


def _effort(threat: Threat) -> int:
    """About how often the attack asks about each image."""
    bare = threat.surrogate == NONE
    if isinstance(threat.attack, AutoAttack):
        return _AUTOATTACK["bare" if bare else threat.attack.version]
    rounds: int = math.prod(
        getattr(threat.attack, name, 1) for name in ("steps", "restarts", "queries", "tries")
    )
    return rounds * (1 if bare else threat.eot)

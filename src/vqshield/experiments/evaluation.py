"""Accuracy of a defended classifier under attack, image by image, in a run that may stop at any moment.

The work is cut into cells: a defense, an attack, a chunk of images. A cell is a pure function of the
specification: all its seeds come from there, so that a run that was stopped and resumed writes the same
bytes as one that was not.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.defended import Defended
from vqshield.draws import Draws, evaluate
from vqshield.environment import environment
from vqshield.experiments.records import Record, Records
from vqshield.experiments.specification import NONE, Cell, EvaluationSettings, cells, defense
from vqshield.experiments.subject import Subject
from vqshield.suites import expand
from vqshield.threats import Threat

Report = Callable[[str, int], None]
"""Told what is going on, and how much of `Evaluation.work` is done in all."""


class Evaluation:
    """Every attack on every image in front of every defense; run() writes the records, or goes on with them.

    All images are attacked, those already misclassified too. Draws that attacks are found with, draws that
    they are compared on, and draws that are reported have seeds of their own.
    """

    def __init__(
        self, settings: EvaluationSettings, subject: Subject, folder: Path, report: Report = lambda *_: None
    ) -> None:
        self.settings, self.subject, self._report = settings, subject, report
        self.specification: dict[str, Any] = {
            **subject.described(),
            **settings.described(),
            "machine": environment(subject.device),
        }
        self.cells = cells(self.specification)
        self.records = Records(folder, [cell.keys for cell in self.cells])
        self._attacks = {
            each.name: (text, place)
            for text in settings.attacks
            for place, each in enumerate(expand(text, settings.ball))
        }
        for text in settings.defenses:
            chosen = defense(text, seed=0)
            if chosen is not None:
                chosen.streams(subject.data.floats(slice(1)))  # is the image large enough for it?
        self._efforts = {name: _effort(self._threat(name, seed=0)) for name in self._attacks}

    @property
    def work(self) -> int:
        """How many images will be classified in all, about: what a progress bar counts."""
        return sum(map(self._cost, self.cells))

    def run(self) -> None:
        """Do what is not done yet."""
        with self.records.writing(self.specification) as writer, repeatable():
            done = sum(map(self._cost, self.cells[: writer.done]))
            for cell in self.cells[writer.done :]:
                began = time.perf_counter()
                with self._counted(cell, done):
                    found = self._measure(cell)
                writer.append(found, seconds=time.perf_counter() - began)
                done += self._cost(cell)

    def _measure(self, cell: Cell) -> list[Record]:
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
        chosen = self._threat(cell.attack, seed=self._seed(cell, "attack"))
        shield = defense(cell.defense, seed=self._seed(cell, "attacked draws"))
        if shield is None:  # nothing to attack through
            chosen = replace(chosen, surrogate=NONE)
        else:
            shield.to(images.device)
        return chosen(self.subject.classifier, shield, images, labels)  # type: ignore[arg-type]

    def _draws(self, cell: Cell, purpose: str, images: Tensor, labels: Tensor) -> Draws:
        classifier, batch = self.subject.classifier, 4 * self.settings.batch  # no gradients to keep
        runs = self.settings.runs if purpose == "report" else self.settings.chosen_selection
        shield = defense(cell.defense, seed=self._seed(cell, purpose))
        if shield is None:  # every run would say the same
            once = evaluate(classifier, images, labels, runs=1, batch=batch)
            return Draws(once.predictions.expand(runs, -1), once.labels)
        model = Defended(classifier, shield.to(images.device))
        return evaluate(model, images, labels, runs=runs, batch=batch)

    def _threat(self, name: str, *, seed: int) -> Threat:
        text, place = self._attacks[name]
        return expand(text, self.settings.ball, seed=seed)[place]

    def _seed(self, cell: Cell, purpose: str) -> int:
        return derived_seed(self.settings.seed, cell.defense, cell.attack, cell.images.start, purpose)

    @contextmanager
    def _counted(self, cell: Cell, before: int) -> Iterator[None]:
        """Report every image that the classifier is asked about, up to the cost, which is an estimate."""
        doing = cell.defense if cell.attack == NONE else f"{cell.defense}, {cell.attack}"
        most, done = self._cost(cell), 0

        def count(_: object, __: object, logits: Tensor) -> None:
            nonlocal done
            done = min(done + len(logits), most)
            self._report(doing, before + done)

        hook = self.subject.classifier.register_forward_hook(count)
        try:
            yield
        finally:
            hook.remove()
        self._report(doing, before + most)

    def _cost(self, cell: Cell) -> int:
        """About how many images are classified for it."""
        draws = self.settings.runs
        if cell.attack != NONE:
            draws += self.settings.chosen_selection + self._efforts[cell.attack]
        return draws * len(cell.images)


def derived_seed(*parts: int | str) -> int:
    """63 bits that depend on all the parts and look like no other parts' bits."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def _effort(threat: Threat) -> int:
    """About how often the attack asks about each image."""
    rounds: int = math.prod(
        getattr(threat.attack, name, 1) for name in ("steps", "restarts", "queries", "tries")
    )
    return rounds * (1 if threat.surrogate == NONE else threat.eot)


@contextmanager
def repeatable() -> Iterator[None]:
    """cuDNN may otherwise choose, at every call, a faster way whose last bits depend on chance."""
    flags = torch.backends.cudnn
    with flags.flags(enabled=flags.enabled, benchmark=False, deterministic=True, allow_tf32=flags.allow_tf32):
        yield

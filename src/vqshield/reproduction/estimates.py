"""How much there is to do, and about how long that takes here."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from vqshield.runs.study import ResumableWork
from vqshield.runs.target import Subject
from vqshield.studies.certification import Certification
from vqshield.studies.evaluation import Evaluation

# In forward passes of the classifier: a draw goes through the defense as well; most of an evaluation are
# steps of attacks, which go through both, forward and back.
FORWARDS = {Certification: 2, Evaluation: 4}


def estimate(works: Iterable[ResumableWork[Any, Any]]) -> dict[Path, dict[str, Any]]:
    """For every job its cells, how many are done, and about how many seconds the rest takes; None: unknown.

    The classifier is timed on a few images. AutoAttack takes as long as images resist it, which nobody knows
    beforehand: an estimate may be off by a factor of three, with AutoAttack through a defense by more.
    """
    found = {}
    for work in works:
        done = len(work.records.read())
        left, keys = 0, 0
        for cell in work.cells:
            keys += len(cell.keys)
            left += work.cost(cell) if keys > done else 0
        found[work.records.folder] = {
            "cells": len(work.cells),
            "records": keys,
            "done": done,
            "seconds": _seconds(work, left),
        }
    return found


def _seconds(work: ResumableWork[Any, Any], left: int) -> float | None:
    if not isinstance(work, Certification | Evaluation):
        return None
    return round(FORWARDS[type(work)] * left * _forward(work.subject), 1)


def _forward(subject: Subject) -> float:
    """Seconds an image, the best of three."""
    images = subject.data.floats(slice(100)).to(subject.device)
    best = float("inf")
    with torch.no_grad():
        for _ in range(3):
            began = time.perf_counter()
            float(subject.classifier(images).sum())  # waits for a GPU
            best = min(best, time.perf_counter() - began)
    return best / len(images)

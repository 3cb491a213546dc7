"""A few images of an evaluation before and after an attack, for its page."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from vqshield.core.display_names import NONE, display_name
from vqshield.core.files import parse_json, read_text, write_json
from vqshield.core.serialization import from_plain, to_plain
from vqshield.evaluation.records import EvaluationManifest, EvaluationRecord
from vqshield.evaluation.study import Evaluation, EvaluationCell
from vqshield.evaluation.summary import EvaluationSummary
from vqshield.images.pictures import GalleryRow, Stage, gallery_rows
from vqshield.models.calling import ask_for_logits, evaluating
from vqshield.runs.arguments import defense_from
from vqshield.runs.study import Recorded

FILE = "gallery.json"
MAGNIFIED = 16
"""Factor on the difference that an attack makes."""
_MOST_SIDE = 160  # pixels of a picture, so that a page stays small
_COLOURS = (1, 3)  # channels that a picture may have


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pictures of a few images.

    Attributes:
        defense: what the attack was on, a spec string.
        attack: its name in records.
        classes: the names of the data's classes.
        rows: an image each: clean, attacked, the difference, and what the defense makes of the attacked one.
    """

    defense: str
    attack: str
    classes: tuple[str, ...]
    rows: tuple[GalleryRow, ...]

    @classmethod
    def read(cls, out: Path) -> "Gallery | None":
        """The gallery in an evaluation's folder; None where it has none."""
        path = out / FILE
        return from_plain(cls, parse_json(read_text(path), path), str(path)) if path.is_file() else None


def keep_gallery(
    study: Evaluation, recorded: Recorded[EvaluationManifest, EvaluationRecord], out: Path, *, count: int
) -> None:
    """Attack a few images once more and keep their pictures in a folder, unless it has some.

    The attack is the single one that leaves the main defense least accuracy. The images are the first of
    different classes that the defended classifier gets right without an attack.
    """
    if (out / FILE).is_file():
        return
    summary = EvaluationSummary.of(recorded)
    rows = [summary.row(summary.main, threat.name) for threat in study.manifest.threats]
    row = min(filter(None, rows), key=lambda row: row.mean, default=None)
    chunk = study.cells[0].images
    images, labels = study.target.part(chunk)
    if row is None or images.shape[1] not in _COLOURS:
        return
    clean = [each for each in recorded.records if (each.defense, each.attack) == (summary.main, NONE)]
    clean = [record for record in clean if record.image in chunk]
    classes = [record.label for record in clean]
    order = sorted(
        range(len(clean)),
        key=lambda place: (
            -clean[place].predictions.count(classes[place]),
            classes[place] in classes[:place],
        ),
    )
    cell = replace(study.cells[0], defense=summary.main, attack=row.attack, level=row.level, later=())
    attacked = study.attacked(cell, images, labels, order[:count])
    write_json(out / FILE, to_plain(_gallery(study, cell, *attacked)))


def _gallery(
    study: Evaluation, cell: EvaluationCell, clean: Tensor, labels: Tensor, found: Tensor
) -> Gallery:
    """The pictures of clean and attacked images; the bare classifier answers to both."""
    bare, classes = study.target.model, study.target.images.classes
    difference = (0.5 + MAGNIFIED * (found - clean)).clamp(0, 1)
    stages = [
        _stage("clean", clean, bare),
        _stage("attacked", found, bare),
        _stage(f"difference ×{MAGNIFIED}", difference, None),
    ]
    shield = defense_from(cell.defense, seed=study.seed_of(cell, "gallery"))
    if shield is not None:
        with torch.no_grad():
            shown = shield.to(found.device)(found)
        caption = f"attacked, then {display_name(cell.defense)}"
        stages.append(_stage(caption, shown, study.classifier_behind(cell.defense)))
    rows = gallery_rows(stages, labels.tolist(), classes)
    return Gallery(defense=cell.defense, attack=cell.attack, classes=classes, rows=rows)


def _stage(caption: str, images: Tensor, model: nn.Module | None) -> Stage:
    """Images as a page shows them, of a few pixels at most, with the predictions for all of their pixels."""
    every = -(-max(images.shape[2:]) // _MOST_SIDE)
    stage = Stage(caption=caption, images=images[:, :, ::every, ::every])
    if model is None:
        return stage
    with torch.no_grad(), evaluating(model):
        shares, answers = ask_for_logits(model, images).softmax(1).max(1)
    return replace(stage, answers=answers.tolist(), shares=shares.tolist())

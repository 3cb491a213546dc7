"""From records to figures: every attack, every suite, and all attacks together, for every defense."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vqshield.draws import Draws, strongest
from vqshield.runs.manifests import read_manifest
from vqshield.runs.records import Record, Records
from vqshield.studies.specification import NONE, cells
from vqshield.threats import LEVELS

ALL = "adaptive"
"""The row of the strongest attack for each image, of all that were given: an attacker may choose, too."""
NOT_RUN = "not run"

Seconds = Mapping[tuple[str, str], float]
"""How long each defense and attack took."""


def summarise(
    specification: Mapping[str, Any],
    records: Iterable[Record],
    *,
    seconds: Seconds | None = None,
    audit: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What summary.json holds; of a run that is not finished, what there is.

    audit: by defense, what the audit of its robust accuracy found. No such accuracy is shown without one,
    or without the words that there is none.
    """
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for record in records:
        found.setdefault((record.defense, record.attack), {})[record.image] = record
    rows = []
    for defense in dict.fromkeys(cell.defense for cell in cells(specification)):
        for name, members in _groups(specification).items():
            part = [found.get((defense, member), {}) for member in members]
            row = _row(part, took=[(seconds or {}).get((defense, member)) for member in members])
            if row is not None:
                checked = {} if name == NONE else {"audit": (audit or {}).get(defense, NOT_RUN)}
                rows.append({"defense": defense, "attack": name, **row, **checked})
    planned = sum(len(cell.images) for cell in cells(specification))
    return {
        "title": f"Accuracy of {specification['data']['images']} images of {specification['data']['name']}, "
        f"classifier {specification['classifier']['name']}",
        "complete": sum(map(len, found.values())) == planned,
        "rows": rows,
        "audit": audit or NOT_RUN,
        "warning": _warning(specification),
        "seconds": round(sum((seconds or {}).values()), 1),
        "specification": specification,
    }


def summarise_folder(folder: Path, *, audit: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The summary of the records in a folder, finished or not."""
    specification, records, seconds = read_evaluation(folder)
    return summarise(specification, records, seconds=seconds, audit=audit)


def read_evaluation(folder: Path) -> tuple[dict[str, Any], list[Record], Seconds]:
    """What a folder holds: the specification, the records so far, and how long they took."""
    specification = read_manifest(folder, field="attacks")
    records = Records(folder, [cell.keys for cell in cells(specification)])
    found = records.read()
    return specification, found, records.seconds(found)


def _groups(specification: Mapping[str, Any]) -> dict[str, list[str]]:
    """The rows of a defense: name → the attacks whose minimum it shows."""
    groups, every = {NONE: [NONE]}, []
    for entry in specification["attacks"]:
        members = [threat["name"] for threat in entry["threats"]]
        groups |= {member: [member] for member in members}
        groups[entry["name"]] = members
        every += members
    return {**groups, ALL: every} if every else groups


def _row(part: Sequence[Mapping[int, Record]], *, took: Sequence[float | None]) -> dict[str, Any] | None:
    """Figures over the images that every member was tried on; None where there are none."""
    images = sorted(set.intersection(*(set(each) for each in part)))
    if not images:
        return None
    chosen = [[each[image] for image in images] for each in part]
    report = [_report_draws(each) for each in chosen]
    draws = report[0] if len(part) == 1 else strongest([_selection_draws(each) for each in chosen], report)[0]
    known = [each for each in took if each is not None]
    return {
        "level": max((each[0].level for each in chosen), key=(NONE, *LEVELS).index),
        "mean": draws.mean,
        "std": draws.std,
        "standard_error": draws.standard_error,
        "vote": draws.vote(),
        "worst": draws.worst(),
        "runs": len(draws.predictions),
        "n": len(images),
        "seconds": round(sum(known), 1) if known else None,
    }


def _report_draws(records: Sequence[Record]) -> Draws:
    return Draws(torch.tensor([record.predictions for record in records]).T, _labels(records))


def _selection_draws(records: Sequence[Record]) -> Draws:
    """Draws with as many right answers as were counted: which ones were right plays no part."""
    counts, labels = torch.tensor([record.selected for record in records]), _labels(records)
    right = torch.arange(int(counts.max()))[:, None] < counts  # (draws, N)
    return Draws(torch.where(right, labels, -1), labels)


def _labels(records: Sequence[Record]) -> torch.Tensor:
    return torch.tensor([record.label for record in records])


def _warning(specification: Mapping[str, Any]) -> str | None:
    """What a reader of robust accuracies must know before believing them."""
    levels = {threat["level"] for entry in specification["attacks"] for threat in entry["threats"]}
    if not levels:
        return "no attack was given: these figures say nothing about robustness"
    if levels == {LEVELS[0]}:
        return "these attacks ignore the defense: the figure flatters it"
    return None

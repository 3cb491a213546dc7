"""From the records of an experiment to what reports are made from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vqshield.errors import InvalidInputError
from vqshield.experiments import published
from vqshield.experiments.reproduction.files import Experiment, read
from vqshield.experiments.reproduction.part import Part

MANIFEST = "experiment.json"
NOT_RUN = "not run"


def summarise(experiment: Experiment, out: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What summary.json holds; of a run that is not finished, what there is."""
    paper = published.published(experiment.id)
    said = {each["name"]: each for each in manifest["parts"]}
    parts = [_part(part, experiment.id, out, said[part.name], paper.figures) for part in experiment.parts]
    return {
        "id": experiment.id,
        "title": f"{experiment.id}: {experiment.title}",
        "kind": experiment.shows,
        "paper": {"label": paper.label, "caption": paper.caption},
        "complete": all(part["status"] == "complete" for part in parts),
        "notes": published.inconsistencies(experiment.id),
        "parts": parts,
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        "machine": manifest["machine"],
        "version": manifest["version"],
        "commit": manifest["commit"],
        "seed": manifest["options"]["seed"],
    }


def summarise_folder(folder: Path) -> dict[str, Any]:
    """The summary of the records in an experiment's folder, OUT/ID."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InvalidInputError(f"there is no {MANIFEST} in {folder}; no experiment was begun there")
    manifest = json.loads(path.read_bytes())
    return summarise(read(manifest["file"], source=str(path)), folder.parent, manifest)


def _part(
    part: Part, id: str, out: Path, said: Mapping[str, Any], figures: tuple[published.Figure, ...]
) -> dict[str, Any]:
    home = part.home(out, id)
    found = part.summary(home, figures)
    begun = any((home / name / "manifest.json").is_file() for name in _jobs(said))
    return {
        "name": part.name,
        "title": part.title,
        "status": "complete" if found.pop("complete") else "partial" if begun else NOT_RUN,
        "why": None if begun else said["why"] or "it was not begun",
        "stand_in": said["stand_in"],
        "data": None,
        "classifier": None,
        "seconds": 0.0,
        "audit": _audits(home),
        **found,
    }


def _jobs(said: Mapping[str, Any]) -> list[str]:
    return [Path(job).name for job in said["jobs"]]


def _audits(home: Path) -> list[dict[str, Any]] | str:
    """What `vqshield audit --out PART/audit` wrote beside the records, if anybody ran it."""
    found = [json.loads(path.read_bytes()) for path in sorted(home.glob("audit*/audit.json"))]
    return [
        {
            "defense": audit["defense"],
            "passed": audit["passed"],
            "lines": [_line(flag) for flag in audit["flags"]],
        }
        for audit in found
    ] or NOT_RUN


def _line(flag: Mapping[str, Any]) -> str:
    return f"{flag['name']} {flag['outcome']}: {flag['title']}. {flag['meaning']}"

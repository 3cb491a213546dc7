"""From the records of an experiment to what reports are made from."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.reproduction import published
from vqshield.reproduction.files import Experiment, read
from vqshield.reproduction.part import Part, given

MANIFEST = "experiment.json"
NOT_RUN = "not run"


def summarise(experiment: Experiment, out: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What summary.json holds; of a run that is not finished, what there is."""
    paper = published.published(experiment.id)
    said = {each["name"]: each for each in manifest["parts"]}
    parts = [
        _part(part, experiment.id, out, said[part.name], paper.figures)
        for part in experiment.parts
        if part.name in said  # those that anybody asked for
    ]
    return {
        "id": experiment.id,
        "title": experiment.title,
        "kind": experiment.shows,
        "paper": {"label": paper.label, "caption": paper.caption},
        "complete": all(part["status"] == "complete" for part in parts),
        "notes": published.inconsistencies(experiment.id),
        "parts": parts,
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        **_last_run(manifest),
    }


def _last_run(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Of the latest run; those that had a share in a part stand with the part."""
    runs = [run for part in manifest["parts"] for run in part["made"][-1:]]
    return {name: runs[-1][name] if runs else None for name in ("machine", "version", "commit", "seed")}


def summarise_folder(folder: Path) -> dict[str, Any]:
    """The summary of the records in an experiment's folder, OUT/ID."""
    manifest = read_experiment(folder)
    return summarise(read(manifest["file"], source=str(folder / MANIFEST)), folder.parent, manifest)


def read_experiment(folder: Path) -> dict[str, Any]:
    """What experiment.json says."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InvalidInputError(f"there is no {MANIFEST} in {folder}; no experiment was begun there")
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    return manifest


def _part(
    part: Part, id: str, out: Path, said: Mapping[str, Any], figures: tuple[published.Figure, ...]
) -> dict[str, Any]:
    home = part.home(out, id)
    found = part.summary(home, figures)
    jobs = [given(home / name) for name in _jobs(said)]
    begun, complete = any(jobs), found.pop("complete") and all(jobs)
    return {
        "name": part.name,
        "title": part.title,
        "status": "complete" if complete else "partial" if begun else NOT_RUN,
        "why": None if complete else _why(said) if not begun else "it was stopped; the same command goes on",
        "stand_in": said["stand_in"],
        "made": said["made"],
        "data": None,
        "classifier": None,
        "seconds": 0.0,
        "audit": _audits(home),
        **found,
    }


def _why(said: Mapping[str, Any]) -> str:
    return said["why"] or "it was not begun"


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

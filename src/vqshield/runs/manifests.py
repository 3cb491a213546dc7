"""Manifests: the whole specification of the records in a folder, so that two never mix."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vqshield.errors import FileFormatError, InvalidInputError

MANIFEST = "manifest.json"


def read_manifest(folder: Path, *, field: str | None = None) -> dict[str, Any]:
    """The specification of the records in a folder; field is one that its kind must have."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InvalidInputError(f"there is no {MANIFEST} in {folder}; no evaluation was begun there")
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise FileFormatError(f"{path} is not JSON: {error}") from error
    if field is not None and field not in manifest:
        raise InvalidInputError(f"{path} has no field {field!r}: it belongs to records of another kind")
    return manifest


_HOW = {"machine.threads": " (--task-cpus for several processes, else OMP_NUM_THREADS)"}


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    """Refuse to mix two specifications, naming the first field that differs and both its values."""
    before, now = _flat(old), _flat(json.loads(json.dumps(new)))
    for field in [*before, *now]:
        was, is_ = before.get(field, "absent"), now.get(field, "absent")
        if was != is_:
            raise InvalidInputError(
                f"{folder} holds records made with {field}={was!r}, this run has {field}={is_!r}; "
                f"run it with the old value{_HOW.get(field, '')} to go on, or choose another folder"
            )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested objects and lists as one: {"data.images": 500, "attacks.0.name": …}."""
    if not isinstance(value, dict | list):
        return {name: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    flat: dict[str, Any] = {}
    for key, each in pairs:
        flat |= _flat(each, f"{name}.{key}" if name else str(key))
    return flat

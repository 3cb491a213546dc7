"""Until reproduction is typed: the Summary of what its dicts say."""

from collections.abc import Mapping
from typing import Any

from vqshield.plain import from_plain
from vqshield.reproduction.model import Summary


def typed(summary: Mapping[str, Any]) -> Summary:
    """The same results as dataclasses."""
    plain = {**summary, "view": summary["kind"], "parts": [_part(part) for part in summary["parts"]]}
    return from_plain(Summary, plain, "summary", strict=False)


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    audits = part["audit"] if not isinstance(part["audit"], str) else []
    rows = [{**row, "values": row["figures"]} for row in part["rows"]]
    return {**part, "audits": audits, "rows": rows, "gallery": part.get("gallery") or []}

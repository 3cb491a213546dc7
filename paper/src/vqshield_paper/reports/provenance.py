"""The data, classifier and runs behind the values: pairs of name and text."""

from collections.abc import Iterable, Mapping

from vqshield.core.serialization import Json
from vqshield.core.settings import format_value
from vqshield.reports.text import duration
from vqshield_paper.reports.rounding import error_decimals
from vqshield_paper.reproduction.model import PartSummary, Summary

Facts = list[tuple[str, str]]
_NORMS = {"linf": "L-inf", "l2": "L2", "l1": "L1", "l0": "L0"}
_PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
_DIGITS = 12  # of a commit or a checksum, to tell it from any other


def section_title(part: PartSummary) -> str:
    """What was measured: the part's title, or the images and the classifier where they are not the paper's.

    "CIFAR-10, ResNet18" is "CIFAR-10, small-cifar10" where the small classifier replaces it.
    """
    if not part.stand_in or part.data is None or part.classifier is None:
        return part.title
    images = part.title.split(",")[0]
    name = images.replace("-", "").lower()
    if part.data.name != name:
        own = part.data.name.removeprefix(f"{name}-")
        images = part.data.name if own == part.data.name else f"{images} {own}"
    return f"{images}, {part.classifier.name}"


def part_facts(part: PartSummary) -> Facts:
    """What the values of a part were measured on."""
    ours = [value for *_, value in part.filled() if value.ours is not None]
    facts = {
        "Images": f"N = {counts}" if (counts := _distinct(value.n for value in ours)) else None,
        "Runs": _distinct(value.runs for value in ours),
        "Standard error over images": _largest_error(part),
        "Budget": _budget(part),
        "Data": part.data and f"{part.data.name}, {part.data.images} images, {_checksum(part.data.sha256)}",
        "Classifier": part.classifier and f"{part.classifier.name}, {_checksum(part.classifier.sha256)}",
        "Precision": part.precision
        and f"classifier computed in {_PRECISIONS.get(part.precision, part.precision)}",
        **_made(part),
    }
    return [(name, text) for name, text in facts.items() if text]


def summary_facts(summary: Summary) -> Facts:
    """What the experiment was made with; where the parts say that of themselves, it is not said of all."""
    paper = ": ".join(filter(None, (summary.paper.label, summary.paper.caption))) or "not named"
    facts = [("In the paper", paper)]
    if not any(part.made for part in summary.parts):
        facts += [(name, format_value(value)) for name, value in (summary.machine or {}).items()]
        facts += [
            (name, _or_unknown(value))
            for name, value in (
                ("Version", summary.version), ("Commit", summary.commit), ("Seed", summary.seed),
            )
        ]  # fmt: skip
    return [*facts, ("Time", duration(summary.seconds))]


def _distinct(values: Iterable[int | None]) -> str:
    """The distinct values in order: "1000" or "500 / 1000"."""
    return " / ".join(map(str, sorted({value for value in values if value is not None})))


def _largest_error(part: PartSummary) -> str | None:
    errors = [
        value.standard_error
        for *_, value in part.filled()
        if value.ours is not None and value.standard_error is not None
    ]
    if not any(errors):
        return None
    unit = {"%": " points", "nats": " nats"}.get(part.unit, "")
    largest = part.scale * max(errors)
    return f"at most {largest:.{min(2, error_decimals(largest))}f}{unit}"


def _budget(part: PartSummary) -> str | None:
    if part.eps is None:
        return None
    norm = part.norm or ""
    return f"eps = {format_value(part.eps)}" + (f" in {_NORMS.get(norm, norm)}" if norm else "")


def _checksum(sha256: str) -> str:
    return f"sha256 {sha256[:_DIGITS]}…"


def _made(part: PartSummary) -> dict[str, str]:
    """What the runs that contributed were made with; all of it, where they differ."""
    said = {
        "Seed": [_or_unknown(run.seed) for run in part.made],
        "Commit": [_or_unknown(run.commit)[:_DIGITS] for run in part.made],
        "Version": [_or_unknown(run.version) for run in part.made],
        "Machine": [_machine(run.machine) for run in part.made],
        "Command": [run.command or "" for run in part.made],
    }
    return {name: " / ".join(filter(None, dict.fromkeys(texts))) for name, texts in said.items()}


def _machine(machine: Mapping[str, Json]) -> str:
    return ", ".join(f"{name} {format_value(value)}" for name, value in machine.items())


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)

"""What must be said beside the figures of a reproduced experiment: sentences, and pairs of name and text."""

from collections.abc import Mapping
from typing import Any

from vqshield.reports.numbers import percent
from vqshield.reports.reproduction_comparison import gap
from vqshield.reports.reproduction_figures import spread_text
from vqshield.reports.reproduction_parts import figures, scale
from vqshield.settings import format_value

NO_AUDIT = "No audit was run: take robust figures for upper bounds."
_NORMS = {"linf": "L-inf", "l2": "L2", "l1": "L1", "l0": "L0"}
_PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
_COMMIT = 12  # so many digits tell a commit from any other
_VERDICTS = {True: "audit passed", False: "audit failed", None: "audit not finished"}


def headline(summary: Mapping[str, Any]) -> str | None:
    """The largest gap between the paper's attacks and one that knows of the shield, on the same images.

    None where no figures can be compared.
    """
    gaps = [
        (left, part, row)
        for part in summary["parts"]
        for row in part["rows"]
        if row["defense"] not in (None, "", "none")
        for column in part["columns"]
        if (left := gap(part, row, column))
    ]
    if not gaps:
        return None
    left, part, row = max(gaps, key=lambda each: each[0].size)
    where = f"{part['title']}: on" if len(summary["parts"]) > 1 else "On"
    known = f"{where} the same {left.images} images the paper's protocol leaves {row['title']} "
    known += f"{percent(left.ignorant)} %, and an attack that knows of the shield "
    stand_in = " Stand-ins were measured, not what the paper measured." if part.get("stand_in") else ""
    less = f"{percent(left.knowing)} %" if left.size > 0 else f"no less: {percent(left.knowing)} %"
    return f"{known}{less}.{stand_in}"


def warnings(summary: Mapping[str, Any]) -> list[str]:
    """What a reader must know before any figure."""
    if summary["complete"]:
        return []
    undone = [
        f"{part['title']} ({part['status']})" for part in summary["parts"] if part["status"] != "complete"
    ]
    return [
        "This experiment is not finished: the figures are those measured so far."
        + (f" Unfinished: {'; '.join(undone)}." if undone else "")
    ]


def part_warnings(part: Mapping[str, Any]) -> list[str]:
    """What a reader must know before the figures of a part."""
    lines = []
    why = str(part.get("why") or "no reason was recorded").rstrip(".")
    if part["status"] == "not run":
        lines.append(f"Not run: {why}. The figures are the paper's alone.")
    elif part["status"] != "complete":
        lines.append(f"Not finished: {why}.")
    if part.get("stand_in"):
        lines.append(f"Stand-in: {str(part['stand_in']).rstrip('.')}.")
    return lines


def part_facts(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the figures of a part were measured on."""
    ours = [(row, column, each) for row, column, each in figures(part) if each.get("ours") is not None]
    errors = [each["standard_error"] for *_, each in ours if each.get("standard_error") is not None]
    unit = {"%": " points", "nats": " nats"}.get(part["unit"], "")
    facts = [
        ("Images", f"N = {counts}" if (counts := spread_text(each.get("n") for *_, each in ours)) else None),
        ("Runs", spread_text(each.get("runs") for *_, each in ours)),
        ("Standard error over images", f"at most {scale(part) * max(errors):.2f}{unit}" if errors else None),
        ("Budget", _budget(part)),
        ("Data", _named(part.get("data"))),
        ("Classifier", _named(part.get("classifier"))),
        ("Precision", _precision(part)),
        *_made(part),
    ]
    facts += [(f"Audit {verdict}", where) for verdict, where in _audited(ours).items()]
    return [(name, text) for name, text in facts if text]


def part_audit(part: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """A heading and its lines for every audit; one without lines where attacks went unaudited."""
    audits = part.get("audit")
    if not audits or isinstance(audits, str):
        return [(NO_AUDIT, [])] if any(column["level"] for column in part["columns"]) else []
    return [(f"{each['defense']}: {_VERDICTS[each['passed']]}", list(each["lines"])) for each in audits]


def summary_facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the experiment was made with; where the parts say that of themselves, it is not said of all."""
    paper, machine = summary.get("paper") or {}, summary.get("machine") or {}
    facts = [
        ("In the paper", ": ".join(filter(None, (paper.get("label"), paper.get("caption")))) or "not named")
    ]
    if not any(part.get("made") for part in summary["parts"]):
        facts += [(str(name), format_value(value)) for name, value in machine.items()]
        known = {"Version": summary.get("version"), "Commit": summary.get("commit")}
        facts += [
            (name, _or_unknown(value)) for name, value in {**known, "Seed": summary.get("seed")}.items()
        ]
    return [*facts, ("Time", duration(summary["seconds"]))]


def duration(seconds: float) -> str:
    """Seconds the way a person would say them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _budget(part: Mapping[str, Any]) -> str | None:
    if part.get("eps") is None:
        return None
    norm = str(part.get("norm") or "")
    return f"eps = {format_value(part['eps'])}" + (f" in {_NORMS.get(norm, norm)}" if norm else "")


def _precision(part: Mapping[str, Any]) -> str | None:
    if part.get("precision") is None:
        return None
    return f"classifier computed in {_PRECISIONS.get(part['precision'], part['precision'])}"


def _made(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the runs that contributed were made with; all of it, where they differ."""
    runs = part.get("made") or ()
    said = {
        "Seed": [_or_unknown(run.get("seed")) for run in runs],
        "Commit": [_or_unknown(run.get("commit"))[:_COMMIT] for run in runs],
        "Version": [_or_unknown(run.get("version")) for run in runs],
        "Machine": [
            ", ".join(f"{name} {format_value(value)}" for name, value in (run.get("machine") or {}).items())
            for run in runs
        ],
    }
    return [(name, " / ".join(filter(None, dict.fromkeys(texts)))) for name, texts in said.items()]


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


def _named(thing: Mapping[str, Any] | None) -> str | None:
    """A data set or classifier; twelve digits of its checksum tell it from any other."""
    if not thing:
        return None
    words = [str(thing["name"])]
    if thing.get("images") is not None:
        words.append(f"{thing['images']} images")
    if thing.get("sha256"):
        words.append(f"sha256 {str(thing['sha256'])[:12]}…")
    return ", ".join(words)


def _audited(ours: list[tuple[Any, Any, Any]]) -> dict[str, str]:
    """For every verdict on single figures, the figures that it was passed on."""
    places: dict[str, list[str]] = {}
    for row, column, each in ours:
        if each.get("audit"):
            places.setdefault(str(each["audit"]), []).append(f"{row['title']} {column['title']}")
    if len(places) == 1 and len(ours) == sum(map(len, places.values())):
        return dict.fromkeys(places, "all figures")
    return {verdict: "; ".join(where) for verdict, where in places.items()}

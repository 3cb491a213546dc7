"""The tables of docs/ladder.md and docs/index.md, from the summary of a ladder."""

import recorded
from tables import machine

from vqshield.names import display_defense
from vqshield.reports.ladder import figure_text, ladder_lines, ladder_markdown
from vqshield.reports.numbers import percent
from vqshield.studies.ladder import LadderRow, LadderSummary

_SUMMARY = "ladder-small-cifar10/summary.json"


def ladder() -> str:
    """Every rung, and what is left of natural images when they may be sent again."""
    summary = recorded.read(LadderSummary, _SUMMARY)
    natural, chosen = summary.row("natural"), summary.plan.settings
    assert natural is not None
    again = ", ".join(
        f"{percent(share)} ({number})" for number, share in zip(summary.tries, natural.tries, strict=True)
    )
    return (
        f"{ladder_markdown(summary)}\n\n"
        f"{summary.images} images of {summary.data}, ε = {round(chosen.eps * 255)}/255, accuracy in % ± "
        f"standard error over images, {natural.runs} draws behind each figure, seed {chosen.seed}; seconds: "
        f"all images, first column; {machine(summary.machine)}. Natural accuracy of the shielded model where "
        f"an image may be sent several times (how often): {again}."
    )


def ladder_short() -> str:
    """The rungs that were run, queries with the most calls: the shielded model beside the bare one."""
    summary = recorded.read(LadderSummary, _SUMMARY)
    model, *controls = summary.plan.subjects
    bare = next(number for number, each in enumerate(controls, 1) if each.name == "bare")
    rungs = {line.rung.name: line for line in ladder_lines(summary) if isinstance(line.figures[0], LadderRow)}
    rows = [
        [line.title, line.rung.knows, _figure(line.figures[0]), _figure(line.figures[bare])]
        for line in rungs.values()
    ]
    return "\n".join(
        [
            "| attacker | knows | shielded | bare |",
            "|---|---|---:|---:|",
            *(f"| {' | '.join(row)} |" for row in rows),
            f"\nAccuracy in % ± standard error over {summary.images} images of {summary.data}; "
            f"{model.classifier} behind {display_defense(model.defense)}, not tuned for it; "
            f"ε = {round(summary.plan.settings.eps * 255)}/255; seed {summary.plan.settings.seed}; "
            f"{machine(summary.machine)}.",
        ]
    )


def _figure(found: LadderRow | str) -> str:
    return "–" if isinstance(found, str) else figure_text(found)

"""The table of docs/ladder.md, from the summary of a ladder."""

import recorded
from tables import machine

from vqshield.reports.ladder import ladder_markdown
from vqshield.reports.numbers import percent
from vqshield.studies.ladder import LadderSummary


def ladder() -> str:
    """Every rung, and what is left of natural images when they may be sent again."""
    summary = recorded.read(LadderSummary, "ladder-small-cifar10/summary.json")
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

"""The tables of docs/ladder.md and docs/index.md, from the summary of a ladder."""

import recorded
from fast_attack_table import first_look
from tables import accuracy, machine
from vqshield.core.display_names import display_defense
from vqshield.ladders.page import ladder_lines
from vqshield.ladders.study import LadderRow, LadderSummary
from vqshield.reports.text import markdown_table, percent

_SUMMARY = "ladder-small-cifar10-hardened/summary.json"
_TITLES = {
    "model": "shielded, tuned",
    "published": "swRD as published, not tuned",
    "noise": "noise alone, tuned",
    "adversarial": "adversarial training",
    "bare": "bare",
}


def ladder() -> str:
    """Every rung, and accuracy on clean images that may be sent several times."""
    summary = recorded.read(LadderSummary, _SUMMARY)
    natural, chosen = summary.row("natural"), summary.plan.settings
    assert natural is not None
    again = ", ".join(
        f"{percent(share)} ({number})" for number, share in zip(summary.tries, natural.tries, strict=True)
    )
    return (
        f"{summary.table.without('needs').markdown()}\n\n"
        f"{summary.images} images of {summary.data}, ε = {round(chosen.eps * 255)}/255, accuracy in % ± "
        f"standard error over images, {natural.runs} draws per number, seed {chosen.seed}; seconds: "
        f"all images, first column; {machine(summary.machine)}. Clean accuracy of the shielded model where "
        f"an image may be sent several times (how often): {again}. No number in this table was audited."
        f"{first_look(chosen.suite)}"
    )


def ladder_short() -> str:
    """The rungs that were run, queries with the most calls: the tuned shield next to its controls."""
    summary = recorded.read(LadderSummary, _SUMMARY)
    subjects = [each.name for each in summary.plan.subjects]
    shown = [(subjects.index(name), title) for name, title in _TITLES.items() if name in subjects]
    rungs = {line.rung.name: line for line in ladder_lines(summary) if isinstance(line.figures[0], LadderRow)}
    rows = [
        [line.title, line.rung.knows, *(_figure(line.figures[place]) for place, _ in shown)]
        for line in rungs.values()
    ]
    tuned = summary.plan.subjects[0]
    numbers = markdown_table(["attacker", "knows", *(title for _, title in shown)], rows, names=2)
    return (
        f"{numbers}\n\nAccuracy in % ± standard error over {summary.images} images of {summary.data}; "
        f"tuned: the bundled classifier fine-tuned behind {display_defense(tuned.defense)} "
        f"({tuned.classifier}); "
        f"ε = {round(summary.plan.settings.eps * 255)}/255; seed {summary.plan.settings.seed}; "
        f"{machine(summary.machine)}. No number in this table was audited."
        f"{first_look(summary.plan.settings.suite)}"
    )


def _figure(found: LadderRow | str) -> str:
    return "–" if isinstance(found, str) else accuracy(found.mean, found.standard_error)

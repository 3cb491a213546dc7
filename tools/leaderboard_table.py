"""The committed board of docs/leaderboard.md, from the summary that `vqshield leaderboard` wrote."""

import recorded
from tables import machine, table

from vqshield.reports.leaderboard import ranked
from vqshield.reports.numbers import percent
from vqshield.studies.leaderboard import RUNGS_SHOWN, BoardFigure, BoardSummary

_SUMMARY = "leaderboard-cifar10-resnet18/leaderboard.json"
_HEADS = ("natural", "transfer", "ignorant", "by score", "by decision", "white-box")


def leaderboard() -> str:
    """A row for each defense, the one that keeps most under its strongest attacker first."""
    summary = recorded.read(BoardSummary, _SUMMARY)
    rows = [
        [
            result.row.shown + (", control" if result.row.control else ""),
            *(_figure(result.figure(rung)) for rung in RUNGS_SHOWN),
            "not run" if result.audit is None else result.audit.verdict,
        ]
        for result in ranked(summary)
    ]
    chosen, audits = summary.settings.ladder, summary.settings.audit_images
    doubts = [
        f"{result.row.name} ({', '.join(result.audit.not_passed)})"
        for result in summary.rows
        if result.audit is not None and result.audit.verdict in ("failed", "suspicious")
    ]
    doubted = f" Audits that did not pass: {', '.join(doubts)}." if doubts else ""
    note = (
        f"\nAccuracy in % ± standard error over {summary.images} images of {summary.data}, {chosen.runs} "
        f"draws; ResNet18; ε = {round(chosen.eps * 255)}/255; transfer from {', '.join(summary.sources)} and "
        f"both together; {chosen.calls[-1]:,} calls an image, the better of 1 and 5 draws a query; white-box "
        f"by `{chosen.suite}`; audits of the first {audits} images; seed {chosen.seed}; "
        f"{machine(summary.machine)}.{doubted}"
    )
    return "\n".join([*table(["defense", *_HEADS, "audit"], rows), note])


def _figure(found: BoardFigure | None) -> str:
    return "–" if found is None else f"{percent(found.mean)} ± {percent(found.standard_error)}"

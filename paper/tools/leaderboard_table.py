"""The committed board of docs/leaderboard.md, from the records that `vqshield leaderboard` wrote."""

import recorded
from tables import listed, machine
from vqshield.leaderboards.page import board_markdown
from vqshield.leaderboards.study import BoardSummary

_BOARD = "leaderboard-cifar10-resnet18"


def leaderboard() -> str:
    """The board as the command writes it, and what it was measured with."""
    summary = BoardSummary.read(recorded.RESULTS / _BOARD)
    chosen, audited = summary.settings.ladder, summary.settings.audit_images
    return (
        f"{board_markdown(summary, links=False)}\n\n"
        f"Accuracy in % ± standard error over {summary.images} images of {summary.data}, {chosen.runs} "
        f"draws; ε = {round(chosen.eps * 255)}/255; transfer from {listed(summary.sources)}, each and all "
        f"together; {chosen.calls[-1]:,} calls per image, the best of {listed(map(str, chosen.draws))} draws "
        f"per query; white-box by `{chosen.suite}`; audits of the first {audited} images; "
        f"seed {chosen.seed}; {machine(summary.machine)}."
    )

"""The rungs of the ladder: kinds of attackers, from the one who knows nothing to the one who knows all."""

from dataclasses import dataclass
from typing import Literal

RungName = Literal["natural", "transfer", "ignorant", "score", "decision", "grey-box", "white-box"]


@dataclass(frozen=True)
class Rung:
    """One kind of attacker: what they know, in full, and what they need, for narrow tables."""

    name: RungName
    title: str
    knows: str
    needs: str


RUNGS = (
    Rung("natural", "no attack", "nothing", "nothing"),
    Rung(
        "transfer",
        "transfer",
        "the task, and other classifiers for it; never queries the model",
        "other nets",
    ),
    Rung("ignorant", "defense-unaware", "the classifier's weights, not that there is a defense", "weights"),
    Rung("score", "score-based queries", "the scores that the model answers with", "scores"),
    Rung("decision", "decision-based queries", "the class that the model answers with", "classes"),
    Rung(
        "grey-box",
        "grey-box",
        "the defense and the training images, not the weights; trains a network behind the same defense",
        "defense, training data",
    ),
    Rung(
        "white-box",
        "adaptive white-box",
        "weights and defense, all but its random samples",
        "weights, defense",
    ),
)
"""From the bottom up."""
INSIDE = ("natural", "ignorant", "white-box")
"""The rungs that an Evaluation measures; BlackBoxStudy measures the others."""

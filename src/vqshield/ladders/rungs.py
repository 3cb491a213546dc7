"""The rungs of the ladder: kinds of attackers, from the one who knows nothing to the one who knows all."""

from dataclasses import dataclass
from typing import Literal

RungName = Literal["natural", "transfer", "ignorant", "score", "decision", "grey-box", "white-box"]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One kind of attacker: what they know, in full and, for narrow tables, in a word."""

    name: RungName
    title: str
    knows: str
    needs: str


RUNGS = (
    Rung(name="natural", title="no attack", knows="nothing", needs="nothing"),
    Rung(
        name="transfer",
        title="transfer",
        knows="the task, and other classifiers for it; never asks the model",
        needs="other nets",
    ),
    Rung(
        name="ignorant",
        title="ignorant of the shield",
        knows="the classifier's weights, not that there is a shield",
        needs="weights",
    ),
    Rung(
        name="score",
        title="queries by score",
        knows="the scores that the model answers with",
        needs="scores",
    ),
    Rung(
        name="decision",
        title="queries by decision",
        knows="the class that the model answers with",
        needs="classes",
    ),
    Rung(
        name="grey-box",
        title="grey-box",
        knows="the shield and the training images, not the weights; trains a network behind the same shield",
        needs="shield, training data",
    ),
    Rung(
        name="white-box",
        title="white-box, adaptive",
        knows="weights and shield, all but its random draws",
        needs="weights, shield",
    ),
)
"""From the bottom up."""

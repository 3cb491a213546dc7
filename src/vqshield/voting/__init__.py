"""Voting: a predictor that classifies by the majority of many samples, and abstains where it is not sure.

`certify` counts votes with the functions of `counting`, so what it certifies is what `Voting` predicts.
"""

from vqshield.voting.predictor import VotedClasses, Voting

__all__ = ["VotedClasses", "Voting"]

"""Accuracy against attackers who know more and more: the study, its plot and its page."""

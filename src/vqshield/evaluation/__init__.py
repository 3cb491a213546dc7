"""Accuracy of a defended classifier under attacks: the study and its tables."""

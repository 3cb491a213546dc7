"""Reproduction of the paper, and the studies behind the documentation."""

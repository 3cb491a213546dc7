"""Runs: resumable work, its records, and where it is done."""

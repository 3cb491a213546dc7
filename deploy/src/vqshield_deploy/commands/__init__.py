"""Commands that this distribution adds to `vqshield`."""

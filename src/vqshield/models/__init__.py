"""Calling a model that a user wrote, and repeated samples of a random one."""

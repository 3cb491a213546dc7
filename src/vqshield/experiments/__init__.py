"""Experiments: measurements that the project reports, each one call."""

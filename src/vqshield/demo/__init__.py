"""The first two minutes: one table and one page with pictures."""

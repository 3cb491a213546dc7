"""Studies: what is measured, one file each, all on one pattern.

The file of a study holds the study itself (a frozen dataclass: the target and what is asked of it), its
manifest, its cells, its records, and the summary that the records give. `vqshield.runs` runs them.

evaluation      accuracy under attack          certification   what draws prove
kl              the KL diagnostic              gallery         pictures
worked_example  Proposition 1 by its numbers   demo            the first two minutes
cost            milliseconds an image          leaderboard     many defenses, by the studies above
"""

"""How fast the shield is: its backends and other k-means, on the same patches, start and iterations.

workloads (what) and implementations (who) → comparison (timed, and checked by quality) → run → record.
Also: yardsticks (the machine, the classifier) and memory.
"""

from vqshield_paper.speed.implementations import list_implementations
from vqshield_paper.speed.record import BenchRecord, BenchRow, read_record
from vqshield_paper.speed.run import Bench, BenchSettings
from vqshield_paper.speed.workloads import list_workloads

__all__ = [
    "Bench",
    "BenchRecord",
    "BenchRow",
    "BenchSettings",
    "list_implementations",
    "list_workloads",
    "read_record",
]

"""How fast the shield is: its backends beside other k-means, on the same patches, start and iterations.

workloads (what) → ours, plain, peers (who) → timing, quality (how) → bench (one call that measures it all);
beside it what a figure is held against: peak (the machine), classifier (what is shielded), growth, memory.
"""

from vqshield.bench.bench import Bench
from vqshield.bench.registry import list_implementations
from vqshield.bench.settings import BenchSettings
from vqshield.bench.workloads import list_workloads

__all__ = ["Bench", "BenchSettings", "list_implementations", "list_workloads"]

"""How fast the shield is: its backends beside other k-means, on the same patches, start and iterations.

workloads (what) → ours, plain, peers (who) → timing, quality (how) → bench (one call that measures it all);
beside it what a figure is held against: peak (the machine), classifier (what is shielded), growth, memory.
"""

from vqshield.experiments.bench.bench import Bench
from vqshield.experiments.bench.registry import implementations
from vqshield.experiments.bench.settings import BenchSettings
from vqshield.experiments.bench.workloads import workloads

__all__ = ["Bench", "BenchSettings", "implementations", "workloads"]

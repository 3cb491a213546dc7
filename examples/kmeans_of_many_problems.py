"""Solve many small k-means problems at once, on the quantizers' kernels.

pip install ".[cli]" -c constraints.txt
python examples/kmeans_of_many_problems.py
"""

import torch

import vqshield as vq

points = torch.randn(1000, 200, 8, generator=torch.Generator().manual_seed(0))
for restarts in (1, 3):
    clusters = vq.kmeans(points, 5, restarts=restarts)
    print(f"{len(points)} problems, {restarts} starts: inertia {clusters.inertia.mean():.1f} on average")

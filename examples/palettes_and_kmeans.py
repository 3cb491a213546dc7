"""k-means of many small problems at once, and images of few colours, on the quantizers' kernels.

pip install ".[cli]" -c constraints.txt
python examples/palettes_and_kmeans.py
"""

import torch

import vqshield as vq
from vqshield.data import sample

points = torch.randn(1000, 200, 8, generator=torch.Generator().manual_seed(0))
found = vq.kmeans(points, 5, restarts=3)
print(f"{len(points)} problems: inertia {found.inertia.mean():.1f} on average")

images = sample(8).floats()
for dither in (False, True):
    reduced = vq.palette(images, 8, dither=dither)
    error = (reduced.images().double() / 255 - images).square().mean()
    print(f"8 colours, dither={dither}: {-10 * error.log10():.2f} dB, indices {tuple(reduced.indices.shape)}")

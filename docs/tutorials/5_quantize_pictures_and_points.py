"""
Quantize pictures and points
============================

The quantizers are useful by themselves: they find the patches that show a picture best. The same
kernels solve k-means problems of any kind.
"""

# %%
# The codebook of a picture
# -------------------------
#
# pRD cuts a picture into patches and finds the k centers that represent the patches best. Without
# noise (``sigma=0, tau=0``) it is plain vector quantization. More centers give a smaller error:

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import vqshield as vq
from vqshield.data import sample
from vqshield.images.files import encode_png

photos = sample(120)
ship = next(number for number, label in enumerate(photos.labels) if photos.classes[label] == "ship")
image = photos.images[ship : ship + 1]
quantized = {k: vq.PRD(size=2, codes=k, sigma=0, tau=0, seed=0)(image) for k in (2, 8, 25, 70)}

figure, axes = plt.subplots(1, 5, figsize=(7.5, 2), layout="constrained")
for axis, (title, picture) in zip(
    axes,
    {"original": image, **{f"{k} centers": each for k, each in quantized.items()}}.items(),
    strict=True,
):
    axis.imshow(picture[0].permute(1, 2, 0))
    axis.set_title(title, fontsize=9)
    axis.axis("off")

for k, picture in quantized.items():
    error = ((picture.double() - image.double()) / 255).square().mean()
    print(f"{k:3} centers: {-10 * error.log10():.1f} dB")

# %%
# With noise, every draw finds other centers. These are 25 of the picture, from one draw:

centres = vq.PRD(size=4, codes=25, seed=0).codebook(image)
patches = centres[0].reshape(25, 3, 4, 4).permute(0, 2, 3, 1)
figure, axes = plt.subplots(3, 9, figsize=(7.5, 2.6), layout="constrained")
for axis, patch in zip(axes.flat, patches, strict=False):
    axis.imshow(patch.clamp(0, 1))
for axis in axes.flat:
    axis.axis("off")

# %%
# Files
# -----
#
# ``vq.purify`` quantizes PNG and JPEG files, or folders of them; ``vqshield purify`` does the same in
# a terminal. If a file cannot be read, ``done.error`` says why, and the other files are still done.

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "ship.png").write_bytes(encode_png(image[0].permute(1, 2, 0).numpy()))
    (Path(folder) / "broken.png").write_text("no picture")
    for done in vq.purify(folder, Path(folder) / "out", defense="swrd:size=3,codes=25", seed=0):
        print(done.input.name, "→", "cannot be read" if done.error else done.output.name)

# %%
# Points of any kind
# ------------------
#
# ``vq.kmeans`` solves many small problems at once: here a thousand problems of 200 points in the
# plane. The figure shows the first problem.

generator = torch.Generator().manual_seed(0)
corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 3.0]])
points = corners[torch.randint(3, (1000, 200), generator=generator)]
points = points + torch.randn(1000, 200, 2, generator=generator)
clusters = vq.kmeans(points, 3, restarts=3)
print(clusters.centres.shape, clusters.labels.shape, clusters.inertia.shape)

figure, axis = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
axis.scatter(*points[0].T, c=clusters.labels[0], s=12, cmap="viridis")
axis.scatter(*clusters.centres[0].T, marker="x", c="red", s=80)
axis.set(xticks=[], yticks=[])

# %%
# :doc:`/kmeans` has the settings, and compares the speed with scikit-learn. ``examples/palette.py``
# reduces photographs to files of few colors with the same kernels.

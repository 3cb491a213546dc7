"""
Quantize pictures and palettes
==============================

What the shields do to an image is useful by itself: the few colours or patches that show it best.
The same kernels find them for pictures and for points of any kind.
"""

# %%
# A palette
# ---------
#
# ``vq.palette`` finds the k colours that show each image best, and the index of each pixel's
# colour. There is no noise in it: the same image always gets the same palette.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import vqshield as vq
from vqshield.data import sample
from vqshield.images.files import encode_png
from vqshield.palette_files import encode_indexed_png

photos = sample(120)
ship = next(number for number, label in enumerate(photos.labels) if photos.classes[label] == "ship")
image = photos.images[ship : ship + 1]
found = {k: vq.palette(image, k) for k in (2, 4, 8, 16)}

figure, axes = plt.subplots(2, 5, figsize=(7.5, 2.3), height_ratios=[6, 1], layout="constrained")
for axis in axes.flat:
    axis.axis("off")
axes[0, 0].imshow(image[0].permute(1, 2, 0))
axes[0, 0].set_title("as it came", fontsize=9)
for column, (k, reduced) in enumerate(found.items(), 1):
    axes[0, column].imshow(reduced.images()[0].permute(1, 2, 0))
    axes[0, column].set_title(f"{k} colours", fontsize=9)
    axes[1, column].imshow(reduced.colours, aspect="auto")

# %%
# How good is it? The error falls as colours are added, and the file grows:


def decibels(shown: torch.Tensor, wanted: torch.Tensor) -> float:
    """Peak signal-to-noise ratio."""
    return float(-10 * ((shown.double() - wanted.double()) / 255).square().mean().log10())


whole = len(encode_png(image[0].permute(1, 2, 0).numpy()))
print(f"as it came: {whole} bytes")
for k, reduced in found.items():
    size = len(encode_indexed_png(reduced))
    print(f"{k:3} colours: {decibels(reduced.images(), image):5.1f} dB, {size} bytes")

# %%
# Dithering spreads each pixel's error over its neighbours. It makes this measure worse, and a large
# picture look better:

dithered = vq.palette(image, 4, dither=True)
print(f"4 colours, dithered: {decibels(dithered.images(), image):.1f} dB")

# %%
# The codebook of a shield
# ------------------------
#
# A shield's centres are patches. These are the 25 that pRD found in this image, through its noise;
# another draw finds others.

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
# ``vq.purify`` quantizes PNG and JPEG files, one by one or folders of them; ``vqshield purify`` and
# ``vqshield palette`` do it in a terminal. A file that cannot be read is reported,
# ``done.error`` says why, and the others are still done.

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "ship.png").write_bytes(encode_png(image[0].permute(1, 2, 0).numpy()))
    (Path(folder) / "broken.png").write_text("no picture")
    for done in vq.purify(folder, Path(folder) / "out", defense="swrd:size=3,codes=25", seed=0):
        print(done.input.name, "→", "cannot be read" if done.error else done.output.name)

# %%
# Points of any kind
# ------------------
#
# ``vq.kmeans`` solves many small problems at once. Here are a thousand of 200 points in the plane,
# and the first of them:

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
# :doc:`/palettes` has the settings, and how fast all this is beside scikit-learn, OpenCV, Pillow
# and libimagequant.

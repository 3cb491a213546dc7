"""
Shield your model
=================

One line puts a quantizer in front of a classifier. The result is a module like any other, and every
call draws fresh noise. This page shows a quantized image, the cost in clean accuracy, and what the
randomness means for your predictions.
"""

# %%
# A classifier and some images
# ----------------------------
#
# Any module from images in [0, 1] to logits works. This page uses the bundled small network and
# images of the CIFAR-10 test set. A network that expects normalized images gets its mean and standard
# deviation from ``vq.defend(network, "swrd", mean=..., std=...)``. They are applied behind the
# defense, which must see pixels.

import matplotlib.pyplot as plt
import torch

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.data import sample
from vqshield.models.draws import Draws, draw_predictions

classifier, photos = small_cifar10(), sample(100)
images, labels = photos.floats(), photos.labels

# %%
# The defense
# -----------
#
# ``"swrd"`` slides 3×3 windows over the image, finds 25 centers among them by k-means, and rebuilds
# the image from the centers. ``seed=0`` makes this page repeatable. Leave it out when you deploy:
# the noise is then unpredictable.

model = vq.defend(classifier, "swrd", size=3, codes=25, seed=0)
print(model(images[:4]).shape)

# %%
# ``model.defense`` is the defense alone. Each row shows what the classifier sees. RandDisc has 25
# colors, pRD 25 patches side by side, swRD 25 patches that overlap.

shields = {
    "RandDisc": vq.RandDisc(codes=25, seed=0),
    "pRD": vq.PRD(seed=0),
    "swRD": model.defense,
}
rows = {
    "original": images[:6],
    **{name: shield(images[:6]) for name, shield in shields.items()},
}
figure, axes = plt.subplots(len(rows), 6, figsize=(7, 4.8), layout="constrained")
for line, (name, shown) in zip(axes, rows.items(), strict=True):
    for axis, image in zip(line, shown, strict=True):
        axis.imshow(image.permute(1, 2, 0).clamp(0, 1))
        axis.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)

# %%
# What it costs
# -------------
#
# Clean accuracy, over five samples of the noise each:

bare = draw_predictions(classifier, images, labels, runs=1)
print(f"{'no defense':12} {100 * bare.mean:5.1f} %")
for name, shield in shields.items():
    found = draw_predictions(vq.Defended(classifier, shield), images, labels, runs=5)
    print(f"{name:12} {100 * found.mean:5.1f} % ± {100 * found.std:.1f}")

# %%
# The classifier has never seen quantized images. Calibration or a few epochs of fine-tuning restore
# most of the accuracy: :doc:`3_harden_it`.
#
# Predictions are random
# ----------------------
#
# Two calls on the same image may disagree. So the way you use them matters: one sample, the vote of
# several samples (at the cost of several forward passes), or all of them, if a single wrong answer
# is enough for an attacker who may try again.

draws = draw_predictions(model, images, labels, runs=15)
agree = (draws.predictions == draws.predictions[0]).all(0).double().mean()
print(f"all 15 samples agree on {100 * agree:.0f} % of the images")

first = {count: Draws(draws.predictions[:count], labels) for count in (1, 3, 5, 9, 15)}
votes = {count: 100 * some.vote() for count, some in first.items()}
worst = {count: 100 * some.worst() for count, some in first.items()}
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.plot(list(votes), list(votes.values()), "o-", label="vote of N samples")
axis.plot(list(worst), list(worst.values()), "s--", label="correct in all of N samples")
axis.axhline(100 * draws.mean, color="grey", linewidth=1, label="one sample, on average")
axis.set(xlabel="N", ylabel="accuracy, %", xticks=list(votes))
axis.legend()

# %%
# To repeat a sample, name its stream: the same image, seed and stream give the same result, in any
# batch.

alone = model.defense(images[3:4], streams=torch.tensor([7]))
among = model.defense(images[:8], streams=torch.arange(4, 12))
print(torch.equal(alone[0], among[3]))

# %%
# Next: :doc:`2_attack_and_audit_it`, before you trust any defense.

# sphinx_gallery_thumbnail_number = 1

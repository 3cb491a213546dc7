"""
Shield your model
=================

One line puts a quantizer in front of a classifier. What comes out is a module like any other, and
every call draws fresh noise. This page shows what the shield makes of an image, what it costs, and
what its randomness means for whoever uses the answers.
"""

# %%
# A classifier and some images
# ----------------------------
#
# Anything that maps images in [0, 1] to logits will do. Here it is the small network that comes
# with the package, and images of the CIFAR-10 test set. A network that expects normalised images
# gets its mean and standard deviation from ``vq.defend(network, "swrd", mean=..., std=...)``: they
# are applied behind the shield, so that the shield sees pixels.

import matplotlib.pyplot as plt
import torch

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.data import sample
from vqshield.models.draws import draw_predictions

classifier, photos = small_cifar10(), sample(100)
images, labels = photos.floats(), photos.labels

# %%
# The shield
# ----------
#
# ``"swrd"`` slides 3×3 windows over the image, finds 25 centres among them by k-means, and rebuilds
# the image from centres alone. ``seed=0`` makes this page repeatable; leave it out when you deploy,
# and the noise is unpredictable.

model = vq.defend(classifier, "swrd", size=3, codes=25, seed=0)
print(model(images[:4]).shape)

# %%
# ``model.defense`` is the shield alone. This is what each of the three quantizers shows the
# classifier; RandDisc has 25 colours, pRD 25 patches side by side, swRD 25 patches that overlap.

shields = {
    "RandDisc": vq.RandDisc(codes=25, seed=0),
    "pRD": vq.PRD(seed=0),
    "swRD": model.defense,
}
rows = {
    "as it came": images[:6],
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
# Accuracy on images that nobody attacked, over five draws of the noise each:

bare = draw_predictions(classifier, images, labels, runs=1)
print(f"{'no defense':12} {100 * bare.mean:5.1f} %")
for name, shield in shields.items():
    found = draw_predictions(vq.Defended(classifier, shield), images, labels, runs=5)
    print(f"{name:12} {100 * found.mean:5.1f} % ± {100 * found.std:.1f}")

# %%
# The classifier has never seen quantized images. A few epochs behind the shield give most of the
# loss back: :doc:`3_harden_it`.
#
# The answers are random
# ----------------------
#
# Two calls about the same image may disagree. So how an answer is used matters: one draw, the vote of
# several, which costs as many calls of the classifier, or all of them, where a single wrong answer is
# enough for an attacker who may ask again.

draws = draw_predictions(model, images, labels, runs=15)
agree = (draws.predictions == draws.predictions[0]).all(0).double().mean()
print(f"all 15 draws give the same answer about {100 * agree:.0f} % of the images")

votes = {count: 100 * draws.vote(count) for count in (1, 3, 5, 9, 15)}
worst = {count: 100 * draws.worst(count) for count in votes}
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
axis.plot(list(votes), list(votes.values()), "o-", label="vote of N draws")
axis.plot(list(worst), list(worst.values()), "s--", label="right in all of N draws")
axis.axhline(100 * draws.mean, color="grey", linewidth=1, label="one draw, on average")
axis.set(xlabel="N", ylabel="accuracy, %", xticks=list(votes))
axis.legend()

# %%
# Where a draw must be repeatable, name the stream: the same image, seed and stream give the same
# result, in any batch.

alone = model.defense(images[3:4], streams=torch.tensor([7]))
among = model.defense(images[:8], streams=torch.arange(4, 12))
print(torch.equal(alone[0], among[3]))

# %%
# Next: :doc:`2_attack_and_audit_it`, before you believe in any shield.

# sphinx_gallery_thumbnail_number = 1

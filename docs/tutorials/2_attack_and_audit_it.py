"""
Attack and audit it
===================

A defense looks strong under the wrong attack. This page measures one defense with three attackers
who know more and more, and then checks whether the result is credible.
"""

# %%
# Three attackers
# ---------------
#
# The first attacks the bare classifier (``surrogate=none``). The second takes the defense for the
# identity in the backward pass (``ste``) and averages gradients over samples (``eot``). The third
# differentiates a soft version of the quantizer (``soft``). All may change a pixel by 8/255. This
# page uses few images and few steps, so compare the order of the results, not their digits.

import textwrap

import matplotlib.pyplot as plt

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.data import sample

photos = sample(20)
images, labels = photos.floats(), photos.labels
model = vq.defend(small_cifar10(), "swrd", size=3, codes=25)
attacks = {
    "ignores the defense": "pgd:steps=10,surrogate=none",
    "straight through": "pgd:steps=10,eot=2,surrogate=ste",
    "soft gradient": "pgd:steps=10,eot=2,surrogate=soft,loss=margin",
}
found = vq.evaluate(model, images, labels, attacks=list(attacks.values()), samples=5)

# %%
# Every image was attacked and evaluated on fresh samples that the attack has not seen. The row
# ``none`` is clean accuracy:

for row in found.rows:
    print(f"{row.defense:5} {row.attack:45} {100 * row.mean:5.1f} ± {100 * row.standard_error:.1f}")

# %%
# ``adaptive`` is the strongest attack for each image: the number to report.

names = {"no attack": "none", **attacks}
rows = [found.row("swrd", attack) for attack in names.values()]
means, errors = [100 * row.mean for row in rows], [100 * row.standard_error for row in rows]
figure, axis = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
axis.barh(list(names), means, xerr=errors, color=["#9aa5b1", "#7fb069", "#e6aa68", "#ca3c25"])
axis.invert_yaxis()
axis.set(xlabel="accuracy, %", xlim=(0, 100))

# %%
# A suite is a versioned list of attacks: ``attacks="adaptive-v1-quick"`` suits a CPU,
# ``"adaptive-v2"`` a GPU. :doc:`/adaptive-attacks` explains them.
#
# Is the number credible?
# -----------------------
#
# A robust accuracy is an upper bound: a better attack may find more. ``vq.audit`` looks for signs
# that the attacks were too weak: an unbounded attack that fails, random noise that beats gradients,
# a gradient that disagrees with the loss. Here it gets a bad measurement on purpose, the attack that
# ignores the defense. An audit needs 50 images. A rehearsal takes fewer; its checks can fail but not
# pass:

few = vq.auditing.AuditSettings(
    runs=3, queries=20, directions=2, draws=8, probe="pgd:steps=5,surrogate=soft", rehearsal=True
)
report = vq.audit(model, images, labels, attacks=attacks["ignores the defense"], settings=few)
for flag in report.flags:
    print(f"{flag.name:4} {flag.outcome:11} {flag.title}")

# %%
# The checks that failed, with their reasons:

for flag in report.flags:
    if flag.outcome == vq.auditing.FAIL:
        print(textwrap.fill(f"{flag.name}: {flag.meaning}", 90))

# %%
# A failed audit does not mean that the defense is bad. It means that its robust accuracy may be
# lower than reported. ``vqshield audit`` writes the same report as a page, and :doc:`/failed-audit`
# says what to do about each check.
#
# Next: :doc:`3_harden_it`, which restores clean accuracy, or :doc:`4_certify_it`, for statements that
# hold against every attack.

"""
Attack and audit it
===================

A shield that was measured with the wrong attack looks wonderful. This page measures one three
times, with attackers who know more and more, and then asks whether the last figure can be believed.
"""

# %%
# Three attackers
# ---------------
#
# The first attacks the bare classifier and sends what it found (``surrogate=none``). The second
# sends its gradients straight through the shield as if it were not there (``ste``), averaged over
# draws (``eot``). The third differentiates a soft version of the quantizer (``soft``). All may move
# a pixel by 8/255. There are few images and few steps here, so that this page is built in seconds:
# look at the order of the figures, not at their digits.

import textwrap

import matplotlib.pyplot as plt

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.data import sample

photos = sample(20)
images, labels = photos.floats(), photos.labels
model = vq.defend(small_cifar10(), "swrd", size=3, codes=25)
attacks = {
    "ignores the shield": "pgd:steps=10,surrogate=none",
    "straight through": "pgd:steps=10,eot=2,surrogate=ste",
    "soft gradient": "pgd:steps=10,eot=2,surrogate=soft,loss=margin",
}
found = vq.evaluate(model, images, labels, attacks=list(attacks.values()), runs=5)

# %%
# Every image was attacked, and judged on fresh draws that the attack has not seen. The row ``none``
# is natural accuracy:

for row in found.rows:
    print(f"{row.defense:5} {row.attack:45} {100 * row.mean:5.1f} ± {100 * row.standard_error:.1f}")

# %%
# ``adaptive`` is the strongest attack of each image: the figure to report.

names = {"no attack": "none", **attacks}
rows = [found.row("swrd", attack) for attack in names.values()]
means, errors = [100 * row.mean for row in rows], [100 * row.standard_error for row in rows]
figure, axis = plt.subplots(figsize=(6.5, 2.8), layout="constrained")
axis.barh(list(names), means, xerr=errors, color=["#9aa5b1", "#7fb069", "#e6aa68", "#ca3c25"])
axis.invert_yaxis()
axis.set(xlabel="accuracy, %", xlim=(0, 100))

# %%
# A suite is a list of such attacks with a version number: ``attacks="adaptive-v1-quick"`` suits a
# CPU, ``"adaptive-v2"`` a GPU. :doc:`/attacks` says how they were chosen.
#
# Can the figure be believed?
# ---------------------------
#
# A robust accuracy is what *these* attacks leave; a better one may leave less. ``vq.audit`` looks
# for signs that the attacks were too weak: an unbounded attack that does not win, random noise that
# beats gradients, a gradient that points elsewhere than the loss goes. Let us hand it a bad
# measurement on purpose, the attack that ignores the shield. An audit needs 50 images; a rehearsal
# takes fewer, and its checks can fail but not pass:

few = vq.auditing.AuditSettings(
    runs=3, queries=20, directions=2, draws=8, probe="pgd:steps=5,surrogate=soft", rehearsal=True
)
report = vq.audit(model, images, labels, attacks=attacks["ignores the shield"], settings=few)
for flag in report.flags:
    print(f"{flag.name:4} {flag.outcome:11} {flag.title}")

# %%
# What each flag that failed has to say:

for flag in report.flags:
    if flag.outcome == vq.auditing.FAIL:
        print(textwrap.fill(f"{flag.name}: {flag.meaning}", 90))

# %%
# An audit that was not passed does not say that the shield is bad: it says that the robust accuracy
# may be lower.
# ``vqshield audit`` in a terminal writes the same as a page.
#
# Next: :doc:`3_harden_it`, which gives clean accuracy back, or :doc:`4_certify_it`, for statements
# that no attack can overturn.

"""Training runs that take a moment: a tiny network, two classes, and a watcher that may stop them."""

import re

import torch

from vqshield.data import ImageSet

TINY = {"widths": [4, 6], "blocks": [0, 1]}


def two_tones(count, *, seed, size=8):
    """Dark and bright noise: a task that any network learns at once."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    noise = torch.randint(0, 120, (count, 3, size, size), generator=generator)
    return ImageSet("two-tones", (noise + 130 * labels.view(-1, 1, 1, 1)).byte(), labels, ("dark", "bright"))


TRAINING, TEST = two_tones(64, seed=0), two_tones(32, seed=1)


class Watcher:
    """Notes the reports; stops the run in some epoch as Ctrl-C would.

    resumed: the epochs that were done before; reports: (epoch, steps done, text) of the others.
    """

    def __init__(self, *, stop_in=None):
        self.stop_in, self.resumed, self.reports = stop_in, None, []

    def __call__(self, doing, done, total):
        found = re.match(r"epoch (\d+)/", doing)
        if found is None:
            self.resumed = int(re.search(r"after epoch (\d+)", doing)[1]) if done else 0
            return
        self.reports.append((int(found[1]), done, doing))
        if int(found[1]) == self.stop_in:
            self.stop()

    def stop(self):
        raise KeyboardInterrupt

    @property
    def epochs(self):
        return {epoch for epoch, *_ in self.reports}

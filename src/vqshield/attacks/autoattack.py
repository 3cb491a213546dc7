"""AutoAttack (Croce and Hein 2020) through the package pyautoattack, the authors' own code."""

import logging
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vqshield.attacks.apgd import APGD
from vqshield.attacks.balls import Ball
from vqshield.attacks.base import Attack, check_counts
from vqshield.core import checks
from vqshield.core.entry_points import require
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import Model

_CLASSES = {"standard": 4, "rand": 3}  # at least, for its losses (targeted DLR, DLR)
_NORMS = {"linf": "Linf", "l2": "L2"}
_TARGETS = 9  # wrong classes that it attacks towards; it fails if there are fewer


@dataclass(frozen=True, kw_only=True)
class AutoAttack(Attack):
    """The standard ensemble, or the one for random models; returns images, never an accuracy.

    AutoAttack returns images unchanged that one draw misclassifies, and those that it could not break. Our
    APGD then attacks the unchanged ones, since they may be right in other draws or on another model; no
    misclassified image of a deterministic model becomes right by that. AutoAttack takes one row of logits per
    image: the draws of an EOT model are averaged. The global random state and the log stay as they were.

    Args:
        ball: an Linf or L2 ball.
        version: "standard" (APGD, targeted APGD and FAB, Square) or "rand" (APGD with two losses, each
            gradient the average of several draws).
        draws: draws per gradient of version "rand".
        batch: images attacked at a time; the random numbers depend on it.
        judgements: fresh evaluations of the model for each candidate of our APGD.
        seed: of all its random numbers.

    Raises:
        MissingExtraError: at the first call, where pyautoattack is not installed.

    Example:
        >>> attack = vq.attacks.AutoAttack(ball=vq.attacks.Linf(8 / 255), version="rand", draws=1)
        >>> found = attack(classifier, images[:1], labels[:1])
        >>> int((classifier(found).argmax(1) == labels[:1]).sum())
        0
    """

    ball: Ball
    version: str = "standard"
    draws: int = 20
    batch: int = 250
    judgements: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        checks.one_of("version", self.version, _CLASSES)
        check_counts(self, "draws", "batch", "judgements")
        checks.one_of("the ball's norm", self.ball.norm, _NORMS)

    def run(self, model: Model, images: Tensor, labels: Tensor, *, drop_lost: bool = False) -> Tensor:
        if self.ball.eps == 0:
            return images
        with _undisturbed():
            found = self._original(model, images, labels)
        unchanged = (found == images).flatten(1).all(1).nonzero()[:, 0]
        if len(unchanged):
            # From the image itself, so that one that is wrong for certain cannot become right on the way.
            apgd = APGD(ball=self.ball, random_start=False, judgements=self.judgements, seed=self.seed)
            climb = apgd.run_dropping if drop_lost else apgd.run
            found[unchanged] = climb(model, images[unchanged], labels[unchanged])
        return found

    def run_dropping(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """As `run`; AutoAttack itself stops attacking images that it has broken."""
        return self.run(model, images, labels, drop_lost=True)

    def _original(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        def logits(points: Tensor) -> Tensor:
            """As pyautoattack needs them: (B, classes), float32, writable."""
            values = model(points.to(images.dtype))
            return values.reshape(-1, *values.shape[-2:]).mean(0).float()

        with torch.no_grad():
            classes, least = logits(images[:1]).shape[-1], _CLASSES[self.version]
        if classes < least:
            raise InvalidInputError(f"version={self.version!r} needs at least {least} classes, not {classes}")
        single = images.float()
        attack = require("pyautoattack", "attacks").AutoAttack(
            logits, norm=_NORMS[self.ball.norm], eps=self.ball.eps, seed=self.seed, version=self.version,
            device=images.device,
        )  # fmt: skip
        attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = min(_TARGETS, classes - 1)
        if self.version == "rand":
            attack.apgd.eot_iter = self.draws
        found, _ = attack.run_standard_evaluation(single, labels, batch_size=self.batch)
        same = (found == single).flatten(1).all(1)[:, None, None, None]
        return torch.where(same, images, found.to(images.dtype))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore the process's random generators, log and trace function, which pyautoattack changes."""
    logger = logging.getLogger("auto-attack")
    python, numpy, tracer, silent = random.getstate(), np.random.get_state(), sys.gettrace(), logger.disabled
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    logger.disabled = True
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, numpy)
        stack.callback(sys.settrace, tracer)  # its check for dynamic defenses ends a debugger's or coverage's
        stack.callback(setattr, logger, "disabled", silent)
        yield

"""Random noise: the weakest attack, and the baseline that every other one should beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.attacks.balls import Ball
from vqshield.attacks.base import Attack, check_counts, places_in_batch, random_start
from vqshield.attacks.best import Best
from vqshield.core import checks
from vqshield.models.calling import Model
from vqshield.quantization.noise import Draw, Stage

KINDS = ("corners", "points")


@dataclass(frozen=True, kw_only=True)
class RandomNoise(Attack):
    """The worst of several random images of the ball.

    Args:
        tries: random images for each image.
        kind: "corners" changes every value by the same amount, up or down; "points" are uniform in the Linf
            ball, and on the sphere of the L2 ball.
        judgements: evaluations of the model that choose between them.
        seed: of the random images.

    Example:
        >>> attack = vq.attacks.RandomNoise(ball=vq.attacks.Linf(8 / 255), tries=2)
        >>> found = attack(classifier, images, labels)
        >>> round(float((found - images).abs().max()) * 255)
        8
    """

    needs_gradients = False

    ball: Ball
    tries: int = 10
    kind: str = "corners"
    judgements: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "tries", "judgements")
        checks.one_of("kind", self.kind, KINDS)

    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        make = _corner if self.kind == "corners" else random_start
        if self.tries == 1:
            return make(self.ball, images, self.seed, 0)
        best = Best(images, labels, judgements=self.judgements)
        for number in range(self.tries):
            best.consider(model, make(self.ball, images, self.seed, number))
        return best.images


def _corner(ball: Ball, images: Tensor, seed: int, number: int) -> Tensor:
    values = images[0].numel()
    draw = Draw(seed, places_in_batch(images))
    words = draw.words(Stage.ATTACK_START, number * values, values).view_as(images)
    signs = torch.where(words < 2**31, -1.0, 1.0).to(images.dtype)
    return ball.project(images + ball.eps * ball.steepest(signs), images)

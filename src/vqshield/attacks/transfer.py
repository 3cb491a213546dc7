"""Transfer: images found on one model, used against another."""

from dataclasses import dataclass, field

from torch import Tensor

from vqshield.attacks.balls import Ball
from vqshield.attacks.base import Attack, Model
from vqshield.errors import InvalidInputError


@dataclass(frozen=True, kw_only=True)
class Transfer(Attack):
    """Runs an attack on a source model that the attacker holds; the attacked model is never asked.

    A source is a stand-in for a model whose gradients help little: the bare classifier, or one fine-tuned on
    quantized images. A transfer that beats the direct attack shows that the direct one is too weak.
    """

    attack: Attack
    source: Model
    ball: Ball = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.attack, Attack):
            raise InvalidInputError(
                f"attack should be an Attack such as PGD(...), not {type(self.attack).__name__}"
            )
        if not callable(self.source):
            raise InvalidInputError(f"source should be a model, not {type(self.source).__name__}")
        object.__setattr__(self, "ball", self.attack.ball)

    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        """What the attack finds on the source."""
        return self.attack(self.source, images, labels)

"""Transfer: images found on one model, used against another."""

from dataclasses import dataclass, field

from torch import Tensor

from vqshield.attacks.balls import Ball
from vqshield.attacks.base import Attack
from vqshield.errors import InvalidInputError
from vqshield.models import Model


@dataclass(frozen=True, kw_only=True)
class Transfer(Attack):
    """Runs an attack on a source model that the attacker holds; the attacked model is never asked.

    A source is a stand-in for a model whose gradients help little: the bare classifier, or one fine-tuned on
    quantized images. A transfer that beats the direct attack shows that the direct one is too weak.

    Args:
        attack: what is run on the source; its ball is this attack's too.
        source: the model that the attacker holds.

    Raises:
        InvalidInputError: the attack is none, or the source cannot be called.

    Example:
        >>> pgd = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=5)
        >>> model = vq.defend(classifier, "swrd", seed=0)
        >>> found = vq.attacks.Transfer(attack=pgd, source=classifier)(model, images, labels)
        >>> torch.equal(found, pgd(classifier, images, labels))
        True
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
        return self.attack(self.source, images, labels)

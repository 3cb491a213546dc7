"""Transfer attacks from another model, and wrappers that make images transfer better."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vqshield.attacks.balls import Ball
from vqshield.attacks.base import Attack
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import Model, ask
from vqshield.quantization.noise import Draw, Stage


@dataclass(frozen=True, kw_only=True)
class Transfer(Attack):
    """Runs an attack on a source model that the attacker holds; the attacked model gets no queries.

    The source may be the bare classifier, or one fine-tuned on quantized images. A transfer that beats the
    direct attack shows that the direct one is too weak.

    Args:
        attack: the attack on the source; its ball is this attack's too.
        source: the model that the attacker holds.

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
            kind = type(self.attack).__name__
            raise InvalidInputError(f"attack should be an Attack such as PGD(...), not {kind}")
        if not callable(self.source):
            raise InvalidInputError(f"source should be a model, not {type(self.source).__name__}")
        object.__setattr__(self, "ball", self.attack.ball)

    def run(self, model: Model, images: Tensor, labels: Tensor) -> Tensor:
        return self.attack(self.source, images, labels)


class DiverseInputs(nn.Module):
    """Input diversity (Xie et al. 2019): a model that sees images at another size and place in each call.

    Images found on it depend less on single pixels and transfer better. The image is shrunk, bilinearly, and
    lies somewhere in a black frame.

    Args:
        model: images → logits.
        probability: of a change; otherwise the image stays.
        least: the smallest size, as a share of the image's own.
        seed: of sizes and places, with an image's place in the batch and the number of the call.

    Example:
        >>> model = vq.attacks.DiverseInputs(classifier, seed=0)
        >>> pgd = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=5, momentum=1.0)
        >>> pgd(model, images, labels).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(self, model: Model, *, probability: float = 0.7, least: float = 0.8, seed: int = 0) -> None:
        super().__init__()
        self.model = model
        self.probability = checks.real("probability", probability, most=1.0)
        self.least = checks.real("least", least, least=0.1, most=1.0)
        self._seed = checks.whole("seed", seed, least=0, below=2**64)
        self._calls = 0
        self.training = getattr(model, "training", False)

    def forward(self, images: Tensor) -> Tensor:
        draw = Draw(self._seed, torch.arange(len(images), device=images.device))
        changed, size, row, column = draw.uniforms(Stage.ATTACK_MOVE, 4 * self._calls, 4).T
        self._calls += 1
        scale = torch.where(changed < self.probability, self.least + (1 - self.least) * size, 1.0)
        height, width = images.shape[2:]
        rows = _shrinking(height, scale, row).to(images.dtype)
        columns = _shrinking(width, scale, column).to(images.dtype)
        with torch.autocast(images.device.type, enabled=False):  # pixels are not to be rounded to bfloat16
            shown = rows[:, None] @ images @ columns[:, None].transpose(-1, -2)
        return ask(self.model, shown)


def _shrinking(length: int, scale: Tensor, place: Tensor) -> Tensor:
    """Matrices (B, length, length) that interpolate a line to scale·length, at a share `place` of the rest.
    Gradients of matrix products repeat to the bit, on a GPU too.
    """
    index = torch.arange(length, device=scale.device, dtype=scale.dtype)
    taken = (scale * length)[:, None]
    first = place[:, None] * (length - taken)
    inside = (index + 0.5 >= first) & (index + 0.5 <= first + taken)
    source = ((index + 0.5 - first) / scale[:, None] - 0.5).clamp(0, length - 1)  # (B, length)
    weights = (1 - (source[:, :, None] - index).abs()).clamp(min=0)
    return weights * inside[:, :, None]


class Ensemble(nn.Module):
    """Several models of the same classes as one, by the mean of their logits (Dong et al. 2018): images that
    fool all of them are more likely to fool another.

    Example:
        >>> both = vq.attacks.Ensemble([classifier, classifier])
        >>> torch.allclose(both(images), classifier(images))
        True
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise InvalidInputError("an ensemble of no models cannot answer; give at least one")
        self.models = nn.ModuleList(models)
        self.training = any(model.training for model in models)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([ask(model, images) for model in self.models]).mean(0)

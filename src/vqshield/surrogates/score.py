"""The score function: a gradient of the expected logits that never looks through the quantizer."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense, Quantizer
from vqshield.defenses.base import Shielding
from vqshield.quantization.noise import Draw, Stage
from vqshield.surrogates.base import Classifier, Surrogate, as_quantizer
from vqshield.surrogates.soft import cut


class _Scored(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(images: Tensor, logits: Tensor, advantage: Tensor, score: Tensor) -> Tensor:
        return logits.view_as(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        advantage, score = ctx.saved_tensors
        weight = (gradients[0] * advantage).sum(-1)
        return weight[:, None, None, None] * score, None, None, None


@dataclass(frozen=True)
class Score(Surrogate):
    """grad E[z] = E[(z − b)·(epsilon/sigma² + omega/tau²)] for each logit z, b the bare classifier's.

    A draw depends on the image only through its noisy patches, so the gradient of an expectation over draws
    is that of the noise's density: exact for RandDisc and pRD, and for swRD with weights_from="noisy" (each
    pixel then sums the noise of all windows over it). Noise on the image needs no sum; a shared draw counts
    once. swRD's clean weights depend on the image besides; that part is left out. Unbiased, of great
    variance: it needs hundreds of draws, and EOT that averages logits.

    Raises:
        InvalidInputError: at the first gradient, where sigma or tau is 0 and the noise has no density.

    Example:
        >>> model = vq.Defended(classifier, vq.PRD(seed=0), surrogate=vq.surrogates.Score())
        >>> points = images.clone().requires_grad_()
        >>> bool(torch.autograd.grad(model(points).sum(), points)[0].isfinite().all())
        True
    """

    def check(self, defense: Defense) -> None:
        as_quantizer("score", defense)

    def logits(self, classifier: Classifier, shielding: Shielding) -> Tensor:
        defense = as_quantizer("score", shielding.defense)
        if defense.sigma == 0 or defense.tau == 0:
            settings = f"sigma={defense.sigma:g}, tau={defense.tau:g}"
            raise InvalidInputError(f"surrogate='score' needs sigma > 0 and tau > 0, not {settings}")
        with torch.no_grad():
            logits = classifier(shielding.quantized)
            advantage = logits - classifier(shielding.images)
            score = _score(defense, shielding)
        result: Tensor = _Scored.apply(shielding.images, logits, advantage, score)  # type: ignore[no-untyped-call]
        return result


def _score(defense: Quantizer, shielding: Shielding) -> Tensor:
    images = shielding.images
    if defense.noise != "patch":
        return _scaled_noise(defense, shielding.streams, images).to(images)
    # Each pixel sums the noise of all its copies: those of overlapping windows and of mirrored borders.
    patches, pull = torch.func.vjp(lambda values: cut(defense, values), images.detach())  # type: ignore[misc]
    summed: Tensor = pull(_scaled_noise(defense, shielding.streams, patches).to(images))[0]
    return summed


def _scaled_noise(defense: Quantizer, streams: Tensor, values: Tensor) -> Tensor:
    """epsilon/sigma² + omega/tau² of what the noise was added to, images or patches."""
    draw, count = Draw(defense.seed, streams), values[0].numel()
    noise = draw.normals(Stage.CODEBOOK, 0, count) / defense.sigma
    if defense.noise != "shared":
        noise += draw.normals(Stage.ASSIGNMENT, 0, count) / defense.tau
    return noise.view_as(values)

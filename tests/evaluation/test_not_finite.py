"""Logits that are not numbers are no class 0: no study counts, certifies or ranks them."""

from collections.abc import Callable

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

from vqshield.auditing import AuditSettings
from vqshield.auditing.study import audit
from vqshield.certification.study import certify
from vqshield.core.errors import InvalidInputError
from vqshield.evaluation.study import evaluate

IMAGES, LABELS = noise_images(4, 3, 6, 6), torch.arange(4) % 3


class BrightIsNaN(nn.Module):
    """A linear classifier that has no answer for the brightest image alone."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3 * 6 * 6, 3)
        self.limit = float(IMAGES.mean((1, 2, 3)).sort().values[-2:].mean())

    def forward(self, images: Tensor) -> Tensor:
        bright = images.mean((1, 2, 3)) > self.limit
        return self.last(images.flatten(1)).masked_fill(bright[:, None], torch.nan)


STUDIES: dict[str, Callable[[nn.Module], object]] = {
    "evaluate": lambda model: evaluate(model, IMAGES, LABELS, samples=1),
    "evaluate, defended": lambda model: evaluate(
        model, IMAGES, LABELS, defense="gaussian:sigma=1e-6", attacks="pgd:steps=1", samples=2
    ),
    "certify by vote": lambda model: certify(
        model, IMAGES, LABELS, defense="gaussian:sigma=1e-6", certificate="vote", selection=2, samples=4
    ),
    "certify by draws": lambda model: certify(
        model, IMAGES, LABELS, defense="gaussian:sigma=1e-6", certificate="draws", bound_samples=3
    ),
    "audit": lambda model: audit(
        model, IMAGES, LABELS, defense="gaussian:sigma=1e-6", attacks="pgd:steps=1",
        settings=AuditSettings(runs=1, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("study", STUDIES)
def test_one_image_without_an_answer_is_refused(study: str) -> None:
    with pytest.raises(InvalidInputError, match="contain nan or infinity"):
        STUDIES[study](BrightIsNaN().eval())


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * 6, 3)).eval()
    model[1].weight.data[1, 5] = torch.nan
    for study in STUDIES.values():
        with pytest.raises(InvalidInputError, match="contain nan or infinity"):
            study(model)

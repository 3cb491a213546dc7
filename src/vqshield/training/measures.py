"""Accuracy of a model; mean and standard deviation of a data set."""

import torch
from torch import Tensor, nn

from vqshield.training.shielding import TrainingShield

TEST_BATCH = 1000


@torch.no_grad()
def accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    shield: TrainingShield | None = None,
    precision: str = "fp32",
) -> float:
    """The fraction of byte images that the model, in eval mode, labels right.

    Behind a shield, every image has one draw, the same in every test.
    """
    was_training = model.training
    model.eval()
    hits = torch.zeros((), device=images.device, dtype=torch.int64)
    for start in range(0, len(images), TEST_BATCH):
        part = slice(start, start + TEST_BATCH)
        floats = images[part].float() / 255 if shield is None else shield.test(images[part], first=start)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits = model(floats)
        hits += (logits.argmax(1) == labels[part]).sum()
    model.train(was_training)
    return int(hits) / len(images)


def channel_statistics(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel in [0,1], from exact counts, to four digits."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten().cpu(), minlength=256).double()
        share = counts / counts.sum()
        mean = (share * values).sum()
        means.append(round(float(mean), 4))
        deviations.append(max(round(float((share * (values - mean) ** 2).sum().sqrt()), 4), 1e-4))
    return means, deviations

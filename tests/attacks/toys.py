"""Small models whose best attacks are known, or that are random in a known way."""

import torch
from torch import Tensor, nn


def two_classes(*shape: int, seed: int = 1) -> tuple[nn.Module, Tensor]:
    """A linear model with logits ±w·x, and w: against class 0 the best direction is −w, whatever the ball."""
    weight = 0.02 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))  # no loss saturates
    model = nn.Sequential(nn.Flatten(), nn.Linear(weight.numel(), 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.stack([weight.flatten(), -weight.flatten()]))
        model[1].bias.zero_()
    return model.eval(), weight


def convnet(classes: int = 5, seed: int = 0) -> nn.Module:
    """Crooked enough that a long fixed step does badly."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 5 * 5, 32), nn.Tanh(), nn.Linear(32, classes),
        ).eval()  # fmt: skip
        with torch.no_grad():
            model[-1].weight.mul_(20)
        return model


class Noisy(nn.Module):
    """Adds noise to a model's logits, by a generator of its own."""

    def __init__(self, model: nn.Module, scale: float, seed: int = 0) -> None:
        super().__init__()
        self.model, self.scale = model, scale
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, images: Tensor) -> Tensor:
        logits = self.model(images)
        return logits + self.scale * torch.randn(logits.shape, generator=self.generator)

"""The model of this repository: `vqshield evaluate --classifier model:load`."""

from torch import Tensor, nn

from vqshield.classifiers import load_classifier

STRIDE = 1  # 2: shows the classifier half as many pixels


class Model(nn.Module):
    """A classifier, and what is done to its images."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = load_classifier("small-cifar10")

    def forward(self, images: Tensor) -> Tensor:
        """Logits for images in [0, 1]."""
        coarse = images[..., ::STRIDE, ::STRIDE]
        return self.classifier(coarse.repeat_interleave(STRIDE, -1).repeat_interleave(STRIDE, -2))


def load() -> nn.Module:
    """The module from images in [0, 1] to logits."""
    return Model()

"""What the networks share: a name and options that rebuild them, and their initial weights."""

from collections.abc import Callable
from typing import ClassVar

from torch import nn

from vqshield.core.checks import whole
from vqshield.core.serialization import Json
from vqshield.data.base import MAX_CLASSES


class Network(nn.Module):
    """A network that a file can rebuild: ``build(arch, classes=..., in_channels=..., **options)``."""

    arch: ClassVar[str]

    def __init__(self, *, classes: int, in_channels: int) -> None:
        super().__init__()
        self.classes = whole("classes", classes, least=2, below=MAX_CLASSES + 1)
        self.in_channels = whole("in_channels", in_channels, least=1, below=1025)

    @property
    def options(self) -> dict[str, Json]:
        """The constructor's further settings, as JSON can hold them."""
        return {}


class FoldableNorms:
    """A mixin: names the (convolution, batch norm) pairs where the one feeds only the other."""

    folds: ClassVar[tuple[tuple[str, str], ...]] = ()


def conv3x3(inputs: int, outputs: int, *, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size (at stride 1); a batch norm supplies the bias."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, *, stride: int = 1) -> nn.Conv2d:
    """A 1x1 convolution, used on shortcuts."""
    return nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)


def stage(
    block: Callable[..., nn.Module], inputs: int, outputs: int, *, count: int, stride: int
) -> nn.Sequential:
    """So many residual blocks; the first one changes channels and size."""
    first = block(inputs, outputs, stride=stride)
    return nn.Sequential(first, *(block(outputs, outputs, stride=1) for _ in range(count - 1)))


def initialise(network: nn.Module) -> None:
    """Draw the convolutions by He's rule for ReLU networks, from the global generator as torch does."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

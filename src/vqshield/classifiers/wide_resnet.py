"""WRN-28-10 (Zagoruyko and Komodakis 2016): pre-activation blocks, 36.5 million parameters."""

from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.classifiers.base import FoldableNorms, Network, conv1x1, conv3x3, initialise, stage
from vqshield.core.checks import real
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json

BLOCKS = 4  # (28 - 4) / 6 a stage
WIDTHS = (16, 160, 320, 640)


class PreActivationBlock(FoldableNorms, nn.Module):
    """Norm and ReLU before each convolution, dropout between them; the shortcut sees the first norm too."""

    folds = (("conv1", "bn2"),)  # bn1 comes first here, so it can be folded into nothing

    def __init__(self, inputs: int, outputs: int, *, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride=stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv3x3(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else conv1x1(inputs, outputs, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Block(x) + shortcut(x), without a ReLU at the end."""
        active = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        y: Tensor = self.conv2(self.dropout(F.relu(self.bn2(self.conv1(active)))))
        return y + shortcut


class WideResNet28x10(Network):
    """WRN-28-10.

    dropout: the share of values dropped between the two convolutions of a block, in training alone.
    """

    arch: ClassVar[str] = "wrn28_10"

    def __init__(self, *, classes: int = 100, in_channels: int = 3, dropout: float = 0.0) -> None:
        super().__init__(classes=classes, in_channels=in_channels)
        self.dropout = real("dropout", dropout, most=1)
        if dropout == 1:
            raise InvalidInputError("dropout=1 should be below 1")
        self.conv1 = conv3x3(in_channels, WIDTHS[0])
        block = partial(PreActivationBlock, dropout=dropout)
        self.layer1 = stage(block, WIDTHS[0], WIDTHS[1], count=BLOCKS, stride=1)
        self.layer2 = stage(block, WIDTHS[1], WIDTHS[2], count=BLOCKS, stride=2)
        self.layer3 = stage(block, WIDTHS[2], WIDTHS[3], count=BLOCKS, stride=2)
        self.bn1 = nn.BatchNorm2d(WIDTHS[3])
        self.fc = nn.Linear(WIDTHS[3], classes)
        initialise(self)

    @property
    def options(self) -> dict[str, Json]:
        return {} if self.dropout == 0 else {"dropout": self.dropout}

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))  # (n, 640, h/4, w/4)
        x = F.relu(self.bn1(x))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits

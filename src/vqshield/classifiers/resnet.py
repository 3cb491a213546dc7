"""ResNet18 (He et al. 2016) with the stem for small images or the original one; keys as torchvision's."""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.classifiers.base import FoldableNorms, Network, conv1x1, conv3x3, initialise, stage
from vqshield.core.checks import one_of
from vqshield.core.serialization import Json

STEMS = ("cifar", "imagenet")


class Downsample(FoldableNorms, nn.Sequential):
    """The shortcut of a block that changes shape: 1x1 convolution and norm, named 0 and 1."""

    folds = (("0", "1"),)

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__(conv1x1(inputs, outputs, stride=stride), nn.BatchNorm2d(outputs))


class BasicBlock(FoldableNorms, nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    folds = (("conv1", "bn1"), ("conv2", "bn2"))

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride=stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.downsample = None if same else Downsample(inputs, outputs, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """Relu(block(x) + shortcut(x))."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + shortcut)


class ResNet18(FoldableNorms, Network):
    """ResNet18: 11.2 million parameters.

    stem: "cifar", a 3x3 convolution, as is usual for 32x32 images; "imagenet", the original: a 7x7
        convolution and a max-pool, of stride 2 each, so that all that follows sees a sixteenth of the pixels.
    """

    arch: ClassVar[str] = "resnet18"
    folds = (("conv1", "bn1"),)

    def __init__(self, *, classes: int = 10, in_channels: int = 3, stem: str = "cifar") -> None:
        super().__init__(classes=classes, in_channels=in_channels)
        self.stem = one_of("stem", stem, STEMS)
        if stem == "cifar":
            self.conv1, self.pool = conv3x3(in_channels, 64), None
        else:
            self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
            self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = stage(BasicBlock, 64, 64, count=2, stride=1)
        self.layer2 = stage(BasicBlock, 64, 128, count=2, stride=2)
        self.layer3 = stage(BasicBlock, 128, 256, count=2, stride=2)
        self.layer4 = stage(BasicBlock, 256, 512, count=2, stride=2)
        self.fc = nn.Linear(512, classes)
        initialise(self)

    @property
    def options(self) -> dict[str, Json]:
        return {} if self.stem == "cifar" else {"stem": self.stem}

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        x = F.relu(self.bn1(self.conv1(x)))  # (n, 64, h, w)
        if self.pool is not None:
            x = self.pool(x)  # (n, 64, h/4, w/4), after a convolution of stride 2
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (n, 512, h/8, w/8)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits

"""ResNet18 for 32x32 images (He et al. 2016): 3x3 stem, no max-pool; keys as torchvision's."""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.classifiers.base import FoldableNorms, Network, conv1x1, conv3x3, initialise


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
    """ResNet18 with a stem for small images: 11.2 million parameters."""

    arch: ClassVar[str] = "resnet18"
    folds = (("conv1", "bn1"),)

    def __init__(self, *, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__(classes=classes, in_channels=in_channels)
        self.conv1 = conv3x3(in_channels, 64)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, 64, stride=1)
        self.layer2 = _stage(64, 128, stride=2)
        self.layer3 = _stage(128, 256, stride=2)
        self.layer4 = _stage(256, 512, stride=2)
        self.fc = nn.Linear(512, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        x = F.relu(self.bn1(self.conv1(x)))  # (n, 64, h, w)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (n, 512, h/8, w/8)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride=stride), BasicBlock(outputs, outputs, stride=1))

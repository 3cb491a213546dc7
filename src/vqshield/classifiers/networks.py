"""The networks that vqshield trains, by name: a small ResNet, ResNet-18 and WRN-28-10.

A module's `folds` are its (convolution, batch norm) pairs where the convolution feeds only the norm.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.core.checks import one_of, real, whole
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json
from vqshield.data.base import MAX_CLASSES

# Far above any use; a file's options cannot ask for a network that takes forever to build.
MOST_STAGES, MOST_BLOCKS, MOST_WIDTH = 16, 1000, 1 << 16


class Network(nn.Module):
    """A network that a file can rebuild: ``build(arch, classes=..., in_channels=..., **options)``."""

    arch: ClassVar[str]

    def __init__(self, *, classes: int, in_channels: int, options: Mapping[str, Json]) -> None:
        super().__init__()
        self.classes = whole("classes", classes, least=2, below=MAX_CLASSES + 1)
        self.in_channels = whole("in_channels", in_channels, least=1, below=1025)
        self.options = dict(options)


class Downsample(nn.Sequential):
    """The shortcut of a block that changes shape: 1x1 convolution and norm, named 0 and 1."""

    folds = (("0", "1"),)

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """relu(two 3x3 convolutions + shortcut)."""

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
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + shortcut)


class SmallResNet(Network):
    """A residual network of free shape; as bundled, under 1 MB in fp16 and milliseconds per image on a CPU.

    widths: channels of each stage; every stage after the first halves height and width.
    blocks: residual blocks of each stage; 0 in the first leaves the stem alone at full size.
    unshuffle: 2 turns each 2x2 square of pixels into channels before the stem, so that the first
    stage already works at half size; 1 leaves the pixels as they are.
    """

    arch: ClassVar[str] = "small"
    folds = (("conv1", "bn1"),)

    def __init__(
        self,
        *,
        classes: int = 10,
        in_channels: int = 3,
        widths: Sequence[int] = (16, 48, 96),
        blocks: Sequence[int] = (0, 2, 2),
        unshuffle: int = 1,
    ) -> None:
        options: dict[str, Json] = {"widths": list(widths), "blocks": list(blocks), "unshuffle": unshuffle}
        super().__init__(classes=classes, in_channels=in_channels, options=options)
        if len(widths) != len(blocks) or not 0 < len(widths) <= MOST_STAGES:
            raise InvalidInputError(
                f"widths={tuple(widths)} and blocks={tuple(blocks)} should be of one length, "
                f"1 to {MOST_STAGES}"
            )
        for number, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            whole(f"widths[{number}]", width, least=1, below=MOST_WIDTH + 1)
            whole(f"blocks[{number}]", count, least=0 if number == 0 else 1, below=MOST_BLOCKS + 1)
        self.unshuffle = whole("unshuffle", unshuffle, least=1, below=3)
        self.conv1 = conv3x3(in_channels * unshuffle**2, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        stages: list[nn.Module] = []
        inputs = widths[0]
        for number, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            if count:
                stages += stage(BasicBlock, inputs, width, count=count, stride=1 if number == 0 else 2)
                inputs = width
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)
        initialise(self)
        for block in self.layers:
            assert isinstance(block, BasicBlock)
            nn.init.zeros_(block.bn2.weight)  # every block starts as its shortcut: steadier at a high rate

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        if self.unshuffle > 1:
            x = F.pixel_unshuffle(x, self.unshuffle)
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class ResNet18(Network):
    """ResNet-18 (He et al. 2016), 11.2 million parameters; keys as torchvision's.

    stem: "cifar", a 3x3 convolution, as is usual for 32x32 images; "imagenet", the original: a 7x7
        convolution and a max-pool of stride 2 each, so that all later layers see a sixteenth of the pixels.
    """

    arch: ClassVar[str] = "resnet18"
    folds = (("conv1", "bn1"),)

    def __init__(self, *, classes: int = 10, in_channels: int = 3, stem: str = "cifar") -> None:
        options = {} if stem == "cifar" else {"stem": one_of("stem", stem, ("cifar", "imagenet"))}
        super().__init__(classes=classes, in_channels=in_channels, options=options)
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

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        x = F.relu(self.bn1(self.conv1(x)))  # (n, 64, h, w)
        if self.pool is not None:
            x = self.pool(x)  # (n, 64, h/4, w/4), after a convolution of stride 2
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (n, 512, h/8, w/8)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class PreActivationBlock(nn.Module):
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
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        y: Tensor = self.conv2(self.dropout(F.relu(self.bn2(self.conv1(active)))))
        return y + shortcut


class WideResNet28x10(Network):
    """WRN-28-10 (Zagoruyko and Komodakis 2016): pre-activation blocks, 36.5 million parameters.

    dropout: share of the values that are dropped between the two convolutions of a block, in training only.
    """

    arch: ClassVar[str] = "wrn28_10"

    def __init__(self, *, classes: int = 100, in_channels: int = 3, dropout: float = 0.0) -> None:
        options = {"dropout": real("dropout", dropout, most=1)} if dropout else {}
        super().__init__(classes=classes, in_channels=in_channels, options=options)
        if dropout == 1:
            raise InvalidInputError("dropout=1 should be below 1")
        self.conv1 = conv3x3(in_channels, 16)
        block = partial(PreActivationBlock, dropout=dropout)
        self.layer1 = stage(block, 16, 160, count=4, stride=1)  # (28 - 4) / 6 blocks per stage
        self.layer2 = stage(block, 160, 320, count=4, stride=2)
        self.layer3 = stage(block, 320, 640, count=4, stride=2)
        self.bn1 = nn.BatchNorm2d(640)
        self.fc = nn.Linear(640, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))  # (n, 640, h/4, w/4)
        x = F.relu(self.bn1(x))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def conv3x3(inputs: int, outputs: int, *, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size (at stride 1); a batch norm supplies the bias."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def stage(
    block: Callable[..., nn.Module], inputs: int, outputs: int, *, count: int, stride: int
) -> nn.Sequential:
    """``count`` residual blocks; the first one changes channels and size."""
    first = block(inputs, outputs, stride=stride)
    return nn.Sequential(first, *(block(outputs, outputs, stride=1) for _ in range(count - 1)))


def initialise(network: nn.Module) -> None:
    """Draw the convolutions by He's rule for ReLU networks, from the global generator as torch does."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


_NETWORKS: dict[str, type[Network]] = {
    network.arch: network for network in (SmallResNet, ResNet18, WideResNet28x10)
}


def list_classifiers() -> tuple[str, ...]:
    """The names that ``build`` knows."""
    return tuple(_NETWORKS)


def build(name: str, *, classes: int, in_channels: int = 3, **options: Any) -> Network:
    """A new network with random weights; ``options`` are the network's own settings."""
    one_of("classifier", name, _NETWORKS)
    try:
        return _NETWORKS[name](classes=classes, in_channels=in_channels, **options)
    except TypeError as error:
        raise InvalidInputError(f"options {options} do not fit classifier {name!r}: {error}") from error

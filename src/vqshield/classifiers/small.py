"""The small residual network of the bundled example: under 1 MB in fp16, milliseconds on a CPU."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from vqshield.classifiers.base import FoldableNorms, Network, conv3x3, initialise, stage
from vqshield.classifiers.resnet import BasicBlock
from vqshield.core.checks import whole
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import Json

# Far above any use; a file's options cannot ask for a network that takes forever to build.
MOST_STAGES, MOST_BLOCKS, MOST_WIDTH = 16, 1000, 1 << 16


class SmallResNet(FoldableNorms, Network):
    """A residual network of free shape.

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
        super().__init__(classes=classes, in_channels=in_channels)
        _check(widths, blocks, unshuffle)
        self.widths, self.blocks = tuple(widths), tuple(blocks)
        self.unshuffle = unshuffle
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

    @property
    def options(self) -> dict[str, Json]:
        """The shape, as JSON can hold it."""
        return {"widths": list(self.widths), "blocks": list(self.blocks), "unshuffle": self.unshuffle}

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, classes)."""
        if self.unshuffle > 1:
            x = F.pixel_unshuffle(x, self.unshuffle)
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _check(widths: Sequence[int], blocks: Sequence[int], unshuffle: int) -> None:
    if len(widths) != len(blocks) or not 0 < len(widths) <= MOST_STAGES:
        raise InvalidInputError(
            f"widths={tuple(widths)} and blocks={tuple(blocks)} should be of one length, 1 to {MOST_STAGES}"
        )
    for number, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        whole(f"widths[{number}]", width, least=1, below=MOST_WIDTH + 1)
        whole(f"blocks[{number}]", count, least=0 if number == 0 else 1, below=MOST_BLOCKS + 1)
    whole("unshuffle", unshuffle, least=1, below=3)

"""A small network that learns to imitate a defense, for its gradient."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.seeds import torch_seeded
from vqshield.defenses import Defense
from vqshield.defenses.base import Shielding
from vqshield.defenses.baselines import repeat_border
from vqshield.surrogates.base import ImageSurrogate

_SEED = 20180201  # of everything that is drawn while it learns
_FARTHEST = 16 / 255  # how far images are moved while it learns: beyond most budgets
_BLOCKS = (1, 1, 2, 4)  # pixels that are moved together, in turn: defenses let coarse changes pass
_SLOPES = 1000.0  # how much more changes count than values: a gradient is made of changes
_BATCH, _PIXELS = 16, 2**14  # images at once, and how many pixels they may have together
_RATE = 1e-2
_SHARPNESS = 4.0  # how clearly a pixel belongs to few colours before it learns
_REACH = 3  # pixels that a pixel's imitation sees on every side: that of three convolutions


class _Imitation(nn.Module):
    """A linear filter, a local correction, and a palette of the image's own; the identity before it learns.

    Each pixel belongs to some colours of the palette by what is around it, each colour is the mean of all
    pixels that belong to it, and a gate says how far a pixel is moved to its colours.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Conv2d(channels, channels, 2 * _REACH + 1, bias=False)
        nn.init.dirac_(self.linear.weight)
        self.first = nn.Conv2d(channels, width, 3)
        self.second = nn.Conv2d(width, width, 3)
        self.correction = nn.Conv2d(width, channels, 3)
        self.belonging = nn.Conv2d(width, 2 * width, 3)
        self.belonging.weight.data *= _SHARPNESS
        self.gate = nn.Conv2d(width, channels, 3)
        for parameter in (*self.correction.parameters(), *self.gate.parameters()):
            nn.init.zeros_(parameter)

    def forward(self, images: Tensor) -> Tensor:
        wide = repeat_border(images, _REACH)
        hidden = F.gelu(self.second(F.gelu(self.first(2 * wide - 1))))
        share = self.belonging(hidden).softmax(1).flatten(2)  # (B, colours, n)
        total = share.sum(2)[:, None].clamp(min=1e-6)
        colours = torch.bmm(images.flatten(2), share.transpose(1, 2)) / total  # (B, q, colours)
        painted = torch.bmm(colours, share).view_as(images)
        moved: Tensor = self.linear(wide) + self.correction(hidden) + self.gate(hidden) * (painted - images)
        return moved


@dataclass(frozen=True, kw_only=True)
class Learned(ImageSurrogate):
    """The gradient of a small network that was fitted to imitate the defense.

    It learns values, and the changes between two images that are near each other, which is what a gradient
    predicts; of a random defense it learns the expectation. It learns once for a defense, from the images of
    the first gradient or from those given to `fit`. On a CPU the same images give the same network.

    Args:
        width: channels of its hidden layers; it has twice as many colours.
        updates: of its weights while it learns.

    Example:
        >>> defense = vq.defenses.JPEG(quality=50)
        >>> learned = vq.surrogates.Learned(updates=5)
        >>> learned.fit(defense, images)
        >>> model = vq.Defended(classifier, defense, surrogate=learned)
        >>> points = images.clone().requires_grad_()
        >>> bool(torch.autograd.grad(model(points).sum(), points)[0].isfinite().all())
        True
    """

    width: int = 16
    updates: int = 200

    def __post_init__(self) -> None:
        checks.whole("width", self.width, least=1, below=1025)
        checks.whole("updates", self.updates, least=1)

    def fit(self, defense: Defense, images: Tensor) -> None:
        """Learn to imitate the defense from these images, instead of those of the first gradient.

        Args:
            defense: whose gradient is wanted. No stream of it is used up.
            images: float images in [0, 1], of any number; attacked ones are of the same kind.

        Raises:
            InvalidInputError: images that the defense does not take, or none at all.
        """
        defense.check(images)
        if len(images) == 0:
            raise InvalidInputError(f"images of shape {tuple(images.shape)} are empty; give at least one")
        _FITTED.setdefault(defense, {})[self] = self._learned(
            defense.reseeded(_SEED), images.detach().float()
        )

    def attach(self, shielding: Shielding) -> Tensor:
        if self not in _FITTED.get(shielding.defense, {}):
            if torch._C._functorch.is_functorch_wrapped_tensor(shielding.images):
                raise InvalidInputError(
                    "surrogate='learned' cannot learn inside of torch.func; have it learn "
                    "before, with Learned().fit(defense, images)"
                )
            self.fit(shielding.defense, shielding.images)
        network = _FITTED[shielding.defense][self]
        weights = next(network.parameters())
        if (weights.dtype, weights.device) != (shielding.images.dtype, shielding.images.device):
            network.to(shielding.images)  # even where it changes nothing, torch.func would not survive it
        imitated: Tensor = network(shielding.images)
        return shielding.quantized + (imitated - imitated.detach())

    def _learned(self, defense: Defense, images: Tensor) -> nn.Module:
        channels, height, width = images.shape[1:]
        with torch_seeded(_SEED, torch.device("cpu")):
            network = _Imitation(channels, self.width).to(images.device)
        draws = torch.Generator().manual_seed(_SEED)
        optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.updates)
        batch = max(1, min(_BATCH, _PIXELS // (height * width)))
        for number in range(self.updates):
            chosen = torch.randint(len(images), (batch,), generator=draws)
            before = images[chosen.to(images.device)]
            after = _moved(before, _BLOCKS[number % len(_BLOCKS)], draws)
            streams = torch.arange(batch, device=images.device) + number * batch
            with torch.no_grad():  # two calls with equal streams: the change is that of one draw
                target = torch.cat([defense(each, streams=streams) for each in (before, after)])
            with torch.enable_grad():
                found = network(torch.cat([before, after]))
                values, slopes = F.mse_loss(found, target), F.mse_loss(_change(found), _change(target))
                loss = values + _SLOPES * slopes
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        return network.requires_grad_(False)


_FITTED: WeakKeyDictionary[Defense, dict[Learned, nn.Module]] = WeakKeyDictionary()
"""What was learned, for as long as the defense is there. A copy of a defense learns for itself, so that what
it learns does not depend on what was attacked before.
"""


def _change(pair: Tensor) -> Tensor:
    before, after = pair.chunk(2)
    return after - before


def _moved(images: Tensor, block: int, draws: torch.Generator) -> Tensor:
    """The images, every block of pixels moved up or down, each image by a distance of its own."""
    count, channels, height, width = images.shape
    coarse = (count, channels, -(-height // block), -(-width // block))
    signs = torch.randint(2, coarse, generator=draws) * 2.0 - 1
    signs = signs.repeat_interleave(block, 2).repeat_interleave(block, 3)[:, :, :height, :width]
    far = torch.rand((count, 1, 1, 1), generator=draws) * _FARTHEST
    return (images + (far * signs).to(images)).clamp(0, 1)

"""Counter-based randomness: (seed, stream, stage, index) → random word or Gaussian value.

Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) turns a 128-bit counter
and a 64-bit key into four 32-bit words. The key is the seed; the counter holds the index (in fours), the
stage and the stream. So every value is a pure function of its name: no state, no order, no batch, no device.

Gaussian values come from Box–Muller. Word pairs (a, b) give the radius from the upper 31 bits of a and the
angle from b read as a signed integer: both conversions are exact in one instruction on every processor.
"""

import math
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10

LARGEST_NORMAL = math.sqrt(2 * math.log(2**32))
"""No value of `Draw.normals` is larger in size: the smallest radius argument is 2^-32."""


class Stage(IntEnum):
    """What a random value is for; values of different stages are independent."""

    CODEBOOK = 0  # epsilon_i, added to the patches before k-means
    ASSIGNMENT = 1  # omega_i, added to the patches before the nearest centre is sought
    INIT = 2  # which patches k-means starts from
    ATTACK_START = 3  # where in the ball an attack starts
    ATTACK_MOVE = 4  # which change an attack without gradients tries next
    PATTERN = 5  # where splitting cuts the axis of each value, the same in all draws
    SHIFT = 6  # how far a draw of splitting moves all these cuts
    SAMPLE = 7  # which patches k-means sees, where it does not see all


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four 32-bit words (as int64) for each 128-bit counter, given as four int64 tensors of 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # The products wrap modulo 2^64, which keeps all 64 bits. Only c0 and c2 are multiplied in the next
        # round, so only they are cut back to 32 bits; what is above bit 31 of c1 and c3 meets a mask there.
        low, high = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = ((high >> 32) ^ c1).bitwise_xor_(k0).bitwise_and_(WORD)
        c2 = ((low >> 32) ^ c3).bitwise_xor_(k1).bitwise_and_(WORD)
        c1, c3 = high, low
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1 & WORD, c2, c3 & WORD


@dataclass(frozen=True)
class Draw:
    """The randomness of a batch: one 64-bit seed, and one 64-bit stream number (int64) per image."""

    seed: int
    streams: Tensor  # (B,)

    def __getitem__(self, images: slice | Tensor) -> "Draw":
        return Draw(self.seed, self.streams[images])

    def words(self, stage: Stage, start: int, count: int) -> Tensor:
        """Random 32-bit words number start … start+count−1 of every stream, as int64 of shape (B, count)."""
        first, last = start // 4, -(-(start + count) // 4)
        blocks = torch.stack(self._blocks(stage, first, last), dim=-1)  # (B, blocks, 4)
        return blocks.flatten(1)[:, start - 4 * first :][:, :count]

    def normals(self, stage: Stage, start: int, count: int) -> Tensor:
        """Standard normal values number start … start+count−1 of every stream, as float64 (B, count)."""
        first, last = start // 4, -(-(start + count) // 4)
        words = self._blocks(stage, first, last)
        values = torch.empty((*words[0].shape, 4), dtype=torch.float64, device=self.streams.device)
        for lane in (0, 2):
            radius = (words[lane] >> 1).double().add_(0.5).mul_(2.0**-31).log_().mul_(-2).sqrt_()
            angle = words[lane + 1].to(torch.int32).double().mul_(math.pi * 2.0**-31)
            torch.mul(radius, angle.cos(), out=values[:, :, lane])
            torch.mul(radius, angle.sin_(), out=values[:, :, lane + 1])
        return values.flatten(1)[:, start - 4 * first :][:, :count]

    def uniforms(self, stage: Stage, start: int, count: int) -> Tensor:
        """Values uniform in the open interval (0, 1), as float64 of shape (B, count)."""
        return self.words(stage, start, count).double().add_(0.5).mul_(2.0**-32)

    def signs(self, stage: Stage, start: int, count: int) -> Tensor:
        """−1 or 1 with equal probability, as int64 of shape (B, count)."""
        return (self.words(stage, start, count) & 1) * 2 - 1

    def _blocks(self, stage: Stage, first: int, last: int) -> tuple[Tensor, ...]:
        """The four words of counter blocks first … last−1, each (B, last−first)."""
        streams = self.streams[:, None]
        index = torch.arange(first, last, device=streams.device)[None]
        c2, c3 = streams & WORD, (streams >> 32) & WORD
        shape = streams.shape[0], last - first
        counter = index.expand(shape), torch.full_like(index, int(stage)), c2, c3.expand(shape)
        return philox(counter, (self.seed & WORD, self.seed >> 32))

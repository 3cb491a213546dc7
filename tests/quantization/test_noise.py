import math

import pytest
import torch
from torch import Tensor

from vqshield.quantization.noise import LARGEST_NORMAL, Draw, Stage, philox

# Known answers of philox4x32-10 published with the authors' Random123 library (kat_vectors).
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in words(counter))
    k0, k1 = words(key)
    assert [int(word) for word in philox((c0, c1, c2, c3), (k0, k1))] == words(expected)


def test_words_are_the_philox_blocks_of_their_counter() -> None:
    seed, stream = 0x0123456789ABCDEF, -2  # a stream is 64 bits: −2 is 0xFFFFFFFFFFFFFFFE
    drawn = Draw(seed, torch.tensor([stream])).words(Stage.INIT, 8, 4)
    counter = (torch.tensor([2]), torch.tensor([2]), torch.tensor([0xFFFFFFFE]), torch.tensor([0xFFFFFFFF]))
    assert drawn[0].tolist() == [int(word) for word in philox(counter, (0x89ABCDEF, 0x01234567))]


def test_normals_are_box_muller_of_the_words() -> None:
    draw = Draw(7, torch.tensor([5, 6]))
    raw, values = draw.words(Stage.CODEBOOK, 0, 40), draw.normals(Stage.CODEBOOK, 0, 40)
    for image in range(2):
        for pair in range(20):
            a, b = raw[image, 2 * pair].item(), raw[image, 2 * pair + 1].item()
            radius = math.sqrt(-2 * math.log(((a >> 1) + 0.5) / 2**31))
            angle = math.pi * (b - 2**32 if b >= 2**31 else b) / 2**31
            assert values[image, 2 * pair].item() == pytest.approx(radius * math.cos(angle), abs=1e-12)
            assert values[image, 2 * pair + 1].item() == pytest.approx(radius * math.sin(angle), abs=1e-12)


@pytest.mark.parametrize(("start", "count"), [(0, 1), (1, 3), (3, 2), (5, 17), (4, 0), (1023, 9)])
def test_a_part_of_a_stream_equals_that_part_of_the_whole(start: int, count: int) -> None:
    draw = Draw(1, torch.arange(3))
    for part, whole in (
        (draw.words, draw.words),
        (draw.normals, draw.normals),
        (draw.uniforms, draw.uniforms),
    ):
        assert torch.equal(
            part(Stage.ASSIGNMENT, start, count), whole(Stage.ASSIGNMENT, 0, 1040)[:, start : start + count]
        )


def test_seed_stream_and_stage_all_matter() -> None:
    def values(seed: int, stream: int, stage: Stage) -> Tensor:
        return Draw(seed, torch.tensor([stream])).normals(stage, 0, 64)

    base = values(1, 1, Stage.CODEBOOK)
    others = [(2, 1, Stage.CODEBOOK), (1 + 2**32, 1, Stage.CODEBOOK), (1, 2, Stage.CODEBOOK)]
    others += [(1, 1 + 2**32, Stage.CODEBOOK), (1, 1, Stage.ASSIGNMENT), (1, 1, Stage.INIT)]
    for other in others:
        assert (values(*other) == base).sum() == 0


def test_normals_follow_the_normal_distribution() -> None:
    values = Draw(11, torch.arange(100)).normals(Stage.CODEBOOK, 0, 10_000).flatten()
    count = len(values)
    ordered = values.sort().values
    theoretical = torch.special.ndtr(ordered)
    empirical = torch.arange(1, count + 1) / count
    # Kolmogorov–Smirnov: sqrt(n)·D exceeds 1.95 with probability 0.001 for true normals.
    assert float((theoretical - empirical).abs().max()) * math.sqrt(count) < 1.95
    assert abs(float(values.mean())) < 4 / math.sqrt(count)
    assert float(values.square().mean()) == pytest.approx(1, abs=4 * math.sqrt(2 / count))
    assert float(values.pow(4).mean()) == pytest.approx(3, abs=4 * math.sqrt(96 / count))


def test_neighbouring_values_and_streams_are_uncorrelated() -> None:
    values = Draw(3, torch.arange(200)).normals(Stage.ASSIGNMENT, 0, 5_000)
    bound = 4.5 / math.sqrt(values.numel())
    for lag in (1, 2, 3, 4):
        assert abs(float((values[:, lag:] * values[:, :-lag]).mean())) < bound
    assert abs(float((values[1:] * values[:-1]).mean())) < bound


def test_no_normal_exceeds_the_stated_largest() -> None:
    assert Draw(0, torch.arange(50)).normals(Stage.CODEBOOK, 0, 20_000).abs().max() <= LARGEST_NORMAL
    assert pytest.approx(math.sqrt(-2 * math.log(0.5 / 2**31))) == LARGEST_NORMAL

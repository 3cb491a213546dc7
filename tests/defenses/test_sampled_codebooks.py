"""A codebook from some of the patches: which ones, what k-means makes of them, and what stays as it was."""

import numpy as np
import pytest
import torch
from conftest import noise_images

import oracles
import vqshield as vq
from vqshield.data import sample as bundled_sample
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.operators import sampled_places

STREAMS = torch.tensor([0, -5, 2**40])


@pytest.mark.parametrize(("count", "sample"), [(900, 25), (900, 899), (7, 7), (10, 3), (2**31 - 1, 11)])
def test_one_patch_from_each_of_as_many_runs(count: int, sample: int) -> None:
    draw = Draw(3, STREAMS)
    places, words = sampled_places(draw, count, sample), draw.words(Stage.SAMPLE, 0, sample)
    for row, drawn in zip(places.tolist(), words.tolist(), strict=True):
        for number, (place, word) in enumerate(zip(row, drawn, strict=True)):
            first, end = number * count // sample, (number + 1) * count // sample
            assert place == first + (word * (end - first) >> 32)
            assert first <= place < end
    assert sample > count // 2 or len({tuple(row) for row in places.tolist()}) == 3, (
        "every stream has its own"
    )


@pytest.mark.parametrize("kind", [vq.SWRD, vq.PRD])
@pytest.mark.parametrize("init", ["kmeans++", "random"])
def test_centres_are_those_of_k_means_over_the_noisy_sample(kind: type[vq.Quantizer], init: str) -> None:
    size, codes, sample, sigma = 2, 4, 20, 0.05
    defense = kind(size=size, codes=codes, sample=sample, sigma=sigma, tau=0.0, init=init, seed=11)
    image, streams = noise_images(1, 3, 12, 14), torch.tensor([6])
    original = image[0].double().numpy()
    corners_of = oracles.sliding_corners if kind is vq.SWRD else oracles.disjoint_corners
    corners = corners_of(12, 14, size)
    draw = Draw(11, streams)
    chosen = oracles.cut(original, corners, size)[sampled_places(draw, len(corners), sample)[0].numpy()]
    d = chosen.shape[1]
    noise = draw.normals(Stage.CODEBOOK, 0, sample * d)[0].view(sample, d).numpy()
    bits = oracles.grid_bits(d, sigma)
    points = oracles.patches_on_grid(chosen + sigma * noise, bits)
    words = draw.words(Stage.INIT, 0, codes)[0].numpy()
    start = (oracles.kmeans_plus_plus if init == "kmeans++" else oracles.random_distinct)(
        points, codes, words
    )
    expected = oracles.lloyd(points, start, 20, bits)
    found = defense.codebook(image, streams=streams)[0].double().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_an_image_with_no_more_patches_gives_all_of_them(defense_name: str) -> None:
    images = noise_images(3, 3, 9, 9)
    whole, enough = (vq.defenses.create(defense_name, codes=4, seed=1, sample=each) for each in (None, 81))
    assert torch.equal(whole(images, streams=STREAMS), enough(images, streams=STREAMS))
    assert "sample" not in whole.settings()
    assert enough.settings()["sample"] == 81


@pytest.mark.parametrize("noise", ["patch", "image", "shared"])
def test_in_parts_alone_and_as_bytes_it_is_the_same(defense_name: str, noise: str) -> None:
    images = noise_images(3, 3, 16, 16)
    defense = vq.defenses.create(defense_name, codes=4, seed=1, sample=16, noise=noise)
    together = defense(images, streams=STREAMS)
    defense.memory = 1  # an image at a time
    assert torch.equal(defense(images, streams=STREAMS), together)
    assert torch.equal(defense(images[1:2], streams=STREAMS[1:2])[0], together[1])
    in_two_steps = defense.quantize(images, defense.codebook(images, streams=STREAMS), streams=STREAMS)
    assert torch.equal(in_two_steps, together)
    bytes_ = (images * 255).round().byte()
    expected = (defense(bytes_.float() / 255, streams=STREAMS) * 255).round().byte()
    assert torch.equal(defense(bytes_, streams=STREAMS), expected)
    assert defense(images[:0], streams=STREAMS[:0]).shape == (0, 3, 16, 16)
    assert defense.codebook(images[:0].double(), streams=STREAMS[:0]).dtype == torch.float64


def test_a_quarter_of_the_patches_describes_a_picture_nearly_as_well() -> None:
    images = bundled_sample().floats()[:32]
    streams = torch.arange(32)
    lost = [
        float((vq.SWRD(seed=0, sample=each)(images, streams=streams) - images).square().mean())
        for each in (None, 225, 25)
    ]
    assert lost[0] < lost[1] < 1.2 * lost[0]
    assert lost[2] > lost[1]

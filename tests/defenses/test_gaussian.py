"""Plain Gaussian smoothing: the noise it says, the interface that certification and training need."""

import copy

import pytest
import torch
from scipy import stats

import vqshield as vq
from vqshield.certificates import Coverage
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import GaussianNoise, from_text, list_all_defenses, list_defenses
from vqshield.quantization.noise import Stage

IMAGES = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_the_noise_is_gaussian_and_not_clamped() -> None:
    images = torch.full((40, 3, 32, 32), 0.5)
    found = (GaussianNoise(sigma=0.4, seed=1)(images) - images).flatten()
    assert stats.kstest(found.double().numpy(), "norm", args=(0, 0.4)).pvalue > 1e-3
    assert float(found.abs().max()) > 0.5  # beyond the pixels' range


def test_it_is_the_noise_that_a_quantizer_with_shared_noise_sees() -> None:
    quantizer = vq.PRD(noise="shared", sigma=0.05, tau=0.05, seed=7)
    streams = torch.arange(3, 8)
    seen = quantizer.seen(IMAGES, Stage.CODEBOOK, streams=streams)
    found = GaussianNoise(sigma=0.05, seed=7)(IMAGES, streams=streams).clamp(0, 1)
    torch.testing.assert_close(found, seen, rtol=0, atol=1e-6)


def test_a_draw_is_decided_by_seed_and_stream_alone() -> None:
    noise = GaussianNoise(sigma=0.1, seed=3)
    first, second = noise(IMAGES), noise(IMAGES)
    assert not torch.equal(first, second)
    assert torch.equal(noise.reseeded(3)(IMAGES), first)
    assert not torch.equal(noise.reseeded(4)(IMAGES), first)
    for number in range(5):  # whatever the batch
        alone = noise(IMAGES[number : number + 1], streams=torch.tensor([5 + number]))
        assert torch.equal(alone[0], second[number])


def test_the_global_generator_is_left_alone_and_dtypes_are_kept() -> None:
    before = torch.get_rng_state()
    assert GaussianNoise(sigma=0.1, seed=0)(IMAGES.double()).dtype == torch.float64
    assert GaussianNoise(sigma=0.1, seed=0)(IMAGES).dtype == torch.float32
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(GaussianNoise(sigma=0, seed=0)(IMAGES), IMAGES)


def test_the_certificate_is_that_of_one_gaussian() -> None:
    found = Coverage.of(**GaussianNoise(sigma=0.12, seed=0).certificate_terms())
    assert found == Coverage(sigma_eff=0.12, copies=1.0)
    with pytest.raises(InvalidInputError, match="no certificate holds for sigma=0"):
        Coverage.of(**GaussianNoise(sigma=0, seed=0).certificate_terms())


def test_without_a_seed_every_copy_draws_its_own() -> None:
    noise = GaussianNoise(sigma=0.1)
    assert not torch.equal(noise(IMAGES), copy.deepcopy(noise)(IMAGES))
    assert "seed" not in repr(noise)


def test_defenses_by_text() -> None:
    assert list_all_defenses()[:4] == [*list_defenses(), "gaussian"]
    assert repr(from_text("gaussian:sigma=4/255", seed=0)).startswith("GaussianNoise(sigma=0.0156")
    assert isinstance(from_text("swrd:size=2", seed=5), vq.SWRD)
    assert from_text("swrd:size=2", seed=5).seed == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gaussian", "gaussian takes sigma, which has no default; write gaussian:sigma=0.1"),
        ("gaussian:tau=0.1", "gaussian has no setting 'tau'; it has sigma, seed"),
        ("gaussian:sigma=0.1,size=2", "gaussian has no setting 'size'"),
        ("gaussian:sigma=-1", "sigma=-1 should be >= 0"),
        ("gaussian:sigma=much", "sigma='much' should be a number"),
        ("gaussian:sigma=0.1,seed=3", "would fix every draw"),
        ("prd:seed=3", "would fix every draw"),
        (
            "shield9",
            "defense='shield9' is unknown; choose one of bitdepth, essential, gaussian, jpeg, median",
        ),
        ("prd:sise=3", "prd has no setting 'sise'"),
    ],
)
def test_texts_that_mean_nothing_are_named(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        from_text(text, seed=0)


@pytest.mark.parametrize("images", [IMAGES[0, 0], IMAGES.long(), IMAGES + 1])
def test_images_that_cannot_be_are_named(images: torch.Tensor) -> None:
    with pytest.raises(InvalidInputError, match="images"):
        GaussianNoise(sigma=0.1, seed=0)(images)

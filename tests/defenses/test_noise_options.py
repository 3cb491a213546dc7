"""noise="image" and "shared": noise that is added to the image before it is cut, once for all its patches."""

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import oracles
import vqshield as vq
from vqshield.certificates import Coverage
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec
from vqshield.defended import Defended
from vqshield.defenses import create, known_settings
from vqshield.quantization.kernels import get, list_backends
from vqshield.quantization.noise import Draw, Stage

STAGES = (Stage.CODEBOOK, Stage.ASSIGNMENT)
SEED, SIGMA, TAU = 5, 0.05, 0.08
ON_IMAGE = [{"noise": "image", "sigma": SIGMA, "tau": TAU}, {"noise": "shared", "sigma": SIGMA, "tau": SIGMA}]


def literal_noise(image: Tensor, defense: vq.Defense, stage: Stage, stream: int) -> np.ndarray:
    draw = Draw(SEED, torch.tensor([stream]))
    scale = defense.sigma if stage == Stage.CODEBOOK else defense.tau
    drawn = Stage.CODEBOOK if defense.noise == "shared" else stage
    noise = draw.normals(drawn, 0, image.numel()).numpy().reshape(image.shape)
    return oracles.on_grid(np.clip(image.double().numpy() + scale * noise, 0, 1), 23)


@pytest.mark.parametrize("noise", ON_IMAGE)
@pytest.mark.parametrize(
    ("name", "more"), [("randdisc", {}), ("prd", {"padding": "reflect"}), ("swrd", {"size": 2, "beta": 40.0})]
)
def test_it_is_the_algorithm_on_noisy_images_without_noise_of_its_own(
    name: str, more: dict, noise: dict, natural: Tensor
) -> None:
    image, stream = natural[3, :, :13, :11], 7
    defense = create(name, codes=5, seed=SEED, backend="torch", **noise, **more)
    first, second = (literal_noise(image, defense, stage, stream) for stage in STAGES)
    size, sliding = defense.grid.size, name == "swrd"
    corners_of = oracles.sliding_corners if sliding else oracles.disjoint_corners
    padded = [each if sliding else oracles.pad(each, size, "reflect") for each in (first, second)]
    corners = corners_of(*padded[0].shape[1:], size)
    points, seen = (oracles.cut(each, corners, size) for each in padded)
    bits = oracles.grid_bits(points.shape[1], 0.0)
    words = Draw(SEED, torch.tensor([stream])).words(Stage.INIT, 0, 5)[0].numpy()
    centres = oracles.lloyd(points, oracles.kmeans_plus_plus(points, 5, words), 20, bits)
    quantized = np.array([centres[oracles.nearest(p, centres)] for p in seen])
    if sliding:
        expected = oracles.rebuild_sliding(seen, quantized, corners, padded[0].shape, size, 40.0)
    else:
        expected = oracles.rebuild_disjoint(quantized, corners, padded[0].shape, size)[:, :13, :11]
    output = defense(image[None], streams=torch.tensor([stream]))[0]
    np.testing.assert_allclose(output.numpy(), np.clip(expected, 0, 1), atol=1e-5)


def test_noise_on_the_image_has_its_scales_and_the_stages_are_independent() -> None:
    images, streams = torch.full((4, 3, 64, 64), 0.5), torch.arange(4)
    defense = vq.PRD(seed=1, **ON_IMAGE[0])
    eps, omega = ((defense.seen(images, stage, streams=streams) - 0.5).flatten() for stage in STAGES)
    assert float(eps.std()) == pytest.approx(SIGMA, rel=0.02)
    assert float(omega.std()) == pytest.approx(TAU, rel=0.02)
    assert abs(float(torch.corrcoef(torch.stack([eps, omega]))[0, 1])) < 4 / eps.numel() ** 0.5
    shared = vq.PRD(seed=1, **ON_IMAGE[1])
    both = [shared.seen(images, stage, streams=streams) for stage in STAGES]
    assert torch.equal(*both)


def test_noisy_images_are_images(natural: Tensor) -> None:
    seen = vq.PRD(noise="image", sigma=0.5, seed=1).seen(natural, Stage.CODEBOOK, streams=torch.arange(64))
    assert (float(seen.min()), float(seen.max())) == (0.0, 1.0)
    without = vq.PRD(noise="image", sigma=0.0, seed=1)
    assert torch.equal(without.seen(natural, Stage.CODEBOOK, streams=torch.arange(64)), natural)


@pytest.mark.parametrize("backend", list_backends())
def test_backends_agree(defense_name: str, backend: str, natural: Tensor) -> None:
    try:
        get(backend, "cpu")
    except ValueError as reason:
        pytest.skip(str(reason))
    for noise in ON_IMAGE:
        pair = [create(defense_name, codes=8, seed=2, backend=each, **noise) for each in ("torch", backend)]
        expected, found = (each(natural[:8], streams=torch.arange(8)) for each in pair)
        assert float(((expected - found).abs() > 1e-5).float().mean()) < 1e-3


@pytest.mark.parametrize("surrogate", ["ste", "score"])
@pytest.mark.parametrize("noise", ON_IMAGE)
def test_a_compiled_model_gives_the_same_logits_and_fresh_draws(noise: dict, surrogate: str) -> None:
    model = vq.defend(linear(3 * 9 * 10), "swrd", codes=3, seed=1, surrogate=surrogate, **noise)
    images, streams = noise_images(2, 3, 9, 10), torch.arange(2)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(model(images, streams=streams), compiled(images, streams=streams), atol=1e-6)
    assert not torch.equal(compiled(images), compiled(images))
    with pytest.raises(ValueError, match="images contain 2"):
        compiled(images * 0 + 2)


@pytest.mark.parametrize("stage", [0, 1])
def test_the_operator_keeps_torchs_rules(stage: int) -> None:
    job = vq.PRD(codes=3, seed=2**64 - 1, noise="image")._job
    for images in (noise_images(2, 3, 9, 10), noise_images(2, 9, 10, 3).permute(0, 3, 1, 2)):
        arguments = (images, torch.arange(2), job, stage, 0.1)
        torch.library.opcheck(torch.ops.vqshield.noisy_images.default, arguments)


def linear(values: int, classes: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(values, classes)).eval()


@pytest.mark.parametrize("noise", ON_IMAGE)
def test_the_score_is_the_images_own_noise(noise: dict) -> None:
    """One image, quantized by given streams: the gradient is (z − b)·noise/variance, nothing summed up."""
    classifier, streams = linear(3 * 8 * 8), torch.tensor([3])
    defense = vq.SWRD(codes=4, seed=SEED, **noise)
    images = noise_images(1, 3, 8, 8).requires_grad_()
    logits = Defended(classifier, defense, surrogate="score")(images, streams=streams)
    (gradient,) = torch.autograd.grad(logits[0, 0], images)
    draw = Draw(SEED, streams)
    eps, omega = (draw.normals(stage, 0, 192).view(1, 3, 8, 8) for stage in STAGES)
    score = eps / SIGMA + (omega / TAU if noise["noise"] == "image" else 0)
    advantage = (logits - classifier(images))[0, 0].detach()
    assert torch.allclose(gradient, (advantage * score).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_score_is_unbiased() -> None:
    """Against finite differences of the mean logit with the same streams on both sides."""
    classifier = linear(1 * 4 * 4, 2).double()
    defense = vq.RandDisc(codes=2, seed=1, noise="shared", sigma=0.2, tau=0.2)
    model = Defended(classifier, defense, surrogate="score")
    image, draws = (0.3 + 0.4 * noise_images(1, 1, 4, 4)).double(), 200_000
    many = image.expand(draws, -1, -1, -1).clone().requires_grad_()
    (gradients,) = torch.autograd.grad(model(many)[:, 0].sum(), many)
    direction = torch.sign(noise_images(1, 1, 4, 4, seed=3) - 0.5).double()
    step, streams = 0.02, torch.arange(draws)
    with torch.no_grad():
        high, low = (
            model((image + sign * step * direction).expand(draws, -1, -1, -1), streams=streams)[:, 0]
            for sign in (1, -1)
        )
    expected = (high - low) / (2 * step)
    found = (gradients * direction).sum((1, 2, 3))
    error = float((found.var() + expected.var()).sqrt()) / draws**0.5
    assert abs(float(found.mean() - expected.mean())) < 4 * error
    assert abs(float(expected.mean())) > 4 * error, "a gradient of nothing would prove nothing"


def test_specs_settings_presets_and_copies_carry_the_option(natural: Tensor) -> None:
    name, settings = parse_spec("swrd:noise=image")
    defense = create(name, **settings, seed=1)
    assert (defense.noise, defense.weights_from) == ("image", "noisy")
    assert known_settings("prd")["noise"] == "patch"
    assert defense.settings()["noise"] == "image"
    assert "noise='image'" in repr(defense)
    assert defense.reseeded(4).settings() == defense.settings()
    assert vq.SWRD.preset("cifar10", noise="shared").codes == 25
    streams = torch.arange(2)
    assert torch.equal(
        defense.reseeded(1)(natural[:2], streams=streams), defense(natural[:2], streams=streams)
    )
    assert vq.SWRD().weights_from == "clean"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": "pixel"}, "noise='pixel' is unknown; choose one of image, patch, shared"),
        ({"noise": "shared", "sigma": 0.1}, "sigma=0.1 and tau=0.0156.* should be equal for noise='shared'"),
        (
            {"noise": "image", "weights_from": "clean"},
            "weights_from='clean' should be 'noisy' where noise='im",
        ),
        ({"noise": "shared", "weights_from": "clean"}, "weights_from='clean' should be 'noisy'"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        vq.SWRD(**settings)


def test_without_weights_clean_ones_do_no_harm() -> None:
    images, streams = noise_images(2, 3, 8, 8), torch.arange(2)
    pair = [
        vq.SWRD(codes=4, beta=0.0, weights_from=each, noise="image", seed=1) for each in ("clean", "noisy")
    ]
    assert torch.equal(*(each(images, streams=streams) for each in pair))


@pytest.mark.parametrize(
    ("defense", "sigma_eff", "copies"),
    [
        (vq.RandDisc(sigma=0.3, tau=0.4), 0.24, 1),
        (vq.PRD(sigma=0.3, tau=0.4, padding="reflect"), 0.24, 2),
        (vq.PRD(sigma=0.3, tau=0.4, padding="reflect", noise="image"), 0.24, 1),
        (vq.SWRD(sigma=0.3, tau=0.4, weights_from="noisy"), 0.24, 3),
        (vq.SWRD(sigma=0.3, tau=0.4, beta=0), 0.24, 3),
        (vq.SWRD(sigma=0.3, tau=0.4, noise="image"), 0.24, 1),
        (vq.SWRD(sigma=0.3, tau=0.3, noise="shared"), 0.3, 1),
    ],
)
def test_the_terms_of_a_certificate(defense: vq.Defense, sigma_eff: float, copies: float) -> None:
    found = Coverage.of(**defense.certificate_terms())
    assert (found.sigma_eff, found.copies) == (pytest.approx(sigma_eff), copies)


@pytest.mark.parametrize(
    ("defense", "reason"),
    [
        (vq.SWRD(), "weights_from='clean' with beta=2.0"),
        (vq.PRD(sigma=0.0), "sigma=0.0"),
        (vq.PRD(tau=0.0, noise="image"), "tau=0.0"),
    ],
)
def test_no_terms_for_what_sees_the_image_without_noise(defense: vq.Defense, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=f"no certificate holds for {reason}"):
        Coverage.of(**defense.certificate_terms())

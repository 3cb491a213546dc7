"""What goes into a defense or a defended model, and what comes out: the kinds of images that people have."""

import copy
import os
import subprocess
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.core.checks import NARROW_DTYPES
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import create_any, list_all_defenses
from vqshield.models.calling import Normalising
from vqshield.quantization import kernels

IMAGES, STREAMS = noise_images(2, 3, 8, 8), torch.arange(2)
NEEDED: dict[str, dict[str, Any]] = {
    "randdisc": {"codes": 4}, "prd": {"codes": 4}, "swrd": {"codes": 4}, "gaussian": {"sigma": 0.05},
    "essential": {"codes": 4}, "splitting": {"scale": 0.1},
}  # fmt: skip
DTYPES = [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def make(name: str, **settings: Any) -> vq.Defense:
    return create_any(name, **NEEDED.get(name, {}), seed=0, **settings)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()


def pixels(images: Tensor) -> Tensor:
    """Written out once more: what a defense should see of such images."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.to(torch.float64).float()


def of_dtype(dtype: torch.dtype) -> Tensor:
    return (IMAGES * 255).round().byte() if dtype == torch.uint8 else IMAGES.to(dtype)


def value_at(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    images = IMAGES.clone().to(dtype)
    images[1, 2, 3, 4] = value
    return images


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", list_all_defenses())
def test_the_kind_that_goes_in_comes_out(name: str, dtype: torch.dtype) -> None:
    defense, images = make(name), of_dtype(dtype)
    found = defense(images, streams=STREAMS)
    assert (found.shape, found.dtype) == (images.shape, dtype)
    expected = defense(images if dtype == torch.float64 else pixels(images), streams=STREAMS)
    if dtype == torch.uint8:
        expected = (expected.clamp(0, 1) * 255).round()
    assert torch.equal(found, expected.to(dtype))
    assert torch.equal(defense(images[1], streams=STREAMS[1:]), found[1])


@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=str)
@pytest.mark.parametrize("name", vq.list_defenses())
def test_settings_of_the_door_hold_for_bytes_and_halves(name: str, dtype: torch.dtype) -> None:
    images = of_dtype(dtype)
    outside = images if dtype == torch.uint8 else images * 3 - 1
    for settings, given in (
        ({"streams": "content"}, images),
        ({"noise": "image"}, images),
        ({"noise": "shared"}, images),
        ({"range": "clamp"}, outside),
        ({"range": "clamp", "streams": "content"}, outside),
    ):
        found, expected = make(name, **settings)(given), make(name, **settings)(pixels(given))
        expected = (expected * 255).round() if dtype == torch.uint8 else expected
        assert torch.equal(found, expected.to(dtype)), settings
    mapped = torch.func.vmap(make(name))(images)
    assert torch.equal(mapped, make(name)(images))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", vq.list_defenses())
def test_halves_further_outside_are_refused_in_the_words_for_floats(name: str, dtype: torch.dtype) -> None:
    for value, end in ((1.1, 1.0), (-3.0, 0.0), (torch.inf, 1.0)):
        said = []
        for images in (value_at(value, dtype), value_at(value, dtype).float()):
            with pytest.raises(InvalidInputError, match="images contain") as caught:
                make(name)(images)
            said.append(str(caught.value))
        assert said[0] == said[1]
        found = make(name, range="clamp")(value_at(value, dtype), streams=STREAMS)
        assert torch.equal(found, make(name)(value_at(end, dtype), streams=STREAMS))
    for chosen in ("raise", "clamp"):
        with pytest.raises(InvalidInputError, match="images contain nan; every value"):
            make(name, range=chosen)(value_at(torch.nan, dtype))


def test_a_forward_of_ones_own_gets_pixels_and_so_do_hooks() -> None:
    class Darker(vq.PRD):
        def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
            assert images.dtype == torch.float32
            return super().forward(images / 2, streams=streams)

    found = Darker(codes=4, seed=0)(of_dtype(torch.uint8), streams=STREAMS)
    expected = make("prd")(pixels(of_dtype(torch.uint8)) / 2, streams=STREAMS)
    assert torch.equal(found, (expected * 255).round().byte())
    hooked, seen = make("prd"), []
    hooked.register_forward_hook(lambda module, given, found: seen.extend([given[0].dtype, found.dtype]))
    found = hooked(of_dtype(torch.uint8), streams=STREAMS)
    assert seen == [torch.float32, torch.float32]
    assert torch.equal(found, make("prd")(of_dtype(torch.uint8), streams=STREAMS))


MEASURED = """
import re
import torch, vqshield as vq

def status(name):
    with open("/proc/self/status") as file:
        return 1024 * int(re.search(name + r":\\s+(\\d+)", file.read())[1])

torch.set_num_threads(1)
wide = torch.rand(1000, 3, 32, 32)
for dtype in (torch.uint8, torch.float16, torch.bfloat16):
    images = wide.mul(255).byte() if dtype == torch.uint8 else wide.to(dtype)
    for name, settings in (("RandDisc", {}), ("PRD", {}), ("SWRD", {}), ("SWRD", {"streams": "content"})):
        defense = getattr(vq, name)(codes=4, iterations=1, backend="native", **settings)
        defense(images[:1])
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins here
        before = status("VmRSS")
        found = defense(images)
        print(status("VmHWM") - before - found.nbytes)
        del found
"""


@pytest.mark.skipif(kernels.get("auto").name != "native", reason="no compiled kernel")
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peak of memory to reset here")
def test_bytes_and_halves_are_shielded_without_a_float_copy_of_the_batch() -> None:
    # Memory that is freed goes back to the system at once: used again, it would not be seen.
    returned = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
    done = subprocess.run(
        [sys.executable, "-c", MEASURED],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | returned,
    )
    peaks = [int(line) for line in done.stdout.split()]
    assert len(peaks) == 12
    assert max(peaks) < 2**21, "besides input and output; as float32 the batch has 12 MiB"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_defended_model_takes_them_too(dtype: torch.dtype) -> None:
    for precision in (torch.float32, torch.float64):
        model, images = vq.Defended(network().to(precision), make("prd")), of_dtype(dtype)
        found = model(images, streams=STREAMS)
        seen = model.defense(images if dtype == torch.float64 else pixels(images), streams=STREAMS)
        assert torch.equal(found, model.classifier(seen.to(precision)))
        alone = model(images[1], streams=STREAMS[1:])
        assert alone.shape == (5,)
        assert torch.allclose(alone, found[1], atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_gradients_come_back_in_the_dtype_of_the_images(dtype: torch.dtype) -> None:
    model = vq.Defended(network(), make("swrd"), surrogate="soft")
    slopes = []
    for images in (of_dtype(dtype), of_dtype(dtype).float()):
        points = images.requires_grad_()
        slopes.append(torch.autograd.grad(model(points, streams=STREAMS).sum(), points)[0])
    assert slopes[0].dtype == dtype
    assert torch.allclose(slopes[0].float(), slopes[1], atol=1e-4)
    single = of_dtype(dtype)[0].requires_grad_()
    assert torch.autograd.grad(model(single).sum(), single)[0].shape == single.shape


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("name", list_all_defenses())
def test_a_rounding_is_clamped(name: str, dtype: torch.dtype) -> None:
    step = max(1e-4, 2 * torch.finfo(dtype).eps)
    defense = make(name)
    for outside, end in ((1 + step / 2, 1.0), (-step / 2, 0.0)):
        found = defense(value_at(outside, dtype), streams=STREAMS)
        assert torch.equal(found, defense(value_at(end, dtype), streams=STREAMS))


@pytest.mark.parametrize("name", list_all_defenses())
def test_what_is_further_outside_is_refused_unless_it_may_be_clamped(name: str) -> None:
    for value, end in ((1.0002, 1.0), (-3.0, 0.0), (torch.inf, 1.0)):
        with pytest.raises(InvalidInputError, match=f"images contain {value:g}"):
            make(name)(value_at(value))
        found = make(name, range="clamp")(value_at(value), streams=STREAMS)
        assert torch.equal(found, make(name)(value_at(end), streams=STREAMS))
    for chosen in ("raise", "clamp"):
        with pytest.raises(InvalidInputError, match="images contain nan"):
            make(name, range=chosen)(value_at(torch.nan))


@pytest.mark.parametrize(("value", "range"), [(1.0000001, "raise"), (-5e-7, "raise"), (1.5, "clamp")])
def test_a_clamped_value_keeps_its_gradient(value: float, range: str) -> None:
    for surrogate in ("ste", "soft"):
        model = vq.Defended(network(), make("prd", range=range), surrogate=surrogate)
        inside, outside = (
            value_at(min(max(value, 0.0), 1.0)).requires_grad_(),
            value_at(value).requires_grad_(),
        )
        slopes = [
            torch.autograd.grad(model(each, streams=STREAMS).sum(), each)[0] for each in (inside, outside)
        ]
        assert torch.allclose(*slopes, atol=1e-5)
        assert float(slopes[1][1, 2, 3, 4]) != 0


def test_the_defaults_leave_no_trace() -> None:
    assert repr(make("gaussian")) == "GaussianNoise(sigma=0.05, seed=0)"
    chosen = vq.GaussianNoise(sigma=0.05, range="clamp", surrogate="ste")
    assert repr(chosen) == "GaussianNoise(sigma=0.05, range='clamp', surrogate='ste')"
    assert repr(copy.deepcopy(chosen).reseeded(3)).endswith("seed=3, range='clamp', surrogate='ste')")
    assert chosen.settings() == {"sigma": 0.05}
    for text in ("swrd:range=clamp", "swrd:surrogate=soft"):
        with pytest.raises(InvalidInputError, match="cannot be chosen here"):
            vq.defenses.from_text(text, seed=0)
    with pytest.raises(InvalidInputError, match="range='cut' is unknown; choose one of clamp, raise"):
        vq.PRD(range="cut")


@pytest.mark.parametrize("surrogate", ["ste", "soft:temperature=0.1", vq.surrogates.Soft()], ids=str)
def test_a_defense_alone_has_the_gradient_that_it_was_given(surrogate: Any) -> None:
    alone, plain = vq.SWRD(codes=4, seed=0, surrogate=surrogate), vq.SWRD(codes=4, seed=0)
    whole, points, weights = network(), IMAGES.clone().requires_grad_(), noise_images(2, 5, seed=3)
    chains = [
        nn.Sequential(alone, whole),
        lambda images: vq.Defended(whole, plain, surrogate=surrogate)(images, streams=STREAMS),
        lambda images: vq.Defended(whole, alone)(images, streams=STREAMS),
        lambda images: vq.Defended(whole, alone, surrogate=surrogate)(images, streams=STREAMS),
    ]
    slopes = [torch.autograd.grad((chain(points) * weights).sum(), points)[0] for chain in chains]
    assert float(slopes[0].abs().max()) > 0
    for other in slopes[1:]:
        assert torch.allclose(slopes[0], other, atol=1e-6)
    assert not plain(points).requires_grad
    assert torch.equal(plain(points, streams=STREAMS), alone(points, streams=STREAMS))


def test_a_gradient_that_needs_the_classifier_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs the classifier"):
        vq.PRD(surrogate="score")
    with pytest.raises(InvalidInputError, match="surrogate='magic' is unknown"):
        vq.PRD(surrogate="magic")


@pytest.mark.parametrize("surrogate", ["ste", "soft", "score", "learned:updates=1"])
def test_torch_func_goes_through_a_defended_model(surrogate: str) -> None:
    model = vq.Defended(network(), make("prd"), surrogate=surrogate)
    points = IMAGES.clone().requires_grad_()
    logits = model(points, streams=STREAMS)
    (expected,) = torch.autograd.grad(logits.square().sum(), points)

    def loss(images: Tensor, streams: Tensor) -> Tensor:
        return model(images, streams=streams).square().sum()

    assert torch.allclose(torch.func.grad(loss)(IMAGES, STREAMS), expected, rtol=1e-4, atol=1e-6)
    table = torch.func.jacrev(lambda images: model(images, streams=STREAMS))(IMAGES)
    found = torch.einsum("bc,bcdqhw->dqhw", 2 * logits, table)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    if surrogate != "score":
        each = torch.func.vmap(torch.func.grad(loss))(IMAGES, STREAMS[:, None])
        assert torch.allclose(each, expected, rtol=1e-4, atol=1e-6)


def test_vmap_gives_every_image_a_stream_of_its_own() -> None:
    for streams in ("fresh", "content"):
        mapped, plain = make("swrd", streams=streams), make("swrd", streams=streams)
        assert torch.equal(torch.func.vmap(mapped)(IMAGES), plain(IMAGES))
    assert torch.equal(
        torch.func.vmap(make("swrd", noise="image"))(IMAGES), make("swrd", noise="image")(IMAGES)
    )


def test_a_surrogate_does_not_learn_inside_of_torch_func() -> None:
    model = vq.Defended(network(), make("prd"), surrogate="learned:updates=1")
    with pytest.raises(InvalidInputError, match="cannot learn inside of torch"):
        torch.func.grad(lambda images: model(images).sum())(IMAGES)


def test_normalisation_stands_between_the_defense_and_the_classifier() -> None:
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    model = vq.defend(network(), "prd", codes=4, seed=0, mean=mean, std=std)
    shown = vq.PRD(codes=4, seed=0)(IMAGES)
    columns = [torch.tensor(each).view(1, 3, 1, 1) for each in (mean, std)]
    assert torch.allclose(model(IMAGES), network()((shown - columns[0]) / columns[1]), atol=1e-6)
    for given in ({"mean": mean}, {"std": std}):
        with pytest.raises(InvalidInputError, match="give both or neither"):
            vq.defend(network(), **given)
    with pytest.raises(InvalidInputError, match="must be positive"):
        vq.defend(network(), mean=mean, std=[0.0, 1.0, 1.0])


def test_a_missing_or_doubled_normalisation_is_told() -> None:
    said = network()
    said.pretrained_cfg = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    with pytest.warns(UserWarning, match=r"normalised by mean=\[0.485"):
        vq.defend(said)
    with pytest.warns(UserWarning, match="normalises already"):
        vq.defend(Normalising(network(), mean=[0.5], std=[0.5]), mean=[0.5], std=[0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vq.defend(said, mean=[0.5], std=[0.5])
        vq.defend(network())


def test_logits_inside_of_an_answer_are_found() -> None:
    whole = network()
    for model in (lambda images: SimpleNamespace(logits=whole(images)), whole):
        defended = vq.Defended(model, make("prd"))
        assert torch.equal(defended(IMAGES), whole(make("prd")(IMAGES)))
    with pytest.raises(InvalidInputError, match="gives a list"):
        vq.Defended(lambda images: SimpleNamespace(logits=[1]), make("prd"))(IMAGES)


def test_gradients_of_the_bundled_classifier_are_contiguous() -> None:
    images = noise_images(2, 3, 32, 32).requires_grad_()
    for model in (small_cifar10(), vq.defend(small_cifar10(), "prd", seed=0)):
        (slope,) = torch.autograd.grad(model(images).sum(), images)
        assert slope.is_contiguous()
        assert slope.view(2, -1).shape == (2, 3072)


def test_moves_between_devices_keep_the_seed_and_the_count() -> None:
    plain = vq.Defended(network(), make("prd"))
    first, second = (plain.defense(IMAGES) for _ in range(2))
    with torch.device("meta"):
        model = vq.Defended(nn.Conv2d(3, 4, 3), make("prd"))
    assert torch.equal(model.defense(IMAGES), first)
    model = model.to_empty(device="cpu")
    model.load_state_dict(model.state_dict())
    assert torch.equal(model.defense(IMAGES), second)
    assert not any("defense" in name for name in model.state_dict())

"""Calibrate: statistics equal a hand-written measurement, the model given stays as it is, errors say why."""

import copy
import json
import warnings

import pytest
import torch
from conftest import noise_images
from torch import nn

import vqshield as vq
from vqshield.classifiers import (
    Normalised,
    build,
    bundled_as_trained,
    load_classifier,
    save_classifier,
    small_cifar10,
)
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.images.files import encode_png
from vqshield.training.calibration import CANDIDATES, GIVEN, batch_norms
from vqshield.training.shielding import shield_seed

SHIELD = "prd:size=2,codes=4,iterations=2"
IMAGES = noise_images(24, 3, 8, 8)


class Two(nn.Module):
    """Two convolutions, each with its batch norm."""

    def __init__(self, norm=nn.BatchNorm2d, **settings):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3), norm(4, **settings)
        self.conv2, self.norm2 = nn.Conv2d(4, 5, 3, stride=2), norm(5, **settings)
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        x = self.norm1(self.conv1(x)).relu()
        return self.fc(self.norm2(self.conv2(x)).relu().mean((2, 3)))


def two(norm=nn.BatchNorm2d, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Two(norm, **settings).eval().requires_grad_(False)
        for layer in (network.norm1, network.norm2):
            if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None:
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)
    return network


def two_passes(parts):
    """Mean and unbiased variance of each channel over all values of all parts: one pass for each."""
    channels = [
        torch.cat([part[:, c].double().flatten() for part in parts]) for c in range(parts[0].shape[1])
    ]
    means = [each.sum() / len(each) for each in channels]
    spreads = [((each - m) ** 2).sum() / (len(each) - 1) for each, m in zip(channels, means, strict=True)]
    return torch.stack(means), torch.stack(spreads)


def by_hand(network, batches):
    """What reaches both norms where every batch is normalized by its own mean and variance."""
    first = [network.conv1(part) for part in batches]
    second = []
    for part in first:
        mean = part.mean((0, 2, 3), keepdim=True)
        spread = ((part - mean) ** 2).mean((0, 2, 3), keepdim=True)
        norm = network.norm1
        scaled = (part - mean) / (spread + norm.eps).sqrt() * norm.weight.view(1, -1, 1, 1)
        second.append(network.conv2((scaled + norm.bias.view(1, -1, 1, 1)).relu()))
    return {"norm1": two_passes(first), "norm2": two_passes(second)}


def in_batches(images, count, seed=0):
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return torch.tensor_split(images[order], count)


def shielded(batches, samples=1):
    defense = vq.defenses.from_text(SHIELD, seed=shield_seed(0, "calibration"))
    total, found = sum(map(len, batches)), []
    for sample_number in range(samples):
        start = sample_number * total
        for part in batches:
            found.append(defense(part, streams=torch.arange(start, start + len(part))))
            start += len(part)
    return found


@pytest.mark.parametrize(("batch", "count", "samples"), [(256, 1, 1), (10, 3, 1), (10, 3, 2)])
def test_reestimated_statistics_are_those_of_two_passes_by_hand(batch, count, samples):
    network = two()
    found = vq.calibrate(
        network, IMAGES, defense=SHIELD, method="reestimate", batch=batch, samples=samples
    ).classifier
    expected = by_hand(network, shielded(in_batches(IMAGES, count), samples))
    for name, (mean, variance) in expected.items():
        norm = found.get_submodule(name)
        torch.testing.assert_close(norm.running_mean.double(), mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(norm.running_var.double(), variance, rtol=1e-5, atol=1e-6)


def test_one_batch_gives_what_training_mode_without_momentum_gives():
    network, oracle = two(), two(momentum=None)
    for layer in (oracle.norm1, oracle.norm2):
        layer.reset_running_stats()
    oracle.train()(shielded(in_batches(IMAGES, 1))[0])
    found = vq.calibrate(network, IMAGES, defense=SHIELD, method="reestimate").classifier
    for name in ("norm1", "norm2"):
        for kept in ("running_mean", "running_var"):
            ours, theirs = (getattr(each.get_submodule(name), kept) for each in (found, oracle))
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_paired_statistics_shift_the_checkpoints_by_the_difference_behind_the_defense():
    network, batches = two(), in_batches(IMAGES, 1)
    clean, behind = by_hand(network, batches), by_hand(network, shielded(batches))
    whole = vq.calibrate(network, IMAGES, defense=SHIELD, method="paired").classifier
    half = vq.calibrate(network, IMAGES, defense=SHIELD, method="paired:share=0.5").classifier
    for name in clean:
        norm, eps = network.get_submodule(name), 1e-5
        ratio = (norm.running_var.double() + eps) / (clean[name][1] + eps)
        mean = norm.running_mean.double() + (behind[name][0] - clean[name][0]) * ratio.sqrt()
        variance = (behind[name][1] + eps) * ratio - eps
        shifted, between = whole.get_submodule(name), half.get_submodule(name)
        torch.testing.assert_close(shifted.running_mean.double(), mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(shifted.running_var.double(), variance, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            between.running_mean.double(), (mean + norm.running_mean) / 2, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("method", ["auto", "paired"])
def test_the_model_given_and_torchs_generator_stay_as_they_are(method):
    model = vq.defend(two(), SHIELD, seed=0).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = vq.calibrate(model, IMAGES, method=method)
    assert all(torch.equal(before[key], held) for key, held in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert not any(module.training for module in found.modules())
    first = vq.defend(two(), SHIELD, seed=0).defense(IMAGES)
    assert torch.equal(model.defense(IMAGES), first)  # its next stream is the first, still


def test_a_seed_repeats_all_and_another_draws_other_noise():
    def state(seed):
        found = vq.calibrate(two(), IMAGES, defense="swrd:size=2,codes=3", method="paired", seed=seed)
        return found.classifier.state_dict()

    once, again, other = state(1), state(1), state(2)
    assert all(torch.equal(once[key], again[key]) for key in once)
    assert not torch.equal(once["norm2.running_mean"], other["norm2.running_mean"])


def drifted():
    """The bundled network with statistics that fit the images behind a defense less well."""
    images = sample(200).floats()
    return bundled_as_trained("small-cifar10"), images[:64], images[64:], sample(200).labels[64:]


def test_auto_recovers_clean_accuracy_without_labels():
    network, some, test, labels = drifted()
    plain = vq.defend(network, "gaussian:sigma=0.06", seed=0)
    found = vq.calibrate(plain, some)
    assert found.calibration.method in CANDIDATES[1:]
    assert set(found.calibration.agreement) == set(CANDIDATES)
    best = found.calibration.log_likelihood
    assert best[found.calibration.method] == max(best.values())

    def accuracy(model):
        return float((model(test).argmax(1) == labels).double().mean())

    assert accuracy(found) > accuracy(plain) + 0.15


def test_auto_keeps_a_classifier_that_nothing_improves_and_says_so():
    network, some, *_ = drifted()
    with pytest.warns(UserWarning, match="kept unchanged"):
        found = vq.calibrate(vq.defend(network, "bitdepth:bits=8"), some[:16])
    assert found.calibration.method == GIVEN
    before = network.state_dict()
    assert all(torch.equal(before[key], held) for key, held in found.classifier.state_dict().items())


def test_a_name_and_a_file_are_calibrated_saved_and_read_again(tmp_path):
    images = sample(16).floats()
    found = vq.calibrate(
        "small-cifar10", images, defense="swrd:size=3,codes=5", method="paired", out=tmp_path
    )
    assert found.weights == tmp_path / "small-cifar10-calibrated.safetensors"
    read = load_classifier(found.weights)
    torch.testing.assert_close(read(images), found.classifier(images))
    card = json.loads(found.card_file.read_text())
    assert (card["shield"], card["calibration"]["method"]) == ("swrd:codes=5", "paired")
    assert (card["classifier"], card["load"]) == ("small-cifar10", found.weights.name)
    again = vq.calibrate(str(found.weights), images, defense="swrd:codes=5", method="paired", out=tmp_path)
    assert again.weights.name == "small-cifar10-calibrated-calibrated.safetensors"


def test_the_file_names_its_shield_and_method(tmp_path):
    from safetensors import safe_open

    model = vq.defend(bundled_as_trained("small-cifar10"), "prd:size=2,codes=5", seed=3)
    found = vq.calibrate(model, sample(8).images, method="reestimate", out=tmp_path, name="mine")
    with safe_open(found.weights, framework="pt") as file:
        metadata = file.metadata()
    assert metadata["shield"] == "prd:codes=5"
    assert metadata["calibrated"] == "reestimate"
    assert str(tmp_path) not in found.card_file.read_text()


def test_defend_calibrates_in_one_line():
    found = vq.defend(bundled_as_trained("small-cifar10"), "swrd", codes=5, calibrate=sample(16).floats())
    assert isinstance(found, vq.Defended)
    assert found.calibration.images == 16


def test_a_folder_of_pictures_is_unlabelled_images(tmp_path):
    for number, image in enumerate(sample(6).images):
        place = tmp_path / f"{number % 2}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.png").write_bytes(encode_png(image.permute(1, 2, 0).contiguous().numpy()))
    found = vq.calibrate(two(), tmp_path, defense=SHIELD, method="reestimate", limit=5)
    assert found.calibration.images == 5
    named = vq.calibrate(two(), "cifar10-sample", defense=SHIELD, method="paired", split="test", limit=9)
    assert named.calibration.images == 9


class Frozen(nn.Module):
    """As torchvision's FrozenBatchNorm2d: all of it buffers."""

    def __init__(self, width):
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((width,), value))
        self.eps = 1e-5

    def forward(self, x):
        scale = (self.weight / (self.running_var + self.eps).sqrt()).view(1, -1, 1, 1)
        return (x - self.running_mean.view(1, -1, 1, 1)) * scale + self.bias.view(1, -1, 1, 1)


@pytest.mark.parametrize("norm", [nn.SyncBatchNorm, Frozen])
def test_other_batch_norms_get_the_same_statistics(norm):
    expected = vq.calibrate(two(), IMAGES, defense=SHIELD, method="reestimate").classifier
    found = vq.calibrate(two(norm), IMAGES, defense=SHIELD, method="reestimate").classifier
    for name in ("norm1", "norm2"):
        ours, theirs = found.get_submodule(name), expected.get_submodule(name)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)


def test_norms_of_vectors_and_layers_without_running_statistics():
    flat = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    found = vq.calibrate(flat, IMAGES, defense=SHIELD, method="reestimate").classifier
    values = flat[:2](shielded(in_batches(IMAGES, 1))[0]).double()
    torch.testing.assert_close(found[2].running_mean.double(), values.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[2].running_var.double(), values.var(0), rtol=1e-5, atol=1e-6)
    mixed = two()
    mixed.norm1 = nn.BatchNorm2d(4, track_running_stats=False)
    assert list(batch_norms(mixed)) == ["norm2"]
    calibrated = vq.calibrate(mixed, IMAGES, defense=SHIELD, method="reestimate").classifier
    assert not torch.equal(calibrated.norm2.running_mean, mixed.norm2.running_mean)


def test_progress_ends_at_its_total():
    seen = []
    vq.calibrate(
        two(), IMAGES, defense=SHIELD, samples=2, batch=7, progress=lambda *each: seen.append(each[1:])
    )
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def group(width):
    return nn.GroupNorm(1, width)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": small_cifar10}, "folded.*'small-cifar10'"),
        ({"model": lambda: two(group)}, "no batch norm.*GroupNorm.*vqshield harden"),
        ({"model": lambda: two(track_running_stats=False)}, "no running statistics"),
        ({"model": lambda: vq.defend(two(), SHIELD)}, "has a defense"),
        ({"defense": None}, "has no defense; give defense="),
        ({"images": IMAGES[:1]}, "1 image.*at least 2"),
        ({"images": IMAGES + 1}, "0, 1|\\[0"),
        ({"images": "no-such-folder"}, "neither a folder nor a data set"),
        ({"method": "momentum"}, "momentum"),
        ({"method": "paired:share=2"}, "share"),
        ({"method": "auto:share=1"}, "share"),
        ({"batch": 1}, "batch"),
        ({"samples": 0}, "samples"),
        ({"limit": 1}, "limit"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(change, message):
    given = {"model": two, "images": IMAGES, "defense": SHIELD, **change}
    with pytest.raises(InvalidInputError, match=message):
        vq.calibrate(given.pop("model")(), given.pop("images"), **given)


def test_a_file_with_a_normalisation_keeps_it(tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build("small", classes=2, widths=(4, 6), blocks=(0, 1))
    path = tmp_path / "tiny.safetensors"
    save_classifier(path, Normalised(network, mean=[0.5] * 3, std=[0.25] * 3))
    found = vq.calibrate(str(path), IMAGES, defense=SHIELD, method="reestimate", out=tmp_path / "out")
    assert load_classifier(found.weights).mean.flatten().tolist() == [0.5] * 3

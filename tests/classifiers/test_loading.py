import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from vqshield.classifiers import Normalised, build, load_classifier, save_classifier, small_cifar10
from vqshield.classifiers import __file__ as package_file
from vqshield.classifiers.loading import check_finite
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import load, sample

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]


def tiny(**options):
    network = build("small", classes=4, **{"widths": [4, 6], "blocks": [0, 1], **options})
    return Normalised(network, mean=MEAN, std=STD)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "tiny.safetensors"
    save_classifier(path, tiny(), {"data": "cifar10"})
    return path


def rewrite(path, *, metadata=None, drop_metadata=(), weights=None, drop=()):
    """The file with other metadata or weights."""
    with safe_open(path, framework="pt") as file:
        old = file.metadata()
    new = {key: value for key, value in {**old, **(metadata or {})}.items() if key not in drop_metadata}
    tensors = {key: value for key, value in {**load_file(path), **(weights or {})}.items() if key not in drop}
    save_file(tensors, path, new)


@pytest.mark.parametrize("options", [{}, {"unshuffle": 2}])
def test_what_is_saved_is_what_is_loaded(tmp_path, options):
    model = tiny(**options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())  # so that fp16 storage loses nothing
    path = tmp_path / "below" / "tiny.safetensors"
    save_classifier(path, model)
    again = load_classifier(path)
    images = sample(3).floats()
    assert torch.equal(again(images), model(images))
    assert [file.name for file in path.parent.iterdir()] == ["tiny.safetensors"]


def test_a_folded_classifier_is_not_saved_as_a_file_that_does_not_load(tmp_path):
    with pytest.raises(InvalidInputError, match="batch norms of this classifier are folded"):
        save_classifier(tmp_path / "tiny.safetensors", load_classifier("small-cifar10"))
    assert not [*tmp_path.iterdir()]


def test_loading_leaves_the_global_generator_alone(saved):
    before = torch.get_rng_state()
    load_classifier(saved)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_model_is_frozen_float32_in_eval_mode(saved):
    model = load_classifier(saved)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    torch.testing.assert_close(model.mean.flatten(), torch.tensor(MEAN))


def test_convolutions_in_fp16_others_in_fp32(saved):
    stored = load_file(saved)
    for key, tensor in stored.items():
        assert tensor.dtype == (torch.float16 if tensor.ndim == 4 else torch.float32), key
    assert not any("num_batches_tracked" in key for key in stored)


def test_metadata_tells_all_that_a_reader_needs(saved):
    with safe_open(saved, framework="pt") as file:
        metadata = file.metadata()
    assert (metadata["arch"], metadata["classes"], metadata["data"]) == ("small", "4", "cifar10")
    assert json.loads(metadata["mean"]) == MEAN
    assert json.loads(metadata["options"])["widths"] == [4, 6]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"drop_metadata": ["mean"]}, "no 'mean' in its metadata"),
        ({"metadata": {"std": "0.25"}}, r"std='0\.25'"),
        ({"metadata": {"std": "[0.25"}}, "not JSON"),
        ({"metadata": {"options": "[]"}}, "options"),
        ({"metadata": {"options": '{"depth": 3}'}}, "depth"),
        ({"metadata": {"arch": "vgg"}}, "'vgg'"),
        ({"metadata": {"arch": "resnet18", "options": "{}"}}, "lacks 'layer1.0.bn1.bias'.* more"),
        ({"drop": ["conv1.weight", "bn1.bias"]}, "lacks 'bn1.bias', 'conv1.weight'"),
        ({"drop": ["fc.weight"]}, "no 'fc.weight'"),
        ({"weights": {"extra": torch.zeros(1)}}, "another network: 'extra'"),
        ({"weights": {"fc.bias": torch.zeros(5)}}, r"'fc.bias' has shape \(5,\), expected \(4,\)"),
        ({"drop_metadata": ["arch"], "drop": ["layers.0.conv1.weight"]}, "names no 'arch'.*resnet18"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(saved, change, named):
    rewrite(saved, **change)
    with pytest.raises(ValueError, match=named):
        load_classifier(saved)


def test_arch_is_inferred_or_given(saved):
    rewrite(saved, drop_metadata=["arch", "classes"])
    assert load_classifier(saved).network.arch == "small"
    assert load_classifier(saved, arch="small").network.classes == 4


def test_a_counter_in_the_file_does_no_harm(saved):
    before = load_classifier(saved).state_dict()
    rewrite(saved, weights={"bn1.num_batches_tracked": torch.tensor(3)})
    after = load_classifier(saved).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(InvalidInputError, match="absent"):
        load_classifier(tmp_path / "absent.safetensors")
    pickled = tmp_path / "model.pt"
    torch.save({"fc.weight": torch.zeros(2, 2)}, pickled)
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        load_classifier(pickled)


def test_unsaveable_models_leave_no_file(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(InvalidInputError, match="Identity"):
        save_classifier(path, Normalised(nn.Identity(), mean=MEAN, std=STD))
    model = tiny()
    model.network.conv1.weight.data[0, 0, 0, 0] = 1e6  # finite, but not in fp16
    with pytest.raises(InvalidInputError, match=r"conv1\.weight"):
        save_classifier(path, model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "data", "count", "least"),
    [("resnet18-cifar10", "cifar10", 120, 0.92), ("wrn28_10-cifar100", "cifar100", 30, 0.7)],
)
def test_published_weights_reach_their_accuracy(shared, file, data, count, least):
    model = load_classifier(shared / "weights" / f"{file}.safetensors")
    test = load(data, "test", shared / "data").take(count)
    with torch.no_grad():
        hits = sum(
            int((model(test.floats(slice(at, at + 30))).argmax(1) == test.labels[at : at + 30]).sum())
            for at in range(0, count, 30)
        )
    assert hits / count >= least


def test_bundled_classifier():
    from pathlib import Path

    weights = Path(package_file).parent / "assets" / "small-cifar10.safetensors"
    if not weights.is_file():
        pytest.skip("small-cifar10.safetensors is not trained yet")
    assert weights.stat().st_size <= 1_000_000
    images = sample()
    model = small_cifar10()
    with torch.no_grad():
        right = (model(images.floats()).argmax(1) == images.labels).float().mean()
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert right >= 0.89  # 91% of all test images, less two standard errors of 500


def test_two_saves_of_one_classifier_are_the_same_bytes(tmp_path):
    model = Normalised(build("small", classes=4, widths=[4], blocks=[0]), mean=[0.5] * 3, std=[0.2] * 3)
    card = {"data": "mine", "seed": "3", "note": "equal"}
    contents = set()
    for number in range(5):
        save_classifier(
            tmp_path / "x.safetensors", model, dict(sorted(card.items(), reverse=bool(number % 2)))
        )
        contents.add((tmp_path / "x.safetensors").read_bytes())
    assert len(contents) == 1


def test_masks_may_hold_minus_infinity_but_nothing_else():
    class Masked(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.register_buffer("attn_mask", torch.tensor([0.0, value]))

    check_finite(Masked(-torch.inf), "x")
    for value in (torch.nan, torch.inf):
        with pytest.raises(FileFormatError, match=r"x: 'attn_mask' holds nan or infinity \(1 of 2 values\)"):
            check_finite(Masked(value), "x")

"""Harden: any classifier behind any defense, refused where things do not fit; checkpoints stay whole."""

import errno
import json
import sys
import types

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from test_trainer import settings
from torch import nn

import vqshield as vq
from small_runs import TEST, TRAINING, Watcher
from vqshield.classifiers import (
    Normalised,
    build,
    bundled_as_trained,
    load_classifier,
    save_classifier,
    small_cifar10,
)
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.data import sample
from vqshield.images.files import encode_png
from vqshield.training.hardening import Hardened
from vqshield.training.run import RunFiles, train_on
from vqshield.training.shielding import accuracy

SHIELD = "swrd:size=2,codes=6,iterations=2"


@pytest.fixture
def start(tmp_path):
    """A file of a tiny network for the two tones."""
    path = tmp_path / "tiny.safetensors"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build("small", classes=2, widths=(4, 6), blocks=(0, 1))
    save_classifier(path, Normalised(network, mean=[0.5] * 3, std=[0.25] * 3))
    return path


def run(classifier, defense=SHIELD, *, out, **changes) -> Hardened:
    given = {"epochs": 2, "batch": 16, "lr": 0.05, "ema": 0.5, "padding": 1, "device": "cpu", **changes}
    test = (TEST.images, TEST.labels)
    return vq.harden(classifier, defense, TRAINING.images, TRAINING.labels, test=test, out=out, **given)


def same(left, right):
    left, right = load_file(left), load_file(right)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def test_a_file_is_hardened_and_the_card_says_everything(start, tmp_path):
    found = run(str(start), out=tmp_path / "out", epochs=4)
    assert found.after >= 0.9 > found.before
    assert found.weights == tmp_path / "out" / "tiny-hardened.safetensors"
    assert isinstance(found.model, vq.Defended)
    assert found.model(TEST.floats()).shape == (32, 2)
    card = json.loads(found.card_file.read_text())
    assert card == found.card
    assert (card["test_accuracy"], card["test_accuracy_before"]) == (found.after, found.before)
    assert (card["settings"]["shield"], card["settings"]["method"]) == (SHIELD, "natural")
    assert card["settings"]["start"]["file"] == card["settings"]["classifier"] == "tiny.safetensors"
    assert card["load"] == "tiny-hardened.safetensors"
    assert str(tmp_path) not in found.card_file.read_text()
    assert load_classifier(found.weights)(TEST.floats()).shape == (32, 2)
    with safe_open(found.weights, framework="pt") as file:
        assert file.metadata()["shield"] == SHIELD


@pytest.mark.parametrize(
    "method", ["natural", "noise:sigma=0.05", "adversarial:loss=trades,eps=0.05,steps=2,sigma=0.02"]
)
def test_a_broken_run_ends_with_the_very_same_weights(start, tmp_path, method):
    whole = run(str(start), out=tmp_path / "whole", method=method)
    with pytest.raises(KeyboardInterrupt):
        run(str(start), out=tmp_path / "broken", method=method, progress=Watcher(stop_in=2))
    watcher = Watcher()
    resumed = run(str(start), out=tmp_path / "broken", method=method, progress=watcher)
    assert watcher.resumed == 1
    assert whole.weights.read_bytes() == resumed.weights.read_bytes()


def test_a_defense_whose_code_changed_is_another_run(start, tmp_path, monkeypatch):
    """What a checkpoint says of `mine:shade` is its name; a helper module decides what it does."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_strength.py").write_text("STRENGTH = 0.5")
    (tmp_path / "their_shade.py").write_text(
        "import their_strength\n\ndef shade(images):\n    return images * their_strength.STRENGTH\n"
    )
    with pytest.raises(KeyboardInterrupt):
        run(str(start), "their_shade:shade", out=tmp_path / "out", progress=Watcher(stop_in=2))
    assert run(str(start), "their_shade:shade", out=tmp_path / "out").after >= 0
    (tmp_path / "their_strength.py").write_text("STRENGTH = 0.9")
    with pytest.raises(InvalidInputError, match="made with other code of your classifier or defense"):
        run(str(start), "their_shade:shade", out=tmp_path / "out")


def test_a_classifier_whose_code_changed_is_another_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    values = TRAINING.images[0].numel()
    code = "import torch\nfrom torch import nn\n\ndef net():\n    torch.manual_seed(0)\n"
    code += f"    return nn.Sequential(nn.Flatten(), nn.Linear({values}, 2))\n"
    (tmp_path / "their_net.py").write_text(code)
    with pytest.raises(KeyboardInterrupt):
        run("their_net:net", out=tmp_path / "out", progress=Watcher(stop_in=2))
    (tmp_path / "their_net.py").write_text(code + "# changed\n")
    with pytest.raises(InvalidInputError, match="made with other code of your classifier or defense"):
        run("their_net:net", out=tmp_path / "out")


def test_methods_and_defenses_lead_to_other_weights(start, tmp_path):
    found = [
        run(str(start), out=tmp_path / str(number), epochs=1, **changes)
        for number, changes in enumerate([{}, {"method": "noise"}, {"defense": "none"}, {"seed": 1}])
    ]
    for number, each in enumerate(found):
        assert not any(same(each.weights, other.weights) for other in found[:number])
    assert not isinstance(found[2].model, vq.Defended)


def test_a_defense_of_ones_own_and_a_registered_one_as_an_object(start, tmp_path):
    class Darken(vq.Defense):
        def forward(self, images, *, streams=None):
            return images / 2

        def settings(self):
            return {"by": 2}

    own = run(str(start), Darken(), out=tmp_path / "own", epochs=1)
    assert own.card["settings"]["shield"] == "Darken(by=2)"
    assert isinstance(own.model.defense, Darken)
    made = vq.SWRD(size=2, codes=6, iterations=2)
    as_object = run(str(start), made, out=tmp_path / "object", epochs=1)
    as_text = run(str(start), SHIELD, out=tmp_path / "text", epochs=1)
    assert same(as_object.weights, as_text.weights)
    again = vq.defenses.from_text(as_object.card["settings"]["shield"], seed=0)
    assert again.settings() == made.settings()


class Dropping(nn.Module):
    """A network from elsewhere, with dropout and a tensor that two layers share."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4, 2)
        self.again = nn.Linear(4, 2)
        self.again.weight = self.last.weight

    def forward(self, images):
        features = self.drop(self.first(images).relu().mean((2, 3)))
        return self.last(features) + self.again(features)


@pytest.fixture
def dropping(monkeypatch):
    """It is made by net() of a module "mine"."""

    def net():
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return Dropping()

    module = types.ModuleType("mine")
    module.net = net
    monkeypatch.setitem(sys.modules, "mine", module)
    return net


def test_a_network_from_elsewhere_is_saved_as_weights_and_loaded_by_its_function(dropping, tmp_path):
    before = torch.get_rng_state()
    found = run("mine:net", out=tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), before)
    assert found.card["load"] == "mine:net@mine-net-hardened.safetensors"  # beside the card: out is absolute
    assert found.card["network"]["arch"] == "Dropping"
    assert found.load == f"mine:net@{found.weights}"
    loaded = load_classifier(found.load)
    torch.testing.assert_close(loaded(TEST.floats()), found.model.classifier(TEST.floats()))
    with pytest.raises(KeyboardInterrupt):
        run("mine:net", out=tmp_path / "broken", progress=Watcher(stop_in=2))
    torch.manual_seed(99)  # what dropout would draw from
    assert run("mine:net", out=tmp_path / "broken").weights.read_bytes() == found.weights.read_bytes()
    refused = tmp_path / "other.safetensors"
    refused.write_bytes((tmp_path / "broken" / "mine-net-hardened.checkpoint.safetensors").read_bytes())
    with pytest.raises(FileFormatError, match="another network"):
        load_classifier(f"mine:net@{refused}")


def test_a_module_in_memory_is_left_as_it_was(dropping, tmp_path):
    module = dropping().eval()
    module.first.requires_grad_(False)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    found = run(module, out=tmp_path)
    assert all(torch.equal(before[key], value) for key, value in module.state_dict().items())
    assert not module.training
    tuned = load_file(found.weights)
    assert torch.equal(tuned["first.weight"], before["first.weight"])  # frozen layers stay so
    assert not torch.equal(tuned["last.weight"], before["last.weight"])
    assert "load_state_dict" in found.card["load"]


def test_the_bundled_net_is_hardened_with_its_batch_norms(tmp_path):
    photos = sample(12)
    found = vq.harden(
        "small-cifar10", "gaussian:sigma=0.1", photos.floats(), photos.labels, epochs=1, batch=4,
        out=tmp_path, device="cpu",
    )  # fmt: skip
    assert "bn1.weight" in load_file(found.weights)
    assert found.test_images == 1  # the last tenth
    assert found.card["settings"]["data"] == "in-memory"
    with pytest.raises(InvalidInputError, match=r"batch norms folded.*'small-cifar10'"):
        vq.harden(small_cifar10(), "swrd", photos.floats(), photos.labels, out=tmp_path)
    plain = bundled_as_trained("small-cifar10")
    torch.testing.assert_close(plain(photos.floats()), small_cifar10()(photos.floats()), atol=1e-3, rtol=1e-3)


def folder_of(place, *, classes=("cat", "dog"), count=4, size=12):
    for split in ("train", "val"):
        for number, name in enumerate(classes):
            (place / split / name).mkdir(parents=True)
            for index in range(count):
                tone = torch.full((size, size + index, 3), 60 + 120 * (number % 2) + index).byte().numpy()
                (place / split / name / f"{index}.png").write_bytes(encode_png(tone))
    return place


@pytest.fixture
def sized(start, tmp_path):
    """The tiny network with an input size, as timm's have one."""
    path = tmp_path / "sized.safetensors"
    save_classifier(
        path, Normalised(load_classifier(start).network, mean=[0.5] * 3, std=[0.25] * 3, size=(8, 8))
    )
    return path


def from_folder(classifier, folder, out, **changes):
    given = {"epochs": 2, "batch": 4, "lr": 0.05, "padding": 1, "device": "cpu", **changes}
    return vq.harden(str(classifier), SHIELD, "folder", data_dir=folder, out=out, **given)


def test_images_come_from_a_folder_at_the_classifiers_size(sized, tmp_path):
    folder = folder_of(tmp_path / "photos")
    found = from_folder(sized, folder, tmp_path / "out", epochs=4)
    assert (found.card["train_images"], found.card["test_images"]) == (8, 8)
    assert found.card["classes"] == ["cat", "dog"]
    assert load_classifier(found.weights).size == (8, 8)
    limited = from_folder(sized, folder, tmp_path / "limited", limit=4, test_limit=2)
    assert (limited.card["train_images"], limited.card["test_images"]) == (4, 2)


def test_folders_that_cannot_be_used_are_told(sized, start, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with pytest.raises(InvalidInputError, match=r"has 2 classes, 'folder' has 3"):
        from_folder(sized, folder_of(tmp_path / "3", classes=("a", "b", "c")), out)
    unreadable = folder_of(tmp_path / "unreadable")
    for file in unreadable.rglob("*.png"):
        file.write_bytes(b"no picture")
    with pytest.raises(FileFormatError, match=r"\.png: .*readable are PNG and JPEG"):
        from_folder(sized, unreadable, out)
    good = folder_of(tmp_path / "good")
    with pytest.raises(InvalidInputError, match="give 'folder' a size, or a classifier that has one"):
        from_folder(start, good, out)
    (good / "val" / "dog").rename(good / "val" / "wolf")
    with pytest.raises(InvalidInputError, match=r"2 classes \(cat, dog\).*2 classes \(cat, wolf\)"):
        from_folder(sized, good, out)
    (good / "val").rename(good / "rest")
    with pytest.raises(InvalidInputError, match="has train, but no test or val"):
        from_folder(sized, good, out)
    (good / "rest").rename(good / "val")
    monkeypatch.setattr("vqshield.training.hardening._memory", lambda: 100)
    with pytest.raises(InvalidInputError, match="give a limit"):
        from_folder(sized, good, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"defense": "prd:size=9"}, "size=9 should be at most"),
        ({"defense": "swrd:size=2,codes=60"}, "codes=60 should be at most the number of patches n=49"),
        ({"defense": "shield9"}, "defense='shield9' is unknown"),
        ({"defense": 3}, "defense should be a spec string .* not int"),
        ({"method": "hope"}, "method='hope'"),
        ({"batch": 65}, "batch=65 .* 64"),
        ({"name": "../tiny"}, r"name='\.\./tiny'"),
        ({"classifier": "missing.safetensors"}, "no weight file"),
        ({"classifier": nn.Flatten()}, "no weights that could be tuned"),
        ({"classifier": 3}, "classifier should be a module or a name, not int"),
    ],
)
def test_bad_input_is_named_before_any_work(start, tmp_path, changes, named):
    with pytest.raises(InvalidInputError, match=named):
        run(**{"classifier": str(start), "out": tmp_path / "out", **changes})
    assert not (tmp_path / "out").exists()


def test_labels_and_classes_that_do_not_fit_are_named(start, tmp_path):
    images = TRAINING.images
    with pytest.raises(InvalidInputError, match=r"label 2 .* outside 0\.\.1"):
        vq.harden(str(start), SHIELD, images, TRAINING.labels + 1, out=tmp_path)
    with pytest.raises(InvalidInputError, match="labels are missing"):
        vq.harden(str(start), SHIELD, images, out=tmp_path)
    with pytest.raises(InvalidInputError, match="64 images but 3 labels"):
        vq.harden(str(start), SHIELD, images, TRAINING.labels[:3], out=tmp_path)
    with pytest.raises(
        InvalidInputError, match="images of 2 channels cannot be normalised by a mean and std of 3"
    ):
        vq.harden(str(start), SHIELD, images[:, :2], TRAINING.labels, out=tmp_path)
    with pytest.raises(InvalidInputError, match=r"give model.classifier and a defense"):
        vq.harden(vq.defend(load_classifier(start)), SHIELD, images, TRAINING.labels, out=tmp_path)


def test_the_start_is_not_written_over(start, tmp_path):
    with pytest.raises(InvalidInputError, match="give another out"):
        run(str(start), out=tmp_path, name="tiny")


def test_a_full_disk_leaves_the_last_checkpoint_whole(start, tmp_path, monkeypatch):
    from vqshield.training import run as module

    whole = run(str(start), out=tmp_path / "whole")
    original, written = module.write_checkpoint, []

    def full(path, tensors, state):
        written.append(path)
        if len(written) == 2:
            monkeypatch.setattr("vqshield.core.files.os.fsync", _no_space)
        original(path, tensors, state)

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_checkpoint", full)
        with pytest.raises(OSError, match="No space left"):
            run(str(start), out=tmp_path / "full")
    monkeypatch.undo()
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["tiny-hardened.checkpoint.safetensors"]
    watcher = Watcher()
    resumed = run(str(start), out=tmp_path / "full", progress=watcher)
    assert watcher.resumed == 1
    assert same(resumed.weights, whole.weights)


def _no_space(_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("lr", [1e30, 1e20])
def test_a_loss_that_is_nan_ends_the_run_and_spares_the_checkpoint(start, tmp_path, lr):
    with pytest.raises(KeyboardInterrupt):
        run(str(start), out=tmp_path / "out", lr=lr, epochs=3, progress=Watcher(stop_in=1))
    with pytest.raises(VqshieldError, match=rf"lower peak_lr=1e\+{len(str(int(lr))) - 1}"):
        run(str(start), out=tmp_path / "out", lr=lr, epochs=3)
    kept = tmp_path / "out" / "tiny-hardened.checkpoint.safetensors"
    if kept.is_file():
        assert all(value.isfinite().all() for value in load_file(kept).values())
    assert not (tmp_path / "out" / "tiny-hardened.safetensors").exists()


def test_it_is_the_training_of_vqshield_train(start, tmp_path):
    """One engine: the same settings end with the same weights, whichever command they were given to."""
    hardened = run(str(start), out=tmp_path / "hardened")
    model = load_classifier(start).requires_grad_(True)
    chosen = settings(shield=SHIELD, ema=0.5)
    trained = train_on(chosen, TRAINING, TEST, out=tmp_path / "trained", model=model)
    assert same(hardened.weights, trained.weights)


def test_another_start_is_another_run(start, sized, tmp_path):
    found = run(str(start), out=tmp_path / "out")
    assert RunFiles(tmp_path / "out", found.settings.name).checkpoint.is_file()
    with pytest.raises(InvalidInputError, match=r"the checkpoint was made with classifier="):
        run(str(sized), out=tmp_path / "out", name="tiny-hardened")


def test_the_accuracy_before_is_that_of_the_start_on_the_same_draws(start, tmp_path):
    found = run(str(start), "gaussian:sigma=0.3", out=tmp_path / "out", epochs=1)
    from vqshield.training.shielding import TrainingShield

    shield = TrainingShield("gaussian:sigma=0.3", seed=0, device=torch.device("cpu"))
    assert accuracy(load_classifier(start), TEST.images, TEST.labels, shield=shield) == found.before

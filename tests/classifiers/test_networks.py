import pytest
import torch
from torch import nn

from vqshield.classifiers import Normalised, build, folded, list_classifiers, small_cifar10
from vqshield.classifiers.folding import fastest_form
from vqshield.core.errors import InvalidInputError

SHAPES = {  # published parameter counts for ten (resnet18, small) and a hundred classes
    ("resnet18", 10): 11_173_962,
    ("wrn28_10", 100): 36_536_884,
}


def noise(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def with_lived_in_norms(network):
    """Norm statistics and scales as training would leave them, not zeros and ones."""
    generator = torch.Generator().manual_seed(1)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight.data, module.running_var):
                tensor.uniform_(0.5, 1.5, generator=generator)
            for tensor in (module.bias.data, module.running_mean):
                tensor.normal_(0, 0.2, generator=generator)
    return network.eval()


@pytest.mark.parametrize(("key", "count"), SHAPES.items())
def test_parameter_counts(key, count):
    name, classes = key
    with torch.device("meta"):
        network = build(name, classes=classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_small_stays_under_a_megabyte_in_fp16():
    assert sum(parameter.numel() for parameter in build("small", classes=10).parameters()) <= 480_000


@pytest.mark.parametrize("name", ["small", "resnet18"])
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_logits_have_one_column_a_class(name, channels, size):
    network = build(name, classes=7, in_channels=channels).eval()
    assert network(noise(2, channels, size, size)).shape == (2, 7)


def test_the_imagenet_stem_halves_twice_and_is_rebuilt_from_its_options():
    network = build("resnet18", classes=7, in_channels=1, stem="imagenet").eval()
    assert network.options == {"stem": "imagenet"}
    shapes = {}
    network.layer1.register_forward_hook(lambda _module, given, _made: shapes.update(layer1=given[0].shape))
    assert network(noise(2, 1, 28, 28)).shape == (2, 7)
    assert shapes["layer1"] == (2, 64, 7, 7)
    assert build("resnet18", classes=7).options == {}  # files of the stem for small images stay as they were
    with pytest.raises(InvalidInputError, match="stem='big' is unknown; choose one of cifar, imagenet"):
        build("resnet18", classes=7, stem="big")


def test_dropout_acts_in_training_alone():
    network = build("wrn28_10", classes=2, dropout=0.3)
    block, x = network.layer3[1].eval(), noise(1, 640, 4, 4)
    assert network.options == {"dropout": 0.3}
    assert torch.equal(block(x), block(x))
    block.train()
    assert not torch.equal(block(x), block(x))
    with pytest.raises(InvalidInputError, match="dropout"):
        build("wrn28_10", classes=2, dropout=1.0)


def test_shortcut_of_a_wide_block_sees_the_activated_input():
    block = with_lived_in_norms(build("wrn28_10", classes=2).layer1[0])
    x = noise(1, 16, 8, 8)
    active = torch.relu(block.bn1(x))
    expected = block.conv2(torch.relu(block.bn2(block.conv1(active)))) + block.shortcut(active)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"widths": [4], "blocks": [0]},
        {"widths": [4, 8], "blocks": [1, 2]},
        {"widths": [4, 8], "blocks": [0, 1], "unshuffle": 2},
    ],
)
def test_small_is_rebuilt_from_its_options(options):
    network = build("small", classes=3, **options)
    again = build("small", classes=3, **network.options)
    assert {key: value.shape for key, value in network.state_dict().items()} == {
        key: value.shape for key, value in again.state_dict().items()
    }
    assert network.eval()(noise(1, 3, 16, 16)).shape == (1, 3)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("resnet19", {}, "'resnet19'.*resnet18"),
        ("small", {"classes": 1}, "classes=1"),
        ("small", {"in_channels": 0}, "in_channels=0"),
        ("small", {"widths": (8, 16)}, r"\(8, 16\)"),
        ("small", {"widths": (), "blocks": ()}, "1 to 16"),
        ("small", {"widths": (8, 0), "blocks": (1, 1)}, r"widths\[1\]=0"),
        ("small", {"widths": (8, 8), "blocks": (1, 0)}, r"blocks\[1\]=0"),
        ("small", {"widths": (8, 8.5), "blocks": (1, 1)}, r"8\.5"),
        ("small", {"unshuffle": 3}, "unshuffle=3"),
        ("resnet18", {"widths": (8,)}, "widths"),
    ],
)
def test_bad_settings_are_named(name, options, named):
    with pytest.raises(InvalidInputError, match=named):
        build(name, **{"classes": 10, **options})


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_folding_leaves_the_function_and_the_original_alone(name):
    model = Normalised(with_lived_in_norms(build(name, classes=5)), mean=[0.5] * 3, std=[0.25] * 3)
    x = noise(4, 3, 32, 32)
    before = model(x)
    fast = folded(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fast.modules())
    torch.testing.assert_close(fast(x), before, rtol=1e-4, atol=1e-4)
    assert torch.equal(model(x), before)


def test_folding_a_wide_block_keeps_its_first_norm():
    block = with_lived_in_norms(build("wrn28_10", classes=2).layer1[0])
    fast = folded(block)
    assert isinstance(fast.bn1, nn.BatchNorm2d)
    assert isinstance(fast.bn2, nn.Identity)
    x = noise(2, 16, 8, 8)
    torch.testing.assert_close(fast(x), block(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bundled", "fresh", "user's"])
def test_the_fastest_form_is_the_same_function(kind):
    classifier = {
        "bundled": small_cifar10(),
        "fresh": Normalised(build("small", classes=10), mean=[0.5] * 3, std=[0.2] * 3).eval(),
        "user's": nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)),
    }[kind]
    x = noise(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(fastest_form(classifier)(x), classifier(x), rtol=1e-4, atol=1e-4)
    assert fastest_form(classifier) is not classifier


def test_normalisation_is_by_channel_and_not_trained():
    model = Normalised(nn.Identity(), mean=[0.1, 0.2], std=[0.5, 0.25])
    x = torch.tensor([0.6, 0.7]).reshape(1, 2, 1, 1)
    torch.testing.assert_close(model(x).flatten(), torch.tensor([1.0, 2.0]))
    assert list(model.parameters()) == []
    assert {name for name, _ in model.named_buffers()} == {"mean", "std"}


@pytest.mark.parametrize(
    ("mean", "std", "named"),
    [([0.1], [0.1, 0.2], "one length"), ([], [], "one length"), ([0.1], [0.0], r"0\.0")],
)
def test_bad_statistics_are_named(mean, std, named):
    with pytest.raises(InvalidInputError, match=named):
        Normalised(nn.Identity(), mean=mean, std=std)


def test_registered_names():
    assert list_classifiers() == ("small", "resnet18", "wrn28_10")

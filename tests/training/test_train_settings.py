import pytest

from vqshield.core.errors import InvalidInputError
from vqshield.training.settings import TRAINABLE, TrainSettings

GOOD = {"data": "cifar10", "arch": "small"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data", "cifar10-sample"),
        ("arch", "vgg"),
        ("epochs", 0),
        ("epochs", 1.5),
        ("batch", 0),
        ("peak_lr", -0.1),
        ("peak_lr", 0.0),
        ("peak_lr", float("nan")),
        ("label_smoothing", 1.5),
        ("cutout", -1),
        ("padding", -1),
        ("ema", 1.0),
        ("seed", -1),
        ("precision", "fp16"),
        ("compile_mode", "yes"),
    ],
)
def test_bad_settings_are_named(name, value):
    with pytest.raises(InvalidInputError, match=name):
        TrainSettings(**{**GOOD, name: value})


def test_digits_are_not_mirrored():
    assert TrainSettings(data="mnist", arch="small").flip is False
    assert TrainSettings(**GOOD).flip is True
    assert TrainSettings(data="mnist", arch="small", flip=True).flip is True


def test_options_compare_as_json_does():
    tuples = TrainSettings(**GOOD, options={"widths": (4, 8)})
    assert tuples == TrainSettings(**GOOD, options={"widths": [4, 8]})
    assert tuples.to_dict()["options"] == {"widths": [4, 8]}


def test_the_sample_cannot_be_trained_on():
    assert TRAINABLE == ("cifar10", "cifar100", "mnist")

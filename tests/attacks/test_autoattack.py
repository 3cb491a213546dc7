import logging
import random
import re
import sys

import numpy as np
import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from toys import Noisy, convnet

import vqshield as vq
from vqshield.attacks import EOT, L2, AutoAttack, Linf, margin
from vqshield.classifiers import small_cifar10
from vqshield.core.errors import MissingExtraError
from vqshield.data import sample

pyautoattack = pytest.importorskip("pyautoattack")


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts stop early, whoever calls it: whole, an unbroken image takes them a minute."""

    class Short(pyautoattack.square.SquareAttack):
        n_queries = property(lambda self: 30, lambda self, value: None)

    monkeypatch.setattr(pyautoattack.autoattack, "SquareAttack", Short)
    for name in ("APGDAttack", "APGDAttack_targeted", "FABAttack_PT"):
        whole = getattr(pyautoattack.autoattack, name)
        monkeypatch.setattr(
            pyautoattack.autoattack, name, lambda *a, whole=whole, **k: whole(*a, **{**k, "n_iter": 10})
        )


def direct(model: nn.Module, images: Tensor, labels: Tensor, norm: str, eps: float, version: str) -> Tensor:
    """pyautoattack, as its authors say to call it."""
    tracer = sys.gettrace()
    try:
        with torch.random.fork_rng():
            attack = pyautoattack.AutoAttack(model, norm=norm, eps=eps, seed=0, version=version)
            return attack.run_standard_evaluation(images, labels, batch_size=250)[0]
    finally:
        sys.settrace(tracer)  # it ends coverage's


@pytest.mark.slow
@pytest.mark.parametrize(("ball", "norm"), [(Linf(2 / 255), "Linf"), (L2(0.25), "L2")], ids=["linf", "l2"])
def test_robust_flags_are_those_of_pyautoattack_itself(ball, norm: str, shortened) -> None:
    """Image 21 is wrong from the start, 0 and 1 are broken, 40 holds out for good."""
    model, data, chosen = small_cifar10(), sample(64), torch.tensor([21, 0, 1, 40])
    images, labels = data.floats()[chosen], data.labels[chosen]
    theirs = direct(model, images, labels, norm, ball.eps, "standard")
    ours = AutoAttack(ball=ball)(model, images, labels)
    right = [(model(found).argmax(1) == labels).tolist() for found in (theirs, ours)]
    assert right[0] == right[1]
    assert 0 < sum(right[0]) < 3, "all alike: the test says little"
    came_back = (theirs == images).flatten(1).all(1)
    assert came_back[0], "it left out what was wrong already"
    assert torch.allclose(ours[~came_back], theirs[~came_back], atol=1e-6)
    assert not (ours == images).flatten(1).all(1).any(), "every image is attacked here"
    assert bool((margin(model(ours), labels) >= margin(model(images), labels)).all())


def test_rand_flags_are_those_of_pyautoattack_itself(shortened) -> None:
    model, images = convnet(), noise_images(8, 3, 16, 16)
    labels = torch.where(torch.arange(8) < 6, model(images).argmax(1), 0)
    theirs = direct(model, images, labels, "Linf", 0.02, "rand")
    ours = AutoAttack(ball=Linf(0.02), version="rand", judgements=1)(model, images, labels)
    right = [model(found).argmax(1) == labels for found in (theirs, ours)]
    assert torch.equal(right[0], right[1])
    assert 0 < int(right[0].sum()) < 8


def test_global_generators_log_output_and_trace_function_are_left_alone(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def tracer(*_: object) -> None:
        return None

    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    model, images, labels = Noisy(convnet(), 0.1), noise_images(4, 3, 16, 16), torch.arange(4)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        with caplog.at_level(logging.DEBUG):
            AutoAttack(ball=Linf(0.1), version="rand", draws=2)(model, images, labels)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    assert not caplog.records
    assert capsys.readouterr() == ("", "")
    assert not logging.getLogger("auto-attack").disabled


def test_generators_are_restored_after_an_error_too() -> None:
    calls = []

    def model(images: Tensor) -> Tensor:
        calls.append(len(images))
        if len(calls) > 20:
            raise RuntimeError("out of order")
        return images.flatten(1)[:, :5]

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of order"):
        AutoAttack(ball=Linf(0.01), version="rand", draws=1)(model, noise_images(2, 3, 8, 8), torch.arange(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not logging.getLogger("auto-attack").disabled


class WrongAtFirst(nn.Module):
    """Wrong about everything while AutoAttack looks at the clean images, and the truth ever after."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self.model(images) * (-1 if self.calls <= 4 else 1)


def test_images_that_one_unlucky_draw_got_wrong_are_attacked() -> None:
    model, images = convnet(), noise_images(16, 3, 16, 16)
    labels = model(images).argmax(1)
    found = AutoAttack(ball=Linf(0.1), version="rand", draws=1)(WrongAtFirst(model), images, labels)
    assert float((model(found).argmax(1) == labels).double().mean()) == 0
    came_back = direct(WrongAtFirst(model), images, labels, "Linf", 0.1, "rand")
    assert torch.equal(came_back, images), "pyautoattack itself does nothing here: the test's premise"


def test_it_works_through_eot_and_a_defense_in_both_precisions() -> None:
    images, labels = noise_images(3, 3, 8, 8), torch.arange(3)
    for dtype in (torch.float32, torch.float64):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            classifier = nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).to(dtype)
        for average in ("gradients", "logits"):
            model = EOT(vq.defend(classifier, "prd", codes=4, seed=1), draws=2, average=average)
            attack = AutoAttack(ball=L2(0.5), version="rand", draws=1)
            found = attack(model, images.to(dtype), labels)
            assert found.dtype == dtype
            assert bool(((found - images).flatten(1).norm(dim=1) > 0.1).all())


def test_fewer_classes_than_its_targets_work_down_to_what_its_losses_need(shortened) -> None:
    images = noise_images(3, 3, 16, 16)
    model = convnet(classes=4)
    labels = model(images).argmax(1)
    assert AutoAttack(ball=Linf(0.001))(model, images, labels).shape == images.shape
    for version, least in (("standard", 4), ("rand", 3)):
        few = convnet(classes=least - 1)
        with pytest.raises(ValueError, match=f"{version!r} needs at least {least} classes, not {least - 1}"):
            AutoAttack(ball=Linf(0.1), version=version)(few, images, torch.zeros(3, dtype=torch.int64))


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    attack = AutoAttack(ball=Linf(0.1))
    with pytest.raises(MissingExtraError, match=re.escape('pip install ".[attacks]" -c constraints.txt')):
        attack(convnet(), noise_images(2, 3, 16, 16), torch.arange(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"version": "plus"}, "version='plus' is unknown; choose one of rand, standard"),
        ({"draws": 0}, "draws=0 should be >= 1"),
        ({"batch": 0}, "batch=0 should be >= 1"),
        ({"judgements": 0}, "judgements=0 should be >= 1"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_settings_are_named(settings, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        AutoAttack(ball=Linf(0.1), **settings)

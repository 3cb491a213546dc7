"""A shield among ART's preprocessing defences: the gradient of a Defended model, under ART's own attacks."""

import numpy as np
import pytest
import torch
from torch import nn

import vqshield as vq

pytest.importorskip("art.attacks.evasion", reason="the Adversarial Robustness Toolbox is not installed")

from art.attacks.evasion import (
    AutoAttack,
    AutoProjectedGradientDescent,
    HopSkipJump,
    ProjectedGradientDescent,
    SquareAttack,
)
from art.estimators.classification import PyTorchClassifier
from art.preprocessing.standardisation_mean_std import StandardisationMeanStdPyTorch

from vqshield.integrations.art import ShieldPreprocessor


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 10)).eval()


def estimator(model: nn.Module, *, shape=(3, 12, 12), high=1.0, defences=()) -> PyTorchClassifier:
    return PyTorchClassifier(
        model, nn.CrossEntropyLoss(), shape, 10, clip_values=(0.0, high), device_type="cpu",
        preprocessing_defences=list(defences) or None,
    )  # fmt: skip


@pytest.fixture
def images(natural) -> np.ndarray:
    return natural[:3, :, :12, :12].numpy()


LABELS = np.eye(10, dtype=np.float32)[[1, 2, 3]]


@pytest.mark.parametrize("surrogate", ["ste", "soft"])
def test_the_gradient_is_that_of_a_defended_model(images, surrogate: str) -> None:
    shield = ShieldPreprocessor("swrd:codes=6", surrogate=surrogate, seed=5, device_type="cpu")
    defended = vq.defend(network(), "swrd", codes=6, seed=5, surrogate=surrogate)
    theirs = estimator(network(), defences=[shield]).loss_gradient(images, LABELS)
    ours = estimator(defended).loss_gradient(images, LABELS)
    assert np.abs(ours).max() > 1e-4
    assert np.abs(theirs - ours).max() < 1e-6


def test_it_stands_in_a_chain_and_takes_bytes(images) -> None:
    shield = ShieldPreprocessor("prd:codes=6", seed=5, clip_values=(0.0, 255.0), device_type="cpu")
    scale = StandardisationMeanStdPyTorch(mean=0.0, std=255.0, device_type="cpu")
    chained = estimator(network(), high=255.0, defences=[shield, scale])
    expected = vq.defend(network(), "prd", codes=6, seed=5)(torch.from_numpy(images)).detach().numpy()
    assert np.allclose(chained.predict(images * 255), expected, atol=1e-3)


def test_channels_may_come_last_and_labels_pass(images) -> None:
    last = ShieldPreprocessor("prd:codes=6", seed=5, channels_first=False, device_type="cpu")
    first = ShieldPreprocessor("prd:codes=6", seed=5, device_type="cpu")
    found, labels = last(images.transpose(0, 2, 3, 1).copy(), LABELS)
    assert np.array_equal(found.transpose(0, 3, 1, 2), first(images)[0])
    assert np.array_equal(labels, LABELS)


@pytest.mark.parametrize("name", ["pgd", "square", "hopskipjump", "autoattack"])
def test_attacks_of_art_run_through_it(images, name: str) -> None:
    if name == "autoattack":
        pytest.importorskip("multiprocess", reason="ART's AutoAttack needs multiprocess, and does not say so")
    target = estimator(network(), defences=[ShieldPreprocessor("prd:codes=6", seed=5, device_type="cpu")])
    apgd = AutoProjectedGradientDescent(target, eps=0.1, max_iter=3, nb_random_init=1, verbose=False)
    attack = {
        "autoattack": lambda: AutoAttack(target, eps=0.1, eps_step=0.05, attacks=[apgd]),
        "pgd": lambda: ProjectedGradientDescent(target, eps=0.1, eps_step=0.05, max_iter=3, verbose=False),
        "square": lambda: SquareAttack(target, eps=0.1, max_iter=3, nb_restarts=1, verbose=False),
        "hopskipjump": lambda: HopSkipJump(target, max_iter=1, max_eval=10, init_eval=2, verbose=False),
    }[name]()
    found = attack.generate(images, y=None if name == "hopskipjump" else LABELS)
    assert found.shape == images.shape
    assert np.isfinite(found).all()
    if name != "hopskipjump":
        assert np.abs(found - images).max() <= 0.1 + 1e-6


def test_a_range_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="clip_values"):
        ShieldPreprocessor(clip_values=(1.0, 0.0))


def test_it_stands_before_an_object_detector() -> None:
    try:
        from torchvision.models import detection
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no torchvision that fits this torch: {error}")
    from art.estimators.object_detection import PyTorchObjectDetector

    torch.manual_seed(0)
    network = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64
    )
    images = np.random.default_rng(0).random((1, 3, 64, 64), dtype=np.float32)
    box = {"boxes": np.array([[4, 4, 40, 40]], np.float32), "labels": np.array([1]), "scores": np.ones(1)}

    def gradient(images: np.ndarray, *defences: ShieldPreprocessor) -> np.ndarray:
        torch.manual_seed(1)  # the detector samples its proposals
        detector = PyTorchObjectDetector(
            network, input_shape=(3, 64, 64), clip_values=(0, 1), channels_first=True, device_type="cpu",
            preprocessing_defences=list(defences) or None,
        )  # fmt: skip
        return detector.loss_gradient(images, [box])

    shield = ShieldPreprocessor("prd:codes=8", seed=5, device_type="cpu")
    shielded = vq.PRD(codes=8, seed=5)(torch.from_numpy(images)).numpy()
    found = gradient(images, shield)
    assert np.abs(found).max() > 0
    assert np.array_equal(found, gradient(shielded))  # ste: the gradient there, handed on

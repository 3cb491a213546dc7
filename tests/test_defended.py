import os
import subprocess
import sys
import warnings

import pytest
import torch
from conftest import noise_images
from torch import nn

import vqshield as vq


def classifier() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)).eval()


def test_logits_are_the_classifiers_on_the_quantized_images(defense_name: str) -> None:
    model = vq.defend(classifier(), defense_name, seed=3)
    images, streams = noise_images(4, 3, 16, 16), torch.arange(4)
    quantized = model.defense(images, streams=streams)
    assert torch.equal(model(images, streams=streams), model.classifier(quantized))


def test_ste_gradient_is_the_classifiers_gradient_at_the_quantized_image(defense_name: str) -> None:
    model = vq.defend(classifier(), defense_name, surrogate="ste", seed=3)
    images, streams = noise_images(4, 3, 16, 16).requires_grad_(), torch.arange(4)
    weights = noise_images(4, 10, seed=1)
    (through,) = torch.autograd.grad((model(images, streams=streams) * weights).sum(), images)
    quantized = model.defense(images.detach(), streams=streams).requires_grad_()
    (direct,) = torch.autograd.grad((model.classifier(quantized) * weights).sum(), quantized)
    assert float(direct.abs().max()) > 1e-3
    assert float((through - direct).abs().max()) <= 1e-6


def test_a_backward_of_ones_own_is_used() -> None:
    def halved(images: torch.Tensor, quantized: torch.Tensor) -> torch.Tensor:
        return quantized + 0.5 * (images - images.detach())

    images, streams = noise_images(2, 3, 16, 16).requires_grad_(), torch.arange(2)
    gradients = []
    for surrogate in ("ste", halved):
        model = vq.Defended(classifier(), vq.PRD(seed=1), surrogate=surrogate)
        gradients.append(torch.autograd.grad(model(images, streams=streams).sum(), images)[0])
    assert torch.allclose(gradients[1], gradients[0] / 2, atol=1e-7)


def test_defend_is_defended_in_one_line() -> None:
    images, streams = noise_images(2, 3, 16, 16), torch.arange(2)
    network = classifier()
    short = vq.defend(network, "swrd", size=2, codes=5, seed=4)
    long = vq.Defended(network, vq.SWRD(size=2, codes=5, seed=4), surrogate="ste")
    assert torch.equal(short(images, streams=streams), long(images, streams=streams))


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 16 * 16, 10))


def test_a_classifier_with_batch_norms_in_training_mode_is_warned_of() -> None:
    network = normalised().train()
    with pytest.warns(UserWarning, match=r"Sequential is in training mode: its batch norms .* call eval"):
        model = vq.defend(network, "swrd", seed=0)
    model(noise_images(4, 3, 16, 16))
    assert float(network[0].running_mean.abs().max()) > 0, "what the warning is about"


@pytest.mark.parametrize(
    "network",
    [normalised().eval(), classifier().train(), nn.Sequential(normalised().eval(), nn.Dropout())],
    ids=["evaluating", "no batch norm", "frozen batch norm"],
)
def test_other_classifiers_are_defended_without_a_warning(network: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vq.defend(network, "swrd", seed=0)
        vq.Defended(normalised().train(), vq.SWRD())  # as training behind a defense does


def test_parameters_receive_gradients_in_training() -> None:
    model = vq.defend(classifier(), "prd", seed=1)
    model(noise_images(2, 3, 16, 16)).sum().backward()
    assert all(p.grad is not None for p in model.classifier.parameters())


def test_a_plain_function_may_be_the_classifier() -> None:
    model = vq.Defended(lambda x: x.mean((2, 3)), vq.RandDisc(seed=1))
    assert model(noise_images(2, 3, 16, 16)).shape == (2, 3)


def test_public_names_are_there() -> None:
    for name in vq.__all__:
        assert hasattr(vq, name)
    assert vq.list_defenses() == ["randdisc", "prd", "swrd"]
    assert vq.__version__[0].isdigit()


def test_the_core_imports_without_extras() -> None:
    extras = ["PIL", "typer", "rich", "jinja2", "matplotlib"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({extras!r}))\n"
        "import vqshield, vqshield.attacks, vqshield.models.draws\n"
        "import vqshield.data, vqshield.classifiers, vqshield.training"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


_FORKED = """
import os, signal, sys, torch, vqshield as vq

torch.set_num_threads(2)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.Flatten(), torch.nn.LazyLinear(10))
layout = torch.channels_last if sys.argv[1] == "channels_last" else torch.contiguous_format
images = torch.rand(64, 3, 64, 64).to(memory_format=layout).requires_grad_(sys.argv[1] == "gradient")
model = vq.defend(network, sys.argv[2])

def work():
    logits = model(images)
    if images.requires_grad:
        logits.sum().backward()
    return bool(logits.isfinite().all())

assert work()
child = os.fork()
if child == 0:
    signal.alarm(60)  # a child that hangs is killed, and fails the test
    os._exit(0 if work() else 1)
assert os.waitpid(child, 0)[1] == 0, "the child hangs"
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize(
    ("how", "defense"),
    [
        ("channels_last", "swrd:size=4,codes=8"),
        ("image noise", "swrd:size=4,codes=8,noise=image"),
        ("gaussian", "gaussian:sigma=0.1"),
        ("gradient", "gaussian:sigma=0.1"),
    ],
)
def test_a_forked_child_works_after_torch_used_its_threads(how: str, defense: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, how, defense],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""Gradients in less precision: answers stay what they are, gradients point the same way."""

import copy
from types import SimpleNamespace

import pytest
import torch
from conftest import noise_images
from torch import nn
from toys import convnet

from vqshield.attacks import PRECISIONS, FastAnswers, FastGradients
from vqshield.attacks.losses import cross_entropy
from vqshield.attacks.precision import _Graph, _Graphs, _rounded_up
from vqshield.core.errors import InvalidInputError
from vqshield.defenses import GaussianNoise
from vqshield.models.calling import gradient

FAST = PRECISIONS[1:]


def slopes(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    points = images.clone().requires_grad_()
    return gradient(cross_entropy(model(points), labels), points)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_answers_are_the_classifiers_to_the_bit(precision: str) -> None:
    model, images = convnet(), noise_images(4, 3, 16, 16)
    assert torch.equal(FastGradients(model, precision)(images), model(images))
    points = images.clone().requires_grad_()
    with torch.no_grad():  # as an attack judges its candidates
        assert torch.equal(FastGradients(model, precision)(points), model(points))


@pytest.mark.parametrize("precision", FAST)
def test_gradients_point_the_same_way_and_are_float32(precision: str) -> None:
    model, images, labels = convnet(), noise_images(4, 3, 16, 16), torch.arange(4)
    found, exact = slopes(FastGradients(model, precision), images, labels), slopes(model, images, labels)
    assert found.dtype == torch.float32
    assert bool((torch.cosine_similarity(found.flatten(1), exact.flatten(1)) > 0.995).all())


def test_bfloat16_rounds_and_float32_does_not() -> None:
    model, images, labels = convnet(), noise_images(4, 3, 16, 16), torch.arange(4)
    exact = slopes(model, images, labels)
    assert torch.equal(slopes(FastGradients(model, "float32"), images, labels), exact)
    assert not torch.equal(slopes(FastGradients(model, "bf16"), images, labels), exact)


def test_answers_alone_are_rounded_too_where_that_is_asked_for() -> None:
    model, images, labels = convnet(), noise_images(4, 3, 16, 16), torch.arange(4)
    exact = model(images).detach()
    assert torch.equal(FastAnswers(model, "float32")(images), exact)
    for precision in FAST:
        found = FastAnswers(model, precision)(images)
        assert found.dtype == torch.float32
        assert not found.requires_grad
        assert torch.allclose(found, exact, atol=0.02 * float(exact.abs().max()))
    assert not torch.equal(FastAnswers(model, "bf16")(images), exact)
    assert torch.equal(slopes(FastAnswers(model, "bf16"), images, labels), slopes(model, images, labels))


def test_the_classifier_itself_is_left_as_it_was() -> None:
    model = convnet()
    before = copy.deepcopy(model.state_dict())
    fast = FastGradients(model, "bf16")
    slopes(fast, noise_images(2, 3, 16, 16), torch.arange(2))
    assert [each.dtype for each in fast.parameters()] == [each.dtype for each in model.parameters()]
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())


def test_a_random_layer_makes_no_draw_twice() -> None:
    """Judgements would otherwise see the draws that the gradients came from."""
    defense = GaussianNoise(sigma=0.1, seed=0, surrogate="ste")
    model = nn.Sequential(defense, convnet())
    images = noise_images(2, 3, 16, 16)
    slopes(FastGradients(model, "bf16"), images, torch.arange(2))
    assert defense.streams(images).tolist() == [2, 3]


def test_what_cannot_be_copied_and_what_is_no_module_is_asked_as_it_is() -> None:
    class Uncopyable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = convnet()

        def __deepcopy__(self, memo: object) -> None:
            raise TypeError("it holds a lock")

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.inner(images)

    images, labels, network = noise_images(2, 3, 16, 16), torch.arange(2), convnet()
    for model in (Uncopyable(), lambda pixels: network(pixels)):
        found = slopes(FastGradients(model, "bf16"), images, labels)
        exact = slopes(network, images, labels)
        assert bool((torch.cosine_similarity(found.flatten(1), exact.flatten(1)) > 0.99).all())


def test_what_fails_in_the_classifier_is_told_as_it_is() -> None:
    """Not that its weights are bfloat16, which is our doing."""
    with pytest.raises(RuntimeError, match="expected input"):
        slopes(FastGradients(convnet(), "bf16"), noise_images(2, 1, 16, 16), torch.arange(2))


def test_an_unknown_precision_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        InvalidInputError, match="precision='fp8' is unknown; choose one of bf16, float32, tf32"
    ):
        FastGradients(convnet(), "fp8")


def test_weights_that_changed_are_noticed_by_the_next_attack() -> None:
    """The prepared copy is kept for attack after attack on a classifier; training in between counts."""
    model, images, labels = convnet(), noise_images(2, 3, 16, 16), torch.arange(2)
    before = slopes(FastGradients(model, "bf16"), images, labels)
    assert torch.equal(slopes(FastGradients(model, "bf16"), images, labels), before)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert not torch.equal(slopes(FastGradients(model, "bf16"), images, labels), before)


def test_norms_that_changed_are_noticed_too() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(3)).eval()
    images, labels = noise_images(2, 3, 8, 8), torch.arange(2)
    model(images)
    before = slopes(FastGradients(model, "bf16"), images, labels)
    model[1].running_var.mul_(4)
    assert not torch.equal(slopes(FastGradients(model, "bf16"), images, labels), before)


def test_hooks_of_the_classifier_are_run_once_for_each_call() -> None:
    """Progress bars count images by them, and they may come and go."""
    model, images, seen = convnet(), noise_images(2, 3, 16, 16), list[int]()
    fast = FastGradients(model, "bf16")
    for _ in range(2):
        handle = model.register_forward_hook(lambda *given: seen.append(len(given[2])))
        slopes(fast, images, torch.arange(2))
        handle.remove()
        slopes(fast, images, torch.arange(2))
    assert seen == [2, 2]
    model.register_forward_hook(lambda module, given, logits: 0 * logits)
    assert float(slopes(fast, images, torch.arange(2)).abs().max()) == 0


class Replays:
    """Captured passes as a GPU replays them, on a CPU: all in one memory, which a backward pass uses up."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.memory = network, list[torch.Tensor]()

    def capture(self, images: torch.Tensor, rows: int) -> _Graph:
        held = torch.zeros(rows, *images.shape[1:])
        logits = self.network(held).detach()
        slopes, found = torch.zeros_like(logits), torch.zeros_like(held)

        def forward() -> None:
            self.memory[:] = [held.clone().requires_grad_()]
            logits.copy_(self.network(self.memory[0]).detach())

        def backward() -> None:
            with torch.enable_grad():
                (there,) = torch.autograd.grad(self.network(self.memory[0]), self.memory[0], slopes)
            found.copy_(there)
            self.memory.clear()

        passes = (SimpleNamespace(replay=each) for each in (forward, backward))
        return _Graph(*passes, held, logits, slopes, found)


def test_captured_passes_may_be_asked_in_any_order() -> None:
    network, labels = convnet(), torch.arange(3)
    graphs = _Graphs(network)
    graphs._capture = Replays(network).capture
    one, two = (noise_images(7, 3, 16, 16)[some].requires_grad_() for some in (slice(3), slice(3, 6)))
    first, second = graphs.logits(one, 4), graphs.logits(two, 6)  # the second is on top of the first
    assert torch.allclose(first, network(one), atol=1e-6)
    losses = [cross_entropy(each, labels).sum() for each in (first, second)]
    for image, loss in ((one, losses[0]), (two, losses[1]), (one, losses[0])):
        (found,) = torch.autograd.grad(loss, image, retain_graph=True)
        assert torch.allclose(found, slopes(network, image.detach(), labels), atol=1e-5)


def test_what_cannot_be_captured_is_computed_as_ever() -> None:
    graphs, asked = _Graphs(convnet()), []

    def capture(images: torch.Tensor, rows: int) -> _Graph:
        asked.append(rows)
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs._capture = capture
    images = noise_images(2, 3, 16, 16).requires_grad_()
    assert graphs.logits(images, 32) is None
    assert graphs.logits(images, 32) is None
    assert asked == [32], "it is tried once"


@pytest.mark.parametrize(("count", "rows"), [(1, 32), (32, 32), (33, 48), (49, 64), (65, 96), (200, 256)])
def test_few_sizes_of_batch_are_captured(count: int, rows: int) -> None:
    assert _rounded_up(count) == rows

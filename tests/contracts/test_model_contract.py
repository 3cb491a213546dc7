"""Every verb takes a classifier of any dtype, and labels and images as tensors, NumPy arrays or lists."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.auditing import AuditSettings
from vqshield.core.errors import InvalidInputError
from vqshield.ladders.settings import LadderSettings
from vqshield.runs.target import Target

IMAGES = (noise_images(6, 3, 16, 16) * 255).round() / 255  # harden keeps bytes
CLASSES = 5
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FEW_PROBES = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)
FEW_RUNGS = LadderSettings(
    calls=(100,), draws=(1,), ignorant="pgd:steps=1,surrogate=none", suite="pgd:steps=1", runs=2, selection=2
)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        flat = nn.Flatten(), nn.Linear(4 * 14 * 14, CLASSES)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *flat).eval()


def labels() -> Tensor:
    """Four of six right."""
    with torch.no_grad():
        classes = network()(IMAGES).argmax(1)
    return torch.cat([classes[:4], (classes[4:] + 1) % CLASSES])


def evaluated(model: nn.Module, images: Any, labels: Any, _: Path) -> float:
    found = vq.evaluate(model, images, labels, attacks="pgd:steps=2", defense="prd:codes=4", samples=2)
    assert len(found.rows) == 4
    return found.rows[0].mean


def certified(model: nn.Module, images: Any, labels: Any, _: Path) -> None:
    few = {"bound_samples": 8, "selection": 8, "samples": 16}
    vq.certify(model, images, labels, defense="prd:codes=4", attack="pgd:steps=1", **few)


def audited(model: nn.Module, images: Any, labels: Any, _: Path) -> None:
    vq.audit(model, images, labels, defense="prd:codes=4", attacks="pgd:steps=1", settings=FEW_PROBES)


def climbed(model: nn.Module, images: Any, labels: Any, _: Path) -> float:
    found = vq.ladder(model, images, labels, defense="none", settings=FEW_RUNGS)
    return found.rows[0].mean


def hardened(model: nn.Module, images: Any, labels: Any, folder: Path) -> float:
    found = vq.harden(
        model, "none", images, labels, test=(images, labels), epochs=1, batch=2, out=folder, device="cpu"
    )
    return found.before


VERBS = {
    "evaluate": evaluated,
    "certify": certified,
    "audit": audited,
    "ladder": climbed,
    "harden": hardened,
}


@pytest.fixture(params=list(VERBS))
def verb(request: pytest.FixtureRequest) -> Callable[..., float | None]:
    """Every verb in turn; it returns the clean accuracy where it reports that of the bare classifier."""
    return VERBS[request.param]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_classifier_of_any_dtype_is_measured_in_it(
    verb: Callable[..., float | None], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = network().to(dtype)
    accuracy = verb(model, IMAGES, labels(), tmp_path)
    assert accuracy is None or accuracy == pytest.approx(4 / 6)
    assert {each.dtype for each in model.parameters()} == {dtype}, "the classifier is left as it is"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_reach_images_through_half_precision(dtype: torch.dtype) -> None:
    def slope(model: Callable[[Tensor], Tensor]) -> Tensor:
        images = IMAGES.clone().requires_grad_()
        logits = model(images)
        assert logits.dtype == torch.float32
        (found,) = torch.autograd.grad(logits.sum(), images)
        return found

    held = Target.in_memory(network().to(dtype), IMAGES, labels()).model
    alike = torch.cosine_similarity(slope(held).flatten(), slope(network()).flatten(), dim=0)
    assert float(alike) > 0.999


@pytest.mark.parametrize(
    "given",
    [lambda y: y.numpy(), lambda y: y.tolist(), lambda y: y.int().numpy(), lambda y: y.to(torch.uint8)],
    ids=["numpy", "list", "int32", "uint8"],
)
def test_labels_may_be_arrays_and_lists(
    verb: Callable[..., float | None], given: Any, tmp_path: Path
) -> None:
    accuracy = verb(network(), IMAGES.numpy(), given(labels()), tmp_path)
    assert accuracy is None or accuracy == pytest.approx(4 / 6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (labels().bool(), "labels of dtype torch.bool should be whole numbers"),
        (labels().bool().tolist(), "labels of dtype torch.bool should be whole numbers"),
        (labels().float(), "labels of dtype torch.float32 should be whole numbers"),
        (["cat"] * 6, "labels of type list should be numbers in a tensor, a NumPy array or a list"),
    ],
)
def test_other_labels_are_refused(
    verb: Callable[..., float | None], given: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        verb(network(), IMAGES, given, tmp_path)


def test_weights_without_values_are_refused(verb: Callable[..., float | None], tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"0\.weight is on the device meta.*to_empty"):
        verb(network().to("meta"), IMAGES, labels(), tmp_path)


def test_quantized_layers_are_refused(verb: Callable[..., float | None], tmp_path: Path) -> None:
    """Behind a defense their missing gradient would be taken for zero, and the attack for a failed one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces a successor
        model = torch.ao.quantization.quantize_dynamic(network(), {nn.Linear})
    with pytest.raises(InvalidInputError, match=r"layer '3' is a quantized Linear.*before its quantization"):
        verb(model, IMAGES, labels(), tmp_path)

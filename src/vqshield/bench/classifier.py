"""How long the classifier behind the shield takes: ResNet18's forward pass in its fastest form here."""

from collections.abc import Callable
from typing import Any

import torch

from vqshield.bench.timing import measure, reason
from vqshield.bench.workloads import Workload, pictures

NAME = "resnet18"
_BATCHES = {"cpu": 64, "cuda": 8192}
SHIELDED = Workload(name="cifar")  # the images that a ResNet18 of this library is made for


def forwards(
    device: torch.device, *, budget: float, compiled: bool, batch: int | None = None
) -> dict[str, Any]:
    """Images a second in the fastest form: norms folded, channels last; float32 on a CPU, bf16 on a GPU."""
    from vqshield.classifiers import build, folded  # needs safetensors, which no other figure does

    images = pictures(SHIELDED, batch or _BATCHES[device.type], device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.random.fork_rng(devices=[]):
        network = build(NAME, classes=10)  # random weights: speed does not depend on them
    plain, last = (folded(network).to(device, dtype) for _ in range(2))
    last = last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    forms: dict[str, tuple[Callable[..., torch.Tensor], torch.Tensor]] = {"eager": (plain, images.to(dtype))}
    stacked = images.to(dtype).contiguous(memory_format=torch.channels_last)
    forms["channels-last"] = last, stacked
    if compiled:
        forms["compiled"] = torch.compile(last, dynamic=False), stacked
    rates: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, (model, given) in forms.items():
        try:
            rates[name] = _rate(model, given, device, budget)
        except Exception as error:  # a compiler that is not there must not end the run
            failed[name] = reason(error)
    best = max(rates, key=lambda form: rates[form])
    return {
        "classifier": NAME,
        "form": best,
        "precision": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "batch": len(images),
        "images_per_second": rates[best],
        "forms": rates,
        "failed": failed,
    }


@torch.inference_mode()
def _rate(
    model: Callable[..., torch.Tensor], images: torch.Tensor, device: torch.device, budget: float
) -> float:
    _, timing = measure(lambda: model(images), device=device, budget=budget)
    return len(images) / timing.median

"""What speeds are compared with: the most that the machine can do, and the classifier that is shielded."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import convert_conv2d_weight_memory_format

from vqshield.quantization.noise import Draw, Stage
from vqshield_paper.speed.record import ClassifierSpeed, Peak
from vqshield_paper.speed.timing import limited_threads, measure, reason
from vqshield_paper.speed.workloads import Workload, pictures

CLASSIFIER = "resnet18"
SHIELDED = Workload(name="cifar")  # the images that a ResNet18 of this library is made for
_BATCHES = {"cpu": 64, "cuda": 8192}
_SIDE = {"cpu": 1536, "cuda": 8192}  # of the matrices
_BYTES = {"cpu": 2**27, "cuda": 2**31}  # copied at once, far more than the caches hold
_STREAMS, _NORMALS = 64, 24300  # as many as 64 CIFAR images with 3×3 windows need


def measure_peak(device: torch.device, *, threads: int, budget: float, scale: int = 1) -> Peak:
    """Operations, bytes and Gaussian values a second, at their best; scale divides the work, for a test."""
    dtypes = {"float32": torch.float32}
    if device.type == "cuda":
        dtypes |= {"bfloat16": torch.bfloat16}
    side, streams = _SIDE[device.type] // scale, _STREAMS // scale

    def best(call: Callable[[], Tensor]) -> float:
        return measure(call, device=device, budget=budget)[1].best

    def product(dtype: torch.dtype) -> float:  # float32 in full precision: torch's default
        left, right = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
        result = torch.empty_like(left)
        return 2 * side**3 / best(lambda: torch.mm(left, right, out=result)) / 1e9

    source = torch.ones(_BYTES[device.type] // scale // 4, device=device)
    target = torch.empty_like(source)
    draw = Draw(0, torch.arange(streams, device=device))
    state = torch.Generator(device).manual_seed(0)  # the global one is not advanced
    values = torch.empty(streams * _NORMALS, device=device)
    with limited_threads(threads):
        return Peak(
            threads=threads,
            gflops={name: product(dtype) for name, dtype in dtypes.items()},
            copy_gbytes=2 * source.nbytes / best(lambda: target.copy_(source)) / 1e9,  # read and written
            normals=values.numel() / best(lambda: draw.normals(Stage.CODEBOOK, 0, _NORMALS)),
            torch_normals=values.numel() / best(lambda: values.normal_(generator=state)),
        )


def measure_classifier(
    device: torch.device, *, threads: int, budget: float, compiled: bool, batch: int | None = None
) -> ClassifierSpeed:
    """ResNet18's forward pass in its fastest form: norms folded; float32 on a CPU, bfloat16 on a GPU."""
    from vqshield.classifiers import build, folded  # needs safetensors, which nothing else here does

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    images = pictures(SHIELDED, batch or _BATCHES[device.type], device).to(dtype)
    with torch.random.fork_rng(devices=[]):
        network = build(CLASSIFIER, classes=10)  # random weights: speed does not depend on them
    plain, last = (folded(network).to(device, dtype) for _ in range(2))
    last = convert_conv2d_weight_memory_format(last, torch.channels_last)
    stacked = images.contiguous(memory_format=torch.channels_last)
    forms: dict[str, tuple[Callable[..., Tensor], Tensor]] = {
        "eager": (plain, images),
        "channels-last": (last, stacked),
    }
    if compiled:
        forms["compiled"] = torch.compile(last, dynamic=False), stacked
    rates: dict[str, float] = {}
    failed: dict[str, str] = {}
    with limited_threads(threads), torch.inference_mode():
        for name, (model, given) in forms.items():
            try:
                _, timing = measure(partial(model, given), device=device, budget=budget)
                rates[name] = len(images) / timing.median
            except Exception as error:  # a compiler that is not there must not end the run
                failed[name] = reason(error)
    best = max(rates, key=lambda form: rates[form])
    return ClassifierSpeed(
        classifier=CLASSIFIER,
        form=best,
        precision=str(dtype).removeprefix("torch."),
        threads=threads,
        batch=len(images),
        images_per_second=rates[best],
        forms=rates,
        failed=failed,
    )

"""The soft surrogate's gradient on a GPU, for benchmarks/surrogates.py --device cuda.

1. Each kind of quantizer against autograd of the formula in float64; bits of a repeated call, and of an image
   alone.
2. Seconds and peak memory of the formula and of the kernel, forward and backward; the kernel at 328×328.
3. The kernel's block sizes.
4. What a draw is made of, and a step of adversarial training with and without the shield: its milliseconds,
   for how many of them the GPU has nothing to do, and what it does in the others.
5. Whole epochs of adversarial fine-tuning by vqshield's Trainer, on made-up images, with and without the
   shield in turns: seconds, and how many times as long.

--only takes some of GROUPS, as in --only epochs,idle. Every check catches its own failure and the next one
follows. Kernels are compiled by processes side by side first, into a folder of their own that this program
deletes.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import vqshield as vq
from vqshield.core import checks
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.data import ImageSet
from vqshield.surrogates import Shielding, Soft
from vqshield.surrogates.soft import cut
from vqshield.training.settings import TrainSettings
from vqshield.training.trainer import Trainer, fast_convolutions

PLACE = torch.device("cuda")
BATCH = 512
SWRD = "swrd:size=3,codes=25"
LARGE = "swrd:size=3,codes=30"
CASES: dict[str, tuple[str, Soft]] = {
    "swrd": (SWRD, Soft()),
    "swrd constant": (SWRD, Soft(centres="constant")),
    "swrd drawn": (SWRD, Soft(noise="drawn")),
    "swrd noisy weights": (f"{SWRD},weights_from=noisy,tau=0.05", Soft(noise="drawn")),
    "swrd noise on the image": (f"{SWRD},noise=image", Soft(noise="drawn")),
    "swrd 35 codes": ("swrd:size=3,codes=35", Soft()),
    "swrd 90 codes": ("swrd:size=3,codes=90", Soft()),
    "swrd 35 codes, unrolled": ("swrd:size=3,codes=35", Soft(centres="unrolled")),
    "swrd 90 codes, unrolled, drawn": ("swrd:size=3,codes=90", Soft(centres="unrolled", noise="drawn")),
    "swrd 256 codes": ("swrd:size=3,codes=256", Soft()),
    "swrd 5x5": ("swrd:size=5,codes=25", Soft()),
    "prd": ("prd:size=2,codes=25", Soft()),
    "prd drawn, constant, padded": ("prd:size=3,codes=25", Soft(noise="drawn", centres="constant")),
    "randdisc": ("randdisc:codes=25", Soft()),
    "swrd unrolled": (SWRD, Soft(centres="unrolled")),
}
TUNINGS: dict[str, dict[str, int | str]] = {
    "as it is": {},
    "ieee": {"precision": "ieee"},
    "all registers": {"registers": 0},
    "128 registers": {"registers": 128},
    "200 registers": {"registers": 200},
    "unroll 9": {"unroll": 9},
    "unroll 9, 200 registers": {"unroll": 9, "registers": 200},
    "pull 16, 2 warps": {"pull_rows": 16, "pull_warps": 2},
    "mix 32, 1 warp": {"mix_rows": 32, "mix_warps": 1},
    "mix 128, 4 warps": {"mix_rows": 128, "mix_warps": 4},
}
SHIELDS = {
    "no shield": (None, "none"),
    "soft": (SWRD, "soft"),
    "soft, 10 iterations from random patches": (f"{SWRD},init=random,iterations=10", "soft"),
    "soft, constant centres": (SWRD, "soft,centres=constant"),
    "ste": (SWRD, "ste"),
    "shown behind the shield, attacked without it": (SWRD, "none"),
}


@dataclass
class Findings:
    """What was found, and what failed."""

    checks: dict[str, dict[str, float | bool]] = field(default_factory=dict)
    costs: dict[str, dict[str, float]] = field(default_factory=dict)
    tunings: dict[str, dict[str, float]] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    steps: dict[str, dict[str, float]] = field(default_factory=dict)
    idle: dict[str, dict[str, float]] = field(default_factory=dict)
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)
    epochs: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def attempt(self, name: str, work: Callable[[], None], *, until: float = float("inf")) -> None:
        """Do it, if there is time; a failure is written down, and ends nothing else."""
        if time.monotonic() > until:
            self.failures[name] = "there was no time left"
            return
        try:
            work()
        except Exception as error:  # whatever it is, the next check may still tell something
            self.failures[name] = f"{type(error).__name__}: {str(error)[-300:]}"
            traceback.print_exc(limit=-3)
        torch.cuda.empty_cache()


def pictures(count: int, side: int) -> Tensor:
    """Images that are smooth in places, as photographs are: noise of several scales. Always the same ones."""
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros(count, 3, side, side)
    for cells, weight in ((2, 0.5), (5, 0.3), (11, 0.2), (side, 0.05)):
        grey = torch.rand(count, 1, cells, cells, generator=generator)
        colour = torch.rand(count, 3, cells, cells, generator=generator)
        total += weight * F.interpolate(0.6 * grey + 0.4 * colour, (side, side), mode="bilinear")
    middle, spread = (f(total, dim=(1, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
    return ((total - middle) / (4 * spread) + 0.5).clamp(0, 1)


def batch_of(count: int, side: int) -> Tensor:
    """As many images on the GPU; after 64, or after 8 large ones, come the same ones again."""
    few = min(count, 64 if side <= 64 else 8)
    return pictures(few, side).repeat(-(-count // few), 1, 1, 1)[:count].to(PLACE)


def quantizer(text: str) -> vq.Quantizer:
    made = vq.defenses.from_text(text, seed=5)
    assert isinstance(made, vq.Quantizer)
    return made


def drawn(defense: vq.Quantizer, images: Tensor) -> Shielding:
    """One draw. Its centres are patches from all over the image, which no k-means must find first; the values
    of its images do not matter to a gradient."""
    streams = torch.arange(len(images), device=images.device)
    count = defense.grid.count(*images.shape[2:])
    places = torch.linspace(0, count - 1, defense.codes).long().to(images.device)
    centres = torch.cat([cut(defense, part)[:, places] for part in images.split(8)])
    return Shielding(images, images, defense, streams, centres)


def pulled(found: Tensor, shielding: Shielding, slopes: Tensor) -> Tensor:
    return torch.autograd.grad(found, shielding.images, slopes)[0]


def gradient(soft: Soft, shielding: Shielding, slopes: Tensor) -> Tensor:
    """Through attach: the kernel, where there is one."""
    given = replace(shielding, images=shielding.images.detach().requires_grad_())
    return pulled(soft.attach(given), given, slopes)


def formula(soft: Soft, shielding: Shielding, slopes: Tensor, dtype: torch.dtype) -> Tensor:
    assert shielding.centres is not None
    given = replace(
        shielding,
        images=shielding.images.detach().to(dtype).requires_grad_(),
        centres=shielding.centres.to(dtype),
    )
    return pulled(soft._smooth(given), given, slopes.to(dtype))


def seconds(work: Callable[[], object], repeats: int) -> float:
    """The median, after two calls that do not count."""
    for _ in range(2):
        work()
    taken = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1000)
    return statistics.median(taken)


def by_kernel(work: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of each Triton kernel, where the profiler can say."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
    return {
        event.key.removesuffix("_kernel"): round(event.device_time / 1000, 3)
        for event in profile.key_averages()
        if event.key.endswith("_kernel") and len(event.key) < 30
    }


def peak_mb(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)


def check(name: str, findings: Findings) -> None:
    text, soft = CASES[name]
    defense, images = quantizer(text), pictures(8, 32).to(PLACE)
    shielding = drawn(defense, images)
    slopes = torch.randn(images.shape, generator=torch.Generator().manual_seed(1)).to(PLACE)
    exact = formula(soft, shielding, slopes, torch.float64)
    found = gradient(soft, shielding, slopes)
    last = Shielding(
        images[7:], images[7:], defense, shielding.streams[7:],
        None if shielding.centres is None else shielding.centres[7:],
    )  # fmt: skip

    def far(other: Tensor) -> float:
        return float(f"{float((other - exact).abs().max() / exact.abs().max()):.2g}")

    kernel = soft.attach(replace(shielding, images=images.clone().requires_grad_())).grad_fn
    findings.checks[name] = {
        "kernel": "Softened" in type(kernel).__name__,
        "far": far(found),
        "formula_far": far(formula(soft, shielding, slopes, torch.float32)),
        "repeated": torch.equal(found, gradient(soft, shielding, slopes)),
        "alone": torch.equal(found[7:], gradient(soft, last, slopes[7:])),
    }


def cost(text: str, soft: Soft, side: int, batch: int, findings: Findings, *, with_formula: bool) -> None:
    images = batch_of(batch, side)
    shielding, slopes = drawn(quantizer(text), images), torch.randn_like(images)
    row: dict[str, float] = {}
    findings.costs[f"{text} {soft.centres} {soft.noise} {side}x{side} batch {batch}"] = row
    row["kernel_ms"] = round(1000 * seconds(lambda: gradient(soft, shielding, slopes), 10), 3)
    row["kernel_peak_mb"] = peak_mb(lambda: gradient(soft, shielding, slopes))
    if with_formula:
        work = lambda: formula(soft, shielding, slopes, torch.float32)  # noqa: E731
        row["formula_ms"] = round(1000 * seconds(work, 3), 3)
        row["formula_peak_mb"] = peak_mb(work)


def tune(name: str, findings: Findings, *, batch: int = 0) -> None:
    """As the kernel is called from attach."""
    from vqshield.quantization.kernels.triton import soft as kernels

    before = kernels.TUNING
    try:
        kernels.TUNING = replace(before, **TUNINGS[name])  # type: ignore[arg-type]
        images = batch_of(batch or BATCH, 32)
        shielding, slopes = drawn(quantizer(SWRD), images), torch.randn_like(images)
        work = lambda: gradient(Soft(), shielding, slopes)  # noqa: E731
        row = findings.tunings[name] = {"all": round(1000 * seconds(work, 10), 3)}
        row |= by_kernel(work)
    finally:
        kernels.TUNING = before


def parts(findings: Findings) -> None:
    """What one draw of a step costs, in milliseconds for 512 images."""
    images = batch_of(BATCH, 32)
    streams, slopes = torch.arange(BATCH, device=PLACE), torch.randn_like(images)
    for name, text in (
        ("kmeans++, 20 iterations", SWRD),
        ("random, 10 iterations", f"{SWRD},init=random,iterations=10"),
        ("random, 5 iterations", f"{SWRD},init=random,iterations=5"),
    ):
        defense = quantizer(text)
        work = lambda d=defense: d.codebook(images, streams=streams)  # noqa: E731
        findings.parts[f"codebook, {name}"] = round(1000 * seconds(work, 10), 3)
    defense = quantizer(SWRD)
    shielding = drawn(defense, images)
    assert shielding.centres is not None
    centres = shielding.centres
    findings.parts["quantize"] = round(
        1000 * seconds(lambda: defense.quantize(images, centres, streams=streams), 10), 3
    )
    findings.parts["soft gradient"] = round(
        1000 * seconds(lambda: gradient(Soft(), shielding, slopes), 10), 3
    )


def made_up(count: int) -> ImageSet:
    images = (batch_of(count, 32) * 255).round().to(torch.uint8).cpu()
    return ImageSet("pictures", images, torch.arange(count) % 10, tuple("0123456789"))


def trainer_of(name: str, *, attack_steps: int, images: int = BATCH, epochs: int = 1) -> Trainer:
    """Adversarial fine-tuning: ResNet18, 512 images a step, bf16, channels last."""
    shield, surrogate = SHIELDS[name]
    settings = TrainSettings(
        data="cifar10",
        arch="resnet18",
        precision="bf16",
        batch=BATCH,
        epochs=epochs,
        peak_lr=0.01,
        shield=shield,
        method=f"adversarial:steps={attack_steps},surrogate={surrogate}",
    )
    trainer = Trainer(settings, made_up(images), made_up(1000), PLACE)
    trainer.model.train()
    return trainer


def step_of(trainer: Trainer) -> Callable[[], object]:
    return lambda: trainer._step(0, trainer.images, trainer.labels)


def steps(name: str, findings: Findings, *, quick: bool) -> None:
    """Milliseconds of a step of adversarial training, within an epoch."""
    row = findings.steps[name] = {}
    for count in (7,) if quick else (1, 7):
        with fast_convolutions(), checks.later():
            work = step_of(trainer_of(name, attack_steps=count))
            row[f"attack of {count}"] = round(1000 * seconds(work, 5 if quick else 20), 2)


def idle(name: str, findings: Findings, *, count: int = 3) -> None:
    """For how long the GPU has nothing to do in a step with an attack of 7, and what it does otherwise.

    The profiler slows the host down, so the share is also given of the milliseconds of a step without it.
    """
    cuda, both = torch.profiler.ProfilerActivity.CUDA, list(torch.profiler.supported_activities())
    with fast_convolutions(), checks.later():
        work = step_of(trainer_of(name, attack_steps=7))
        step_ms = 1000 * seconds(work, 5)
        with torch.profiler.profile(activities=[cuda]) as profile:
            for _ in range(count):
                work()
            torch.cuda.synchronize()
        with torch.profiler.profile(activities=both) as whole:
            work()
    spans = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    busy = union(spans) / 1000 / count
    wall = (max(end for _, end, _ in spans) - min(start for start, _, _ in spans)) / 1000 / count
    called = [event.name for event in whole.events()]
    findings.idle[name] = {
        "step_ms": round(step_ms, 2),
        "gpu_ms": round(busy, 2),
        "idle_share": round(1 - busy / step_ms, 3),
        "idle_share_profiled": round(1 - busy / wall, 3),
        "kernels": round(len(spans) / count),
        "values_read_back": called.count("aten::_local_scalar_dense"),
        "waits": sum(called.count(f"cuda{each}Synchronize") for each in ("Stream", "Device", "Event")),
    }
    total: dict[str, float] = {}
    for start, end, kernel in spans:
        total[kernel[:60]] = total.get(kernel[:60], 0.0) + (end - start) / 1000 / count
    largest = sorted(total.items(), key=lambda item: -item[1])[:16]
    findings.kernels[name] = {kernel: round(value, 3) for kernel, value in largest}


def union(spans: list[tuple[float, float, str]]) -> float:
    """How long at least one of them lasts: kernels may run side by side."""
    total, reached = 0.0, float("-inf")
    for start, end, _ in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def epochs(findings: Findings, *, quick: bool) -> None:
    """Epochs of 20 steps, or of CIFAR-10's 97, with and without the shield in turns; the first one, which
    compiles and lets cuDNN choose, does not count."""
    names = ["no shield", "soft"] if quick else list(SHIELDS)
    rounds, batches = (2, 20) if quick else (3, 97)
    taken: dict[str, list[float]] = {name: [] for name in names}
    with fast_convolutions():
        trainers = {
            name: trainer_of(name, attack_steps=7, images=batches * BATCH, epochs=rounds + 1)
            for name in names
        }
        for number in range(rounds + 1):
            for name, trainer in trainers.items():
                record = trainer.epoch(number)
                taken[name] += [record.seconds] if number else []
    bare = statistics.median(taken["no shield"])
    for name, each in taken.items():
        middle = statistics.median(each)
        findings.epochs[name] = {
            "images": batches * BATCH,
            "seconds": round(middle, 3),
            "least": round(min(each), 3),
            "most": round(max(each), 3),
            "times_no_shield": round(middle / bare, 3),
        }


def warm(name: str) -> None:
    """Compile what a check will ask for."""
    kind, _, which = name.partition(":")
    findings = Findings()
    if kind == "check":
        check(which, findings)
    elif kind == "tune":
        tune(which, findings, batch=64)
    else:
        parts(findings)


def compile_side_by_side(limit: float) -> None:
    """Every check and every tuning in a process of its own: Triton keeps what they compile in a folder."""
    names = ["parts", *(f"check:{name}" for name in CASES), *(f"tune:{name}" for name in TUNINGS)]
    script = str(Path(__file__).with_name("surrogates.py"))
    running = [
        subprocess.Popen(
            [sys.executable, script, "--device", "cuda", "--warm", name],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    ]
    until = time.monotonic() + limit
    for process in running:
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


GROUPS = ("checks", "epochs", "idle", "costs", "parts", "steps", "tunings", "more costs")


def measure(*, quick: bool, out: Path, only: tuple[str, ...] = GROUPS) -> None:
    unknown = [group for group in only if group not in GROUPS]
    if unknown:
        raise SystemExit(f"--only {','.join(unknown)} is unknown; choose from {','.join(GROUPS)}")
    began = time.monotonic()
    until = began + 50 if quick else float("inf")
    findings = Findings()
    costs = [
        (SWRD, Soft(noise="drawn")),
        (SWRD, Soft(centres="constant")),
        (SWRD, Soft(centres="unrolled")),
        ("prd:size=2,codes=25", Soft()),
        ("randdisc:codes=25", Soft()),
        ("swrd:size=3,codes=256", Soft()),
    ]
    shields = ["no shield", "soft", "ste"] if quick else list(SHIELDS)
    tasks: dict[str, list[tuple[str, Callable[[], None]]]] = {
        "checks": [(name, partial(check, name, findings)) for name in CASES],
        "costs": [
            ("512 images", partial(cost, SWRD, Soft(), 32, BATCH, findings, with_formula=True)),
            ("128 images", partial(cost, SWRD, Soft(), 32, 128, findings, with_formula=True)),
            ("328x328", partial(cost, LARGE, Soft(), 328, 64, findings, with_formula=False)),
        ],
        "parts": [("parts", partial(parts, findings))],
        "steps": [(name, partial(steps, name, findings, quick=quick)) for name in shields],
        "idle": [(f"idle {name}", partial(idle, name, findings)) for name in ("no shield", "soft")],
        "epochs": [("epochs", partial(epochs, findings, quick=quick))],
        "tunings": [(f"tuning {name}", partial(tune, name, findings)) for name in TUNINGS],
        "more costs": [
            (f"{text} {soft}", partial(cost, text, soft, 32, BATCH, findings, with_formula=True))
            for text, soft in costs
        ],
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        if {"checks", "tunings"} & set(only):
            compile_side_by_side(22 if quick else 120)
            print(f"compiled after {time.monotonic() - began:.0f} s", flush=True)
        for name, work in (task for group in GROUPS if group in only for task in tasks[group]):
            findings.attempt(name, work, until=until)
            print(f"{time.monotonic() - began:5.1f} s  {name}", flush=True)
    record = {
        "what": "the soft surrogate's gradient on a GPU: distance from the formula, milliseconds, MB",
        "seconds": round(time.monotonic() - began, 1),
        "machine": environment("cuda"),
        **asdict(findings),
    }
    write_json(out, record)
    for part in ("checks", "costs", "tunings", "kernels", "parts", "steps", "idle", "epochs", "failures"):
        print(f"-- {part}")
        for name, row in getattr(findings, part).items():
            print(f"{name:58s} {json.dumps(row) if isinstance(row, dict) else row}")
    bare = findings.steps.get("no shield", {})
    for name, row in findings.steps.items():
        ratios = {key: round(value / bare[key], 3) for key, value in row.items() if key in bare}
        print(f"{name:58s} times no shield: {json.dumps(ratios)}")
    print(f"{time.monotonic() - began:.0f} s")

"""What do faster gradients and leaving lost images alone save an adaptive attack, and what do they cost it?

    PYTHONPATH=src python3 benchmarks/attacks.py --device cuda --weights resnet18-cifar10.safetensors \
        --data-dir DIR --out benchmarks/results/attacks-cuda.json [--quick] [--images 1000] [--defense prd] \
        [--suite-only] [--suite square:queries=1000] [--before OTHER/src] [--precisions bf16 tf32]

Needs torch, numpy and safetensors. DIR holds CIFAR-10's test_batch.bin; without --weights and --data-dir the
bundled classifier and sample are attacked. Measured are

1. the suite adaptive-v1, or what --suite names, behind swRD (s=3, k=25) by `vqshield.evaluate`, float32 and
   fast, one after the other on the same images: seconds, and accuracy with its standard error;
2. one gradient of the loss, by batch and by what the classifier computes it in: images × draws a second;
3. one step of the attack under torch.profiler: the kernels that take most of the GPU's time, and the share of
   the time in which the GPU has nothing to do.

--before measures the suite by an older checkout of vqshield too, first, in a process of its own.
--suite-only leaves out 2 and 3. --quick ends within a minute on an H200: fewer images, and no more of part 1
than fits. Whatever fails is reported, and the rest goes on. On a CPU it is CPU time that is counted.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import PRECISIONS, FastGradients
from vqshield.attacks.losses import margin
from vqshield.attacks.suites import with_precision
from vqshield.classifiers import BUNDLED, load_classifier
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.data import SAMPLE_NAME, load
from vqshield.defenses import from_text
from vqshield.models.calling import evaluating, gradient
from vqshield.runs.study import repeatable

DEFENSE = "swrd:size=3,codes=25"
SUITE = "adaptive-v1"
SOFT = "soft:temperature=0.03"
DRAWS = 5
QUICK_SECONDS = 50
BEFORE = "before"
OLDER = """
import json, sys, time
import vqshield as vq
from vqshield.classifiers import load_classifier
from vqshield.data import load

device, weights, name, folder, count, defense, suite = sys.argv[1:]
data = load(name, "test", folder or None, limit=1000).take(1000)
images, labels = data.floats().to(device), data.labels.to(device)
model = load_classifier(weights, device=device).eval()
clock = time.perf_counter if device == "cuda" else time.process_time
for part in (8, int(count)):  # the first run warms up
    began = clock()
    found = vq.evaluate(
        model, images[:part], labels[:part], attacks=suite, defense=defense, batch=part, device=device
    )
    seconds = clock() - began  # what was found lies on the host: the GPU is done
rows = [[row.attack, row.mean, row.standard_error] for row in found.rows if row.defense == defense]
print(json.dumps({"seconds": seconds, "rows": rows}))
"""


@dataclass(frozen=True, kw_only=True)
class SuiteRow:
    """A suite or a member of one, in one precision: what it left, and how long the suite took."""

    precision: str
    images: int
    attack: str
    accuracy: float
    standard_error: float
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class GradientRow:
    """One gradient of a batch: the least of several seconds, and how well it agrees with float32's (the mean
    cosine over images; of a random model, with the same draws).
    """

    model: str
    way: str
    batch: int
    seconds: float
    images_a_second: float
    cosine: float


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """A kernel of one step, or an operator where there is no GPU."""

    name: str
    calls: int
    milliseconds: float


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One step under the profiler: its time, the share in which the GPU was idle, and what took longest."""

    precision: str
    batch: int
    milliseconds: float
    idle: float | None
    kernels: tuple[KernelRow, ...]


@dataclass(kw_only=True)
class Report:
    """All that was measured so far; written after each part, so that a program that is stopped leaves it."""

    machine: dict[str, Json]
    defense: str
    classifier: str = BUNDLED
    suites: list[SuiteRow] = field(default_factory=list)
    gradients: list[GradientRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Bench:
    """The classifier, the images, and how much time is left."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.precisions = options.precisions
        self.suite_only, self.before, self.attack = options.suite_only, options.before, options.suite
        self.weights, self.data_dir = options.weights or BUNDLED, options.data_dir
        self.quick, self.out, self.began = options.quick, options.out, time.perf_counter()
        self.device = torch.device(options.device)
        self.clock = time.perf_counter if self.device.type == "cuda" else time.process_time
        self.defense = options.defense
        self.model = load_classifier(self.weights, device=self.device).eval()
        self.most = options.images or (128 if self.quick else 1000)
        self.source = "cifar10" if options.data_dir else SAMPLE_NAME
        data = load(self.source, "test", options.data_dir, limit=1000).take(1000)
        self.images, self.labels = data.floats().to(self.device), data.labels.to(self.device)
        self.report = Report(machine=dict(environment(self.device)), defense=self.defense)
        self.report.classifier = Path(options.weights).name if options.weights else BUNDLED

    def left(self) -> float:
        """Seconds until a quick run has to end."""
        return QUICK_SECONDS - (time.perf_counter() - self.began) if self.quick else float("inf")

    def attempt(self, what: str, measure: Callable[[], None]) -> None:
        """Measure, or note what went wrong."""
        try:
            measure()
        except Exception as error:  # one failure must not take the other measurements with it
            self.report.failures.append(f"{what}: {type(error).__name__}: {error}")
            print(traceback.format_exc(), flush=True)
        if self.out is not None:
            write_json(self.out, to_plain(self.report))
        print(f"{time.perf_counter() - self.began:6.1f} s  {what}", flush=True)

    def wait(self) -> None:
        """Until the GPU is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def suite(self, precision: str, count: int) -> None:
        """The suite by the public call, with the natural accuracy, selection and report of it."""
        self.wait()
        began = self.clock()
        attack = with_precision(self.attack, precision)
        found = vq.evaluate(
            self.model, self.images[:count], self.labels[:count], attacks=attack, defense=self.defense,
            batch=count,
        )  # fmt: skip
        self.wait()
        seconds = self.clock() - began
        rows = [
            (row.attack, row.mean, row.standard_error) for row in found.rows if row.defense == self.defense
        ]
        self._note(precision, count, rows, attack, seconds)

    def _note(
        self, precision: str, count: int, rows: Iterable[tuple[str, float, float]], suite: str, seconds: float
    ) -> None:
        """What each attack left; the time is the whole suite's."""
        self.report.suites += [
            SuiteRow(
                precision=precision, images=count, attack=attack, accuracy=mean, standard_error=error,
                seconds=seconds if attack == suite else None,
            )
            for attack, mean, error in rows
            if attack != "adaptive"
        ]  # fmt: skip

    def older(self, count: int) -> None:
        """The suite by another checkout: a process of its own, for there is one vqshield to a process."""
        given = [self.device.type, self.weights, self.source, self.data_dir or "", count, self.defense]
        done = subprocess.run(
            [sys.executable, "-c", OLDER, *map(str, given), self.attack],
            env=os.environ | {"PYTHONPATH": str(self.before)},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        found = json.loads(done.stdout.splitlines()[-1])
        self._note(BEFORE, count, found["rows"], self.attack, found["seconds"])

    def ways(self) -> dict[str, nn.Module]:
        """The classifier, by what its gradient is computed in."""
        fast, on_gpu = FastGradients, self.device.type == "cuda"
        found: dict[str, nn.Module] = {"float32": self.model, "bf16, as it is": _Autocast(self.model)}
        found |= {
            f"{name}, channels last, folded": fast(self.model, name, most_captured=0)
            for name in PRECISIONS[1:]
        }
        if on_gpu:
            found["bf16, channels last, folded, captured"] = fast(self.model, "bf16", most_captured=2**40)
        return found

    def gradients(self, surrogate: str | None, batches: tuple[int, ...], repeats: int) -> None:
        """Of the classifier alone (None), or through the defense with a surrogate; the ways take turns."""
        ways = {
            name: each
            if surrogate is None
            else vq.Defended(each, from_text(self.defense, seed=0), surrogate=surrogate)
            for name, each in self.ways().items()
        }
        for batch in batches:
            rows = torch.arange(batch, device=self.device) % len(self.images)
            images, labels = self.images[rows], self.labels[rows]
            least, slopes = dict.fromkeys(ways, float("inf")), dict[str, Tensor]()
            for turn in range(repeats + 1):  # the first one warms up
                for name in list(least):
                    try:
                        seconds, slopes[name] = self._one_gradient(ways[name], images, labels)
                    except Exception as error:  # such as too little memory: the other ways may fit
                        self.report.failures.append(f"gradient, {name}, {batch}: {error}")
                        del least[name]
                        continue
                    if turn > 0:
                        least[name] = min(least[name], seconds)
            self.report.gradients += [
                GradientRow(
                    model="classifier" if surrogate is None else f"behind the shield, {surrogate}",
                    way=name, batch=batch, seconds=seconds, images_a_second=batch / seconds,
                    cosine=_cosine(slopes[name], slopes["float32"]),
                )
                for name, seconds in least.items()
            ]  # fmt: skip

    def _one_gradient(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        with repeatable(), torch.enable_grad():
            self.wait()
            began = self.clock()
            points = images.detach().requires_grad_()
            found = gradient(margin(model(points), labels), points)
            self.wait()
            return self.clock() - began, found

    def step(self, precision: str, count: int) -> None:
        """Two steps of the suite's first member, of which the second is profiled."""
        points = self.images[:count]
        fast = self.model if precision == PRECISIONS[0] else FastGradients(self.model, precision)
        model = vq.attacks.EOT(
            vq.Defended(fast, from_text(self.defense, seed=0), surrogate=SOFT), draws=DRAWS
        )
        attack = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=1, loss="margin")
        on_gpu = self.device.type == "cuda"
        kinds = [torch.profiler.ProfilerActivity.CPU]
        kinds += [torch.profiler.ProfilerActivity.CUDA] if on_gpu else []
        with repeatable():
            for _ in range(2):
                attack(model, points, self.labels[:count])
            self.wait()
            began = self.clock()
            attack(model, points, self.labels[:count])
            self.wait()
            seconds = self.clock() - began
            with torch.profiler.profile(activities=kinds) as profile:
                attack(model, points, self.labels[:count])
                self.wait()
        events = profile.key_averages()
        kernels = [each for each in events if not on_gpu or str(each.device_type).endswith("CUDA")]
        times = [
            (each.self_device_time_total if on_gpu else each.self_cpu_time_total, each.key, each.count)
            for each in kernels
        ]
        busy = sum(spent for spent, _, _ in times) / 1e6
        self.report.steps.append(
            StepRow(
                precision=precision,
                batch=count * DRAWS,
                milliseconds=1e3 * seconds,
                idle=max(0.0, 1 - busy / seconds) if on_gpu else None,
                kernels=tuple(
                    KernelRow(name=name[:100], calls=calls, milliseconds=spent / 1e3)
                    for spent, name, calls in sorted(times, reverse=True)[:15]
                ),
            )
        )

    def run(self) -> None:
        """Everything, what matters most first."""
        with evaluating(self.model):
            count = min(self.most, len(self.images))
            self.attempt("warm up", lambda: self.suite("bf16", min(8, count)))
            self.report.suites.clear()
            if self.before is not None:
                self.attempt(f"{self.attack}, {self.before}, {count}", lambda: self.older(count))
            for precision in self.precisions:
                self.attempt(f"{self.attack}, {precision}, {count}", lambda p=precision: self.suite(p, count))
            if self.suite_only:
                return
            batches = (40, 160, 640, 2560) if self.device.type == "cuda" else (40,)
            for surrogate in (None, SOFT):
                if self.left() > 5:
                    self.attempt(
                        f"gradients, {surrogate}",
                        lambda s=surrogate: self.gradients(s, batches, repeats=3 if self.quick else 10),
                    )
            for precision in ("float32", "bf16"):
                for size in (8, 128, 512) if self.device.type == "cuda" else (8,):
                    if self.left() > 3:
                        self.attempt(
                            f"step, {precision}, {size}", lambda p=precision, n=size: self.step(p, n)
                        )
            while self.quick and self.left() > 12 and count < len(self.images):
                count = min(4 * count, len(self.images))
                self.attempt(f"{self.attack}, bf16, {count}", lambda n=count: self.suite("bf16", n))


def _cosine(one: Tensor, other: Tensor) -> float:
    """Over the images whose gradient is not zero: the margin is flat where an image is lost by far."""
    sizes = [each.flatten(1).norm(dim=1) for each in (one, other)]
    some = (sizes[0] > 0) & (sizes[1] > 0)
    return float(torch.cosine_similarity(one.flatten(1), other.flatten(1))[some].mean())


class _Autocast(nn.Module):
    """bfloat16 and nothing else: what channels last adds to."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            logits: Tensor = self.classifier(images)
        return logits.float()


def show(report: Report) -> None:
    """A short table of everything."""
    for step in report.steps:
        idle = "" if step.idle is None else f", GPU idle {step.idle:.0%}"
        print(f"\nstep in {step.precision}, {step.batch} images × draws: {step.milliseconds:.1f} ms{idle}")
        for kernel in step.kernels:
            print(f"  {kernel.milliseconds:9.3f} ms  {kernel.calls:5d} ×  {kernel.name}")
    print("\ngradients, images × draws a second, and cosine with that of float32")
    for row in report.gradients:
        print(
            f"  {row.model:42s} {row.batch:6d}  {row.way:40s} {row.images_a_second:12,.0f} {row.cosine:8.4f}"
        )
    print(f"\nbehind {report.defense}, {report.classifier}, {report.machine['device']}")
    for each in report.suites:
        took = "" if each.seconds is None else f"{each.seconds:8.2f} s"
        shown = f"{100 * each.accuracy:6.2f} ± {100 * each.standard_error:.2f}"
        print(f"  {each.precision:8s} {each.images:5d}  {each.attack:42s} {shown} {took}")
    print("\n".join(f"FAILED {each}" for each in report.failures))


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--suite-only", action="store_true")
    parser.add_argument("--images", type=int)
    parser.add_argument("--suite", default=SUITE, help="a suite, or one attack")
    # Twice bf16: the first run of a size of batch also pays for the choice of kernels.
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=["float32", "bf16", "tf32", "bf16"]
    )
    parser.add_argument("--defense", default=DEFENSE)
    parser.add_argument("--weights")
    parser.add_argument("--before", type=Path, help="the src folder of an older checkout of vqshield")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path)
    bench = Bench(parser.parse_args())
    with torch.cuda.device(bench.device) if bench.device.type == "cuda" else nullcontext():
        bench.run()
    show(bench.report)


if __name__ == "__main__":
    main()

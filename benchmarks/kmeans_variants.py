"""Measure the GPU kernels' variants against each other, stage by stage, and check each against the reference.

PYTHONPATH=src python3 benchmarks/kmeans_variants.py --seconds 70 --out variants.json

A stage's time is that of its launches alone, in nanoseconds an image. The fastest of
each stage together make the variant "best", which is then timed as a whole defense beside the default.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.bench.workloads import SETTINGS, Workload, pictures, streams, workload
from vqshield.clustering import get
from vqshield.clustering.triton import workspace
from vqshield.clustering.triton.backend import Triton
from vqshield.clustering.triton.launch import Launch
from vqshield.clustering.triton.workspace import DEFAULT, Sizes, Variant, Workspace
from vqshield.defenses import Quantizer, create
from vqshield.noise import Draw, Stage

SEED = 0
CHECKED = 128  # images that the reference is asked about
CUDA = torch.device("cuda")
SMALL, LARGE = workload("cifar-swrd-3-25"), workload("large-swrd-3-30")
# In order of promise: what is late is left out when time is short.
PATCHES: Mapping[str, Variant] = {
    "default": DEFAULT,
    "tiles-4": Variant(tiles=True, tile_warps=4),
    "tiles-8": Variant(tiles=True, tile_warps=8),
}
LABELS: Mapping[str, Variant] = {
    "default": DEFAULT,
    "fused-4": Variant(fused=True, label_warps=4),
    "fused-8": Variant(fused=True, label_warps=8),
    "fused-4-256": Variant(fused=True, label_warps=4, label_strip=256),
}
ROUNDS: Mapping[str, Variant] = {
    "default": DEFAULT,
    "resident-4-168": Variant(coarse=True, resident=True, warps=4, rows=32, stages=1, registers=168),
    "coarse-2-168": Variant(coarse=True, warps=2, registers=168),
    "resident-8-128": Variant(coarse=True, resident=True, warps=8, rows=32, stages=1, registers=128),
    "coarse-2-128": Variant(coarse=True, warps=2, registers=128),
    "coarse-4-128": Variant(coarse=True, warps=4, survey=128, registers=128),
}
LARGE_ROUNDS: Mapping[str, Variant] = {
    "default": DEFAULT,
    "coarse-2-168": Variant(coarse=True, warps=2, registers=168),
    "coarse-4-128": Variant(coarse=True, warps=4, survey=128, registers=128),
    "coarse-2-128": Variant(coarse=True, warps=2, registers=128),
}


@dataclass
class Found:
    """What a run has found so far."""

    device: str
    stages: dict[str, dict[str, float]] = field(default_factory=dict)  # ns an image
    checks: dict[str, dict[str, float]] = field(default_factory=dict)
    defenses: dict[str, dict[str, float]] = field(default_factory=dict)  # images a second
    errors: dict[str, str] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)


class Clock:
    """How much time is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()


def shielding(work: Workload, **settings: Any) -> Quantizer:
    """The workload's defense; randdisc has no size."""
    sized = {} if work.defense == "randdisc" else {"size": work.size}
    return create(work.defense, codes=work.codes, **sized, **settings)


def timed(call: Callable[[], object], budget: float = 0.06, least: int = 5) -> float:
    """The median of a call's seconds on the device."""
    call()
    torch.cuda.synchronize()
    seconds: list[float] = []
    while len(seconds) < least or sum(seconds) < budget:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        seconds.append(first.elapsed_time(last) / 1000)
    return statistics.median(seconds)


@dataclass
class Bench:
    """One workload's images in one launch, whose stages are timed one by one."""

    work: Workload
    batch: int
    found: Found
    clock: Clock
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shield = shielding(self.work, **self.settings)
        self.recipe = shield.recipe()
        self.images = shield.grid.pad(pictures(self.work, self.batch, CUDA))
        self.output = torch.empty_like(self.images)
        self.key = torch.full((1,), SEED, dtype=torch.int64, device=CUDA)
        count = self.recipe.grid.count(*self.images.shape[2:])
        sizes = Sizes.of(count, self.recipe.codes, self.work.dimensions)
        self.space = Workspace.make(self.batch, sizes, self.work.dimensions, CUDA)

    def launch(self, **changes: Any) -> Launch:
        recipe = replace(self.recipe, **changes)
        return Launch(self.images, streams(self.batch, CUDA), self.key, recipe, recipe.codes, self.space)

    def stage(self, row: str, column: str, variant: Variant, call: Callable[[], object]) -> None:
        """Times a call, and keeps what goes wrong."""
        if self.clock.left <= 0:
            self.found.errors[f"{row}: {column}"] = "out of time"
            return
        workspace.variant = variant
        try:
            seconds = timed(call)
        except Exception as error:  # a variant that does not compile must not stop the others
            torch.cuda.synchronize()
            self.found.errors[f"{row}: {column}"] = f"{type(error).__name__}: {error}"[:300]
        else:
            self.found.stages.setdefault(row, {})[column] = 1e9 * seconds / self.batch
        finally:
            workspace.variant = DEFAULT

    def ends(self) -> None:
        """The stages before and after k-means."""
        launch, name = self.launch(), self.work.name
        for kind, variant in PATCHES.items():
            self.stage(
                f"{name} patches", kind, variant,
                lambda: launch._patches(Stage.CODEBOOK, launch.recipe.sigma),
            )  # fmt: skip
        launch.fit()
        expected = None
        for kind, variant in LABELS.items():
            self.stage(f"{name} assign", kind, variant, launch._assign)
            labels = self.space.labels[:, : launch.n].clone()
            expected = labels if expected is None else expected
            equal = float((labels == expected).double().mean())
            self.found.checks.setdefault(f"equal labels {name}", {})[kind] = equal
        self.stage(f"{name} rebuild", "default", DEFAULT, lambda: launch._rebuild(self.output))
        self.stage(f"{name} k-means++", "default", DEFAULT, self.launch(init="kmeans++")._start)

    def compared(
        self, row: str, column: str, expected: Tensor, variant: Variant, call: Callable[[], object]
    ) -> None:
        """Times a call that finds centres, and compares those with the expected ones and with its own."""
        self.stage(row, column, variant, call)
        if column not in self.found.stages.get(row, {}):
            return
        workspace.variant = variant
        first = (call(), self.space.centres.clone())[1]
        again = (call(), self.space.centres)[1]
        workspace.variant = DEFAULT
        equal = ((first - expected).abs().amax((1, 2)) < 1e-4).double().mean()
        # Below one: threads race each other.
        repeated = (first == again).flatten(1).all(1).double().mean()
        self.found.checks.setdefault(f"equal/repeated {row}", {})[column] = float(equal)
        self.found.checks[f"equal/repeated {row}"][f"({column})"] = float(repeated)

    def rounds(self, variants: Mapping[str, Variant], counts: tuple[int, ...] = (20, 10, 2)) -> None:
        """Lloyd's rounds alone, from k-means++."""
        launch = self.launch(init="kmeans++")
        launch._patches(Stage.CODEBOOK, launch.recipe.sigma)
        launch._start()
        start = self.space.centres.clone()
        for count in counts:
            some = self.launch(iterations=count)

            def call(some: Launch = some) -> None:
                self.space.centres.copy_(start)
                some._rounds()

            call()
            expected = self.space.centres.clone()
            for name, variant in variants.items():
                self.compared(f"{self.work.name} rounds {count}", name, expected, variant, call)


def fastest(found: Found, row: str, variants: Mapping[str, Variant]) -> Variant:
    times = found.stages.get(row, {})
    return variants[min(times, key=lambda name: times[name])] if times else DEFAULT


def joined(patches: Variant, labels: Variant, rounds: Variant) -> Variant:
    """The patches of one variant, the labels of another and the rounds of a third."""
    return replace(
        rounds, tiles=patches.tiles, tile_warps=patches.tile_warps, fused=labels.fused,
        label_warps=labels.label_warps, label_strip=labels.label_strip,
    )  # fmt: skip


def best_of(found: Found, work: Workload, rounds: Mapping[str, Variant], count: int) -> Variant:
    """The fastest of each stage together."""
    return joined(
        fastest(found, f"{work.name} patches", PATCHES),
        fastest(found, f"{work.name} assign", LABELS),
        fastest(found, f"{work.name} rounds {count}", rounds),
    )


def check(
    found: Found, clock: Clock, name: str, work: Workload, variant: Variant, count: int, **settings: Any
) -> None:
    """Codebooks, assignments and inertia beside the reference's."""
    if clock.left <= 0:
        found.errors[f"check {name}"] = "out of time"
        return
    workspace.variant = variant
    try:
        shield = shielding(work, **settings)
        recipe, draw = shield.recipe(), Draw(SEED, streams(count, CUDA))
        images = shield.grid.pad(pictures(work, count, CUDA))
        exact, kernel = get("torch", CUDA), Triton()
        books = [one.codebook(images, recipe, draw) for one in (exact, kernel)]
        labels = [one.assignments(images, books[0], recipe, draw) for one in (exact, kernel)]
        ratio = inertia(images, recipe, draw, books[1]) / inertia(images, recipe, draw, books[0])
        outputs = [one.shield(images, recipe, draw) for one in (exact, kernel)]
        found.checks[name] = {
            "equal codebooks": float(((books[0] - books[1]).abs().amax((1, 2)) < 1e-4).double().mean()),
            "equal labels": float((labels[0] == labels[1]).double().mean()),
            "inertia ratio": ratio,
            "mean difference": float((outputs[0] - outputs[1]).abs().mean()),
        }
    except Exception as error:
        torch.cuda.synchronize()
        found.errors[f"check {name}"] = f"{type(error).__name__}: {error}"[:300]
    finally:
        workspace.variant = DEFAULT


def inertia(images: Tensor, recipe: Any, draw: Draw, centres: Tensor) -> float:
    """The sum of squared distances of the noisy patches from their nearest centres."""
    from vqshield.clustering.reference import noisy_patches

    total = 0.0
    for first in range(0, len(images), 8):
        part = slice(first, first + 8)
        noisy = noisy_patches(images[part], recipe, recipe.sigma, Stage.CODEBOOK, draw[part])
        for block in noisy:
            near = torch.cdist(
                block.float(), centres[part].float(), compute_mode="donot_use_mm_for_euclid_dist"
            ).amin(2)
            total += float(near.double().square().sum())
    return total


def defense(
    found: Found, clock: Clock, name: str, work: Workload, batch: int, variant: Variant, **settings: Any
) -> None:
    """A whole defense as a user calls it, in images a second."""
    if clock.left <= 0:
        found.errors[f"{work.name} {batch} {name}"] = "out of time"
        return
    workspace.variant = variant
    label = f"{work.name} {batch} {' '.join(f'{k}={v}' for k, v in settings.items())}".strip()
    try:
        shield = shielding(work, seed=SEED, backend="triton", **settings)
        images, numbers = pictures(work, batch, CUDA), streams(batch, CUDA)
        seconds = timed(lambda: shield(images, streams=numbers), budget=0.15)
        found.defenses.setdefault(label, {})[name] = batch / seconds
    except Exception as error:
        torch.cuda.synchronize()
        found.errors[f"{label} {name}"] = f"{type(error).__name__}: {error}"[:300]
    finally:
        workspace.variant = DEFAULT


def run(found: Found, clock: Clock, save: Callable[[], None]) -> None:
    ten = SETTINGS["ten"]
    bench = Bench(SMALL, 6144, found, clock)
    bench.ends()
    bench.rounds(ROUNDS, (20, 10))
    best = best_of(found, SMALL, ROUNDS, 20)
    short = best_of(found, SMALL, ROUNDS, 10)
    found.best |= {"small": asdict(best), "small, ten": asdict(short)}
    del bench
    torch.cuda.empty_cache()
    for name, variant in (("default", DEFAULT), ("best", best)):
        defense(found, clock, name, SMALL, 65536, variant)
    for name, variant in (("default", DEFAULT), ("best", best), ("best of ten", short)):
        defense(found, clock, name, SMALL, 65536, variant, **ten)
    check(found, clock, "best, small", SMALL, best, CHECKED)
    check(found, clock, "default, small", SMALL, DEFAULT, CHECKED)
    save()
    bench = Bench(LARGE, 64, found, clock)
    bench.ends()
    bench.rounds(LARGE_ROUNDS, (20, 10))
    large = best_of(found, LARGE, LARGE_ROUNDS, 20)
    found.best["large"] = asdict(large)
    del bench
    torch.cuda.empty_cache()
    for settings in ({}, ten):
        for name, variant in (("default", DEFAULT), ("best", large)):
            defense(found, clock, name, LARGE, 64, variant, **settings)
    check(found, clock, "best, large", LARGE, large, 2)
    save()
    others = (
        workload("cifar-prd-2-25"),
        workload("mnist-swrd-2-2"),
        Workload(name="randdisc-25", defense="randdisc", size=1),
        Workload(name="swrd-3-256", codes=256),
        Workload(name="swrd-5-25", size=5),
    )
    for work in others:
        batch = 4096 if work.codes > 100 or work.size > 3 else 16384
        for name, variant in (("default", DEFAULT), ("best", best)):
            defense(found, clock, name, work, batch, variant)
        check(found, clock, f"default, {work.name}", work, DEFAULT, 32)
        save()


def show(found: Found) -> None:
    print(found.device)
    for title, rows in (("ns/image", found.stages), ("checks", found.checks), ("images/s", found.defenses)):
        print(f"-- {title}")
        for name, values in rows.items():
            text = "  ".join(f"{k} {v:,.0f}" if v > 50 else f"{k} {v:.6g}" for k, v in values.items())
            print(f"{name:34} {text}")
    print("-- best", json.dumps(found.best))
    for name, error in found.errors.items():
        print(f"!! {name}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=70.0, help="after which nothing more is begun")
    parser.add_argument("--out", type=Path, default=Path("kmeans-variants.json"))
    options = parser.parse_args()
    found = Found(torch.cuda.get_device_name())

    def save() -> None:
        options.out.write_text(json.dumps(asdict(found), indent=1))

    try:
        run(found, Clock(options.seconds), save)
    finally:
        save()
        show(found)


if __name__ == "__main__":
    main()

"""What the benchmarks measured: the shapes of benchmarks/results/*.json and of `vqshield bench --json`.

A file holds exactly these fields, in this order (vqshield.core.serialization).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vqshield.core.serialization import Json, from_plain

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What vqshield.core.environment says, and the versions of the libraries that take part."""

    vqshield: str
    python: str
    torch: str
    system: str
    processor: str
    cores: int | None
    threads: int
    device: str
    packages: Mapping[str, str]

    @property
    def place(self) -> str:
        """The name of the GPU, or of the processor where none was used."""
        return self.processor if self.device == "cpu" else self.device


@dataclass(frozen=True, kw_only=True)
class ShieldSettings:
    """What decides the work of a whole defense, besides the workload."""

    iterations: int
    init: str
    tolerance: float
    sigma: float
    tau: float


@dataclass(frozen=True, kw_only=True)
class MeasuredWorkload:
    """A workload; count and dimensions: n and d; rounds: iterations that change any label, on average."""

    name: str
    defense: str
    channels: int
    side: int
    size: int
    codes: int
    cpu_batch: int
    cuda_batches: tuple[int, ...]
    count: int
    dimensions: int
    rounds: float | None


@dataclass(frozen=True, kw_only=True)
class MeasuredImplementation:
    """Whether it is this library's, and what a reader must know about the comparison with it."""

    ours: bool
    about: str


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """How fast one implementation did one step of one workload.

    images_per_second: by the median time. inertia_ratio, distortion_ratio: the result as a multiple of the
    reference's, None for the other step and where it is not finite. other_load: the share of the processor
    that other programs used meanwhile. note: why the row should be read with care. share_of_peak: its
    operations a second, of those that the machine reaches in a matrix product.
    """

    workload: str
    implementation: str
    step: str
    settings: str
    images_per_second: float
    best_images_per_second: float
    repeats: int
    threads: int
    batch: int
    device: str
    inertia_ratio: float | None
    distortion_ratio: float | None
    other_load: float | None
    note: str
    share_of_peak: float | None = None

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Measurements of one key differ in the batch only; a record has one row for each key."""
        return self.workload, self.implementation, self.step, self.settings, self.threads


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """What was not measured, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What the machine can do at most: GFLOP/s of a product, GB/s of a copy, Gaussian values a second."""

    threads: int
    gflops: Mapping[str, float]
    copy_gbytes: float
    normals: float
    torch_normals: float


@dataclass(frozen=True, kw_only=True)
class ClassifierSpeed:
    """How fast the classifier alone is, in the fastest of several forms."""

    classifier: str
    form: str
    precision: str
    threads: int
    batch: int
    images_per_second: float
    forms: Mapping[str, float]
    failed: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ClassifierRatio:
    """The time of the whole defense as a share of the classifier's forward pass."""

    workload: str
    implementation: str
    settings: str
    threads: int
    share_of_forward: float


@dataclass(frozen=True, kw_only=True)
class MemoryRow:
    """GPU memory of one call; workspace: what it needs besides input and output."""

    workload: str
    implementation: str
    images: int
    input_bytes: int
    output_bytes: int
    workspace_bytes: int
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class BenchRecord:
    """One run of the benchmark."""

    what: str = "speed of the shield and of other k-means on the same patches"
    machine: Machine
    complete: bool
    seconds: float
    budget: float
    passes: int
    iterations: int
    settings: Mapping[str, ShieldSettings]
    workloads: Mapping[str, MeasuredWorkload]
    implementations: Mapping[str, MeasuredImplementation]
    rows: tuple[BenchRow, ...]
    skipped: tuple[Skipped, ...]
    peak: tuple[Peak, ...]
    classifier: tuple[ClassifierSpeed, ...]
    classifier_ratios: tuple[ClassifierRatio, ...]
    memory: tuple[MemoryRow, ...]

    @property
    def thread_counts(self) -> list[int]:
        """The numbers of threads that were measured."""
        return sorted({row.threads for row in self.rows})

    @property
    def ours(self) -> list[str]:
        """The names of this library's implementations."""
        return [name for name, each in self.implementations.items() if each.ours]


@dataclass(frozen=True, kw_only=True)
class AgreementRow:
    """How closely one backend agrees with the exact reference on n images (benchmarks/agreement.py)."""

    backend: str
    defense: str
    settings: Mapping[str, Json]
    n: int
    shape: tuple[int, ...]
    patches: int
    same_codebook: float
    same_assignment: float
    same_assignment_with_given_codebook: float
    inertia_ratio: float
    images_with_equal_assignments: int
    largest_difference_among_them: float | None  # None: there is no such image
    images_apart: int  # of those, by more than 1e-4
    images_apart_with_the_same_codebook: int
    repeats_equal: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class AgreementRecord:
    """One run of benchmarks/agreement.py."""

    what: str = "agreement of every backend with the exact reference (backend torch) on natural images"
    seed: int
    machine: Mapping[str, Json]
    rows: tuple[AgreementRow, ...]


@dataclass(frozen=True, kw_only=True)
class ContractsRecord:
    """One run of benchmarks/contracts.py: how the contract tests ended on a machine."""

    what: str
    tests: tuple[str, ...]
    select: str
    machine: Mapping[str, Json]
    exit_code: int
    outcomes: Mapping[str, int]
    failed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SanitizerRecord:
    """One run of benchmarks/sanitizer.py: how much each tool of compute-sanitizer found."""

    what: str = "findings of compute-sanitizer in the GPU's kernels"
    cases: tuple[str, ...]
    machine: Mapping[str, Json]
    findings: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class SampledRow:
    """One size of the sample of patches; None: all. Accuracy is a fraction, None where it was not asked."""

    sample: int | None
    images_per_second: float
    inertia_ratio: float
    accuracy: float | None
    standard_error: float | None


@dataclass(frozen=True, kw_only=True)
class SampledRecord:
    """One run of benchmarks/sampled.py; images: those of the accuracy."""

    what: str
    machine: Mapping[str, Json]
    defense: str
    side: int
    batch: int
    classifier: str | None
    images: int
    runs: int
    rows: tuple[SampledRow, ...]


def read_record(shape: type[Record], path: Path) -> Record:
    """The record in a file; FileFormatError names what is wrong in it."""
    return from_plain(shape, json.loads(path.read_text()), path.name)

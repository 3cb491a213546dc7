"""What docs/speed.md says of gradients through the shield: surrogates-DEVICE.json and demo-speed.json."""

from collections.abc import Callable
from dataclasses import dataclass

from recorded import Machine, read
from speed_tables import RESULTS
from tables import machine, table


@dataclass(frozen=True, kw_only=True)
class SurrogateRow:
    """A row of benchmarks/surrogates.py."""

    defense: str
    side: int
    batch: int
    implementation: str
    forward: float
    backward: float
    peak_mb: float
    distance: float


@dataclass(frozen=True, kw_only=True)
class SurrogateRecord:
    """What benchmarks/surrogates.py wrote."""

    rows: tuple[SurrogateRow, ...]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """How far a kernel is from the formula in float64; whether it repeats itself, and does so alone."""

    far: float
    repeated: bool
    alone: bool


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Milliseconds and MB of a gradient."""

    kernel_ms: float
    kernel_peak_mb: float
    formula_ms: float | None = None
    formula_peak_mb: float | None = None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Of adversarial fine-tuning."""

    images: int
    seconds: float
    times_no_shield: float


@dataclass(frozen=True, kw_only=True)
class GpuRecord:
    """What benchmarks/surrogates.py --device cuda wrote."""

    machine: Machine
    epochs: dict[str, Epoch]


@dataclass(frozen=True, kw_only=True)
class GpuChecks:
    """What it wrote with --only checks."""

    checks: dict[str, Checked]


@dataclass(frozen=True, kw_only=True)
class GpuCosts:
    """What it wrote with --only costs, when nothing else ran on the card."""

    machine: Machine
    costs: dict[str, Cost]


@dataclass(frozen=True, kw_only=True)
class CompiledRecord:
    """What benchmarks/compiled.py wrote."""

    triton: str
    launches: int
    kernels: dict[str, int]
    faults: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DemoSpeed:
    """What benchmarks/demo_speed.py wrote."""

    images: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    ratio: float


def surrogates() -> str:
    """The soft surrogate's gradient in torch and by the native kernel."""
    record = read(SurrogateRecord, RESULTS / "surrogates-cpu.json")
    lines = [
        "| defense | image | batch | CPU ms, torch | native | ratio | MB, torch | native "
        "| distance from float64, torch | native |",
        "|---" * 10 + "|",
    ]
    found = {(row.defense, row.side, row.batch, row.implementation): row for row in record.rows}
    for row in record.rows:
        if row.implementation != "torch":
            continue
        other = found[row.defense, row.side, row.batch, "native"]
        before, after = (1000 * (each.forward + each.backward) for each in (row, other))
        lines.append(
            f"| {row.defense} | {row.side}×{row.side} | {row.batch} | {before:.1f} | {after:.1f} "
            f"| {before / after:.1f} | {row.peak_mb:.0f} | {other.peak_mb:.0f} | {row.distance:.0e} "
            f"| {other.distance:.0e} |"
        )
    return "\n".join(lines)


def surrogates_on_a_gpu() -> str:
    """The Triton kernel beside the formula: time, memory, how exact it is, and what it adds to training."""
    record = read(GpuRecord, RESULTS / "surrogates-cuda.json")
    alone = read(GpuCosts, RESULTS / "surrogates-cuda-costs.json")
    checks = read(GpuChecks, RESULTS / "surrogates-cuda-checks.json").checks
    lines = []
    for name, row in alone.costs.items():
        text, _, _, image, _, batch = name.split(" ")
        before = f"{row.formula_ms:.1f}" if row.formula_ms else "–"
        peak = f"{row.formula_peak_mb:,.0f}" if row.formula_peak_mb else "–"
        lines.append([
            text, image.replace("x", "×"), batch, before, f"{row.kernel_ms:.1f}", peak,
            f"{row.kernel_peak_mb:,.0f}",
        ])  # fmt: skip
    heads = ["defense", "image", "batch", "ms, torch", "triton", "MB, torch", "triton"]
    far = max(each.far for each in checks.values())
    alike = all(each.repeated and each.alone for each in checks.values())
    bare, through = record.epochs["no shield"], record.epochs["soft"]
    note = (
        f"\n{len(checks)} kinds of quantizer and surrogate: at most {far:.0e} of the largest value "
        f"from the formula in float64; {'the' if alike else '**not** the'} same bits again and alone. An "
        f"epoch of adversarial fine-tuning (ResNet18, PGD-7, {bare.images:,} images, bf16) takes "
        f"{through.seconds:.1f} s through the shield and {bare.seconds:.1f} without: "
        f"{through.times_no_shield:.2f} times as long. {machine(record.machine)}."
    )
    return "\n".join([*table(heads, lines), note])


def compiled() -> str:
    """How many kernels were looked through for the compiler's fault, and how many have it."""
    (path,) = RESULTS.glob("compiled-3.6*.json")
    record = read(CompiledRecord, path)
    return (
        f"{sum(record.kernels.values()):,} kernels of {record.launches} settings, compiled by Triton "
        f"{record.triton} for an H200: {len(record.faults) or 'none'} with such code "
        "(`benchmarks/compiled.py`, which needs no GPU)."
    )


def demo_speed() -> str:
    """The demo's measuring part before and after."""
    record = read(DemoSpeed, RESULTS / "demo-speed.json")
    before, after = (" and ".join(f"{each:.0f}" for each in side) for side in (record.before, record.after))
    return (
        f"The measuring part of `vqshield demo` ({record.images} images, one thread) took {before} CPU "
        f"seconds before, and {after} with this kernel, each codebook found once, the classifier asked in "
        f"smaller batches, and images that are lost for certain left alone; the runs took turns: "
        f"{record.ratio:.2f} times as fast."
    )


SURROGATE_TABLES: dict[str, Callable[[], str]] = {
    "speed-surrogates": surrogates,
    "speed-surrogates-cuda": surrogates_on_a_gpu,
    "speed-compiled": compiled,
    "speed-demo": demo_speed,
}

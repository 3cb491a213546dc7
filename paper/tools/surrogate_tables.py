"""What docs/speed.md says of gradients through the shield: surrogates-DEVICE.json and demo-speed.json."""

from collections.abc import Callable

import recorded
from tables import machine, table


def surrogates() -> str:
    """The soft surrogate's gradient in torch and by the native kernel."""
    record = recorded.load(recorded.BENCHMARKS / "surrogates-cpu.json")
    heads = ["defense", "image", "batch", "CPU ms, torch", "native", "ratio", "MB, torch", "native",
             "distance from float64, torch", "native"]  # fmt: skip
    lines = []
    found = {(row.defense, row.side, row.batch, row.implementation): row for row in record.rows}
    for row in record.rows:
        if row.implementation != "torch":
            continue
        other = found[row.defense, row.side, row.batch, "native"]
        before, after = (1000 * (each.forward + each.backward) for each in (row, other))
        lines.append([
            row.defense, f"{row.side}×{row.side}", str(row.batch), f"{before:.1f}", f"{after:.1f}",
            f"{before / after:.1f}", f"{row.peak_mb:.0f}", f"{other.peak_mb:.0f}", f"{row.distance:.0e}",
            f"{other.distance:.0e}",
        ])  # fmt: skip
    return table(heads, lines)


def surrogates_on_a_gpu() -> str:
    """The Triton kernel compared with the formula: time, memory, accuracy, and its share of training."""
    record = recorded.load(recorded.BENCHMARKS / "surrogates-cuda.json")
    alone = recorded.load(recorded.BENCHMARKS / "surrogates-cuda-costs.json")
    checks = recorded.load(recorded.BENCHMARKS / "surrogates-cuda-checks.json").checks
    lines = []
    for name, row in alone.costs.items():
        text, _, _, image, _, batch = name.split(" ")
        before = f"{row.formula_ms:.1f}" if "formula_ms" in row else "–"
        peak = f"{row.formula_peak_mb:,.0f}" if "formula_peak_mb" in row else "–"
        lines.append([
            text, image.replace("x", "×"), batch, before, f"{row.kernel_ms:.1f}", peak,
            f"{row.kernel_peak_mb:,.0f}",
        ])  # fmt: skip
    heads = ["defense", "image", "batch", "ms, torch", "triton", "MB, torch", "triton"]
    far = max(each.far for each in checks.values())
    alike = all(each.repeated and each.alone for each in checks.values())
    bare, through = record.epochs["no shield"], record.epochs["soft"]
    note = (
        f"{len(checks)} kinds of quantizer and surrogate: at most {far:.0e} of the largest value "
        f"from the formula in float64; {'the' if alike else '**not** the'} same bits again and alone. An "
        f"epoch of adversarial fine-tuning (ResNet18, PGD-7, {bare.images:,} images, bf16) takes "
        f"{through.seconds:.1f} s through the shield and {bare.seconds:.1f} without: "
        f"{through.times_no_shield:.2f} times as long. {machine(record.machine)}."
    )
    return table(heads, lines, note)


def compiled() -> str:
    """How many kernels were looked through for the compiler's fault, and how many have it."""
    (path,) = recorded.BENCHMARKS.glob("compiled-3.6*.json")
    record = recorded.load(path)
    return (
        f"{sum(record.kernels.values()):,} kernels of {record.launches} settings, compiled by Triton "
        f"{record.triton} for an H200: {len(record.faults) or 'none'} with such code "
        "(`benchmarks/compiled.py`, which needs no GPU)."
    )


def demo_speed() -> str:
    """The demo's measuring part before and after."""
    record = recorded.load(recorded.BENCHMARKS / "demo-speed.json")
    before, after = (" and ".join(f"{each:.0f}" for each in side) for side in (record.before, record.after))
    return (
        f"The measuring part of `vqshield demo` ({record.images} images, one thread) took {before} CPU "
        f"seconds before, and {after} with this kernel, each codebook found once, the classifier called in "
        f"smaller batches, and misclassified images skipped; the runs took turns: "
        f"{record.ratio:.2f} times as fast."
    )


SURROGATE_TABLES: dict[str, Callable[[], str]] = {
    "speed-surrogates": surrogates,
    "speed-surrogates-cuda": surrogates_on_a_gpu,
    "speed-compiled": compiled,
    "speed-demo": demo_speed,
}

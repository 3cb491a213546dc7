"""The table of docs/speed-tables.md that says how closely the kernels agree with the exact reference."""

import recorded
from tables import table
from vqshield_paper.speed import read_record
from vqshield_paper.speed.record import AgreementRecord, AgreementRow, ContractsRecord, SanitizerRecord


def agreement() -> str:
    """Every backend and defense measured by benchmarks/agreement.py, and the recorded tests on a GPU."""
    heads = ["backend", "defense", "images", "same codebook", "same assignment", "with a given codebook",
             "inertia ÷ reference's", "images with equal assignments", "largest difference among them",
             "apart by over 1e-4 (with the same codebook)"]  # fmt: skip
    lines = []
    for device, how in (("cpu", ""), ("cuda", ""), ("emulated", ", emulated")):
        record = read_record(AgreementRecord, recorded.BENCHMARKS / f"agreement-{device}.json")
        lines += [_line(row, how) for row in record.rows]
    tests = read_record(ContractsRecord, recorded.BENCHMARKS / "contracts-cuda.json")
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(tests.outcomes.items()))
    checked = read_record(SanitizerRecord, recorded.BENCHMARKS / "sanitizer-cuda.json")
    found = ", ".join(f"{tool} {count}" for tool, count in checked.findings.items())
    return table(
        heads,
        lines,
        f"The contract tests of the defenses on an {tests.machine['device']} "
        f"(`benchmarks/contracts.py`): {counts}. Findings of NVIDIA's compute-sanitizer "
        f"(`benchmarks/sanitizer.py`): {found}.",
    )


def _line(row: AgreementRow, how: str) -> list[str]:
    settings = ", ".join(f"{key}={value}" for key, value in row.settings.items())
    apart = row.largest_difference_among_them
    side = "x".join(str(size) for size in row.shape[1:])
    return [
        f"{row.backend}{how}", f"{row.defense} {settings}, {side}", f"{row.n:,}", f"{row.same_codebook:.1%}",
        f"{row.same_assignment:.4%}", f"{row.same_assignment_with_given_codebook:.4%}",
        f"{row.inertia_ratio:.6f}", f"{row.images_with_equal_assignments:,}",
        "–" if apart is None else f"{apart:.1g}",
        f"{row.images_apart} ({row.images_apart_with_the_same_codebook})",
    ]  # fmt: skip

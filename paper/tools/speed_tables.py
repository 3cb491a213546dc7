"""The tables of docs/speed.md and docs/speed-tables.md, from benchmarks/results/speed-DEVICE.json."""

from collections.abc import Callable
from functools import partial

import recorded
from tables import table, unmeasured
from vqshield_paper.speed import BenchRecord, BenchRow, read_record

DEVICES = ("cpu", "cuda")
MARK = "†"


def read(device: str) -> BenchRecord | None:
    """The record of a device, None where none is kept."""
    path = recorded.BENCHMARKS / f"speed-{device}.json"
    return read_record(BenchRecord, path) if path.is_file() else None


def rates(record: BenchRecord, *, step: str, settings: str) -> str:
    """One row per implementation, one column per workload and number of threads."""
    counts = record.thread_counts
    rows = {row.key: row for row in record.rows}
    heading = "images/s" if len(counts) == 1 else f"images/s, {' / '.join(map(str, counts))} threads"
    lines = []
    notes: dict[str, None] = {}
    for name, about in record.implementations.items():
        cells = []
        for workload in record.workloads:
            found = [rows.get((workload, name, step, settings, count)) for count in counts]
            for row in found:
                if row is not None and row.note:
                    notes[f"{MARK} {name}, {workload}, {row.threads} threads: {row.note}."] = None
            cells.append(
                " / ".join("-" if row is None else _cell(row) for row in found) if any(found) else ""
            )
        if any(cells):
            title = f"**{name}**" if about.ours else name
            lines.append([title, *cells])
    return table([heading, *record.workloads], lines, *(["\n".join(notes)] if notes else []))


def advantage(record: BenchRecord) -> str:
    """The fastest of ours against the fastest other, whatever its result, at every number of threads."""
    heads = ["workload", "threads", "fastest of ours", "fastest other", "ratio",
             "ratio to one process a core of any other", "ratio to scikit-learn"]  # fmt: skip
    lines = []
    for workload in record.workloads:
        for threads in record.thread_counts:
            ours, others = _sides(record, workload, threads)
            if not ours or not others:
                continue
            best = max(ours.values())
            name = max(others, key=lambda each: others[each])
            alone = _sides(record, workload, 1)[1] or others
            ideal = max(max(others.values()), threads * max(alone.values()))
            learn = others.get("scikit-learn")
            lines.append([
                workload, str(threads), f"{max(ours, key=ours.__getitem__)} {_shown(best)}",
                f"{name} {_shown(others[name])}", f"{best / others[name]:.1f}", f"{best / ideal:.1f}",
                "" if learn is None else f"{best / learn:.1f}",
            ])  # fmt: skip
    return table(heads, lines)


def scaling(record: BenchRecord) -> str:
    """How much faster than with the fewest threads ours are with more."""
    counts = record.thread_counts
    lines = []
    known = {row.key: row.images_per_second for row in record.rows}
    for workload in record.workloads:
        for name in record.ours:
            for step in ("kmeans", "defense"):
                keys = [(workload, name, step, "ten", count) for count in counts]
                if all(key in known for key in keys):
                    cells = (f"{known[key] / known[keys[0]]:.2f}" for key in keys)
                    lines.append([workload, name, step, *cells])
    return table(["workload", "implementation", "step", *(f"{count} threads" for count in counts)], lines)


def peak(record: BenchRecord) -> str:
    """What the machine can do at most, and which share of its operations ours reach."""
    heads = ["threads", "float32 product, GFLOP/s", "copy, GB/s",
             "the reference's noise, million values/s", "torch's noise"]  # fmt: skip
    most = [
        [str(each.threads), f"{each.gflops['float32']:,.0f}", f"{each.copy_gbytes:,.0f}",
         f"{each.normals / 1e6:,.0f}", f"{each.torch_normals / 1e6:,.0f}"]
        for each in record.peak
    ]  # fmt: skip
    lines = []
    shares = {row.key: row.share_of_peak for row in record.rows}
    for workload in record.workloads:
        for name in record.ours:
            for count in record.thread_counts:
                rows = (("kmeans", "ten"), ("defense", "ten"), ("defense", "default"))
                found = [shares.get((workload, name, step, settings, count)) for step, settings in rows]
                if any(found):
                    cells = ("" if share is None else f"{share:.1%}" for share in found)
                    lines.append([f"{workload}, {name}", str(count), *cells])
    reached = ["share of that product's speed", "threads", "k-means", "whole defense",
               "with default settings"]  # fmt: skip
    return table(heads, most, table(reached, lines))


def classifier(record: BenchRecord) -> str:
    """The time of the whole defense as a share of the classifier's forward pass."""
    passes = [
        f"{each.classifier}, {each.precision}, {each.form}, batch {each.batch:,}, "
        f"{each.threads} threads: {_shown(each.images_per_second)} images/s."
        for each in record.classifier
    ]
    lines = [
        [f"{each.workload}, {each.implementation}", each.settings, str(each.threads),
         f"{each.share_of_forward:.1%}"]
        for each in record.classifier_ratios
    ]  # fmt: skip
    ratios = table(["whole defense ÷ classifier", "settings", "threads", "share"], lines)
    return "\n".join([*passes, "", ratios])


def memory(record: BenchRecord) -> str:
    """What a call with very many images takes."""
    lines = []
    for each in record.memory:
        parts = (each.input_bytes, each.output_bytes, each.workspace_bytes)
        lines.append([each.implementation, f"{each.images:,}", *(f"{part / 1e6:,.0f}" for part in parts)])
    return table(["implementation", "images", "input, MB", "output, MB", "besides, MB"], lines)


def plot(record: BenchRecord) -> str:
    """The picture of the same run."""
    return f"![Images per second by workload and implementation](images/speed-{record.rows[0].device}.png)"


def machine(record: BenchRecord) -> str:
    """What it was measured with, and what was not."""
    used = record.machine
    versions = ", ".join(f"{name} {number}" for name, number in used.packages.items())
    lines = [
        f"{used.place}, {used.cores} cores; vqshield {used.vqshield}, torch {used.torch}, {versions}; "
        f"{record.seconds:.0f} s in all{'' if record.complete else ', not complete'}."
    ]
    lines += [f"- {name}: {each.about}." for name, each in record.implementations.items() if each.about]
    measured = {f"{row.workload} {row.step} {row.implementation}" for row in record.rows}
    lines += [
        f"- Not measured{' with another batch' * (each.name in measured)}: {each.name} ({each.reason})."
        for each in record.skipped
    ]
    return "\n".join(lines)


def rounds(record: BenchRecord) -> str:
    """What the workloads are."""
    heads = ["workload", "image", "defense", "patches n", "values d", "centres k", "batch",
             "iterations needed"]  # fmt: skip
    lines = []
    for name, each in record.workloads.items():
        needed = "" if each.rounds is None else f"{each.rounds:.1f}"
        batches = sorted({row.batch for row in record.rows if row.workload == name})
        lines.append([
            name, f"{each.channels} x {each.side} x {each.side}", f"{each.defense} s={each.size}",
            f"{each.count:,}", str(each.dimensions), str(each.codes),
            ", ".join(f"{batch:,}" for batch in batches), needed,
        ])  # fmt: skip
    return table(heads, lines)


def _shown(images: float) -> str:
    return f"{images:,.0f}" if images >= 100 else f"{images:.1f}"


def _cell(row: BenchRow) -> str:
    return _shown(row.images_per_second) + (f" {MARK}" if row.note else "")


def _sides(record: BenchRecord, workload: str, threads: int) -> tuple[dict[str, float], dict[str, float]]:
    """Rates of k-means: ours, and the others'."""
    ours: dict[str, float] = {}
    others: dict[str, float] = {}
    for row in record.rows:
        if (row.workload, row.step, row.threads) == (workload, "kmeans", threads):
            side = ours if record.implementations[row.implementation].ours else others
            side[row.implementation] = row.images_per_second
    return ours, others


def _table(make: Callable[[BenchRecord], str], device: str) -> str:
    record = read(device)
    return unmeasured(f"benchmarks/speed.py --device {device}") if record is None else make(record)


_MAKERS: dict[str, Callable[[BenchRecord], str]] = {
    "rounds": rounds,
    "kmeans": partial(rates, step="kmeans", settings="ten"),
    "advantage": advantage,
    "defense": partial(rates, step="defense", settings="ten"),
    "default": partial(rates, step="defense", settings="default"),
    "scaling": scaling,
    "peak": peak,
    "classifier": classifier,
    "memory": memory,
    "machine": machine,
    "plot": plot,
}
SPEED_TABLES: dict[str, Callable[[], str]] = {
    f"speed-{device}-{name}": partial(_table, make, device)
    for device in DEVICES
    for name, make in _MAKERS.items()
}

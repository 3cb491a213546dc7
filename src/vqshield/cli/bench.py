"""`vqshield bench`: how many images per second the quantizers take on this machine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import typer

from vqshield.cli.options import Device
from vqshield.cli.output import AsJson, show, show_json
from vqshield.core import checks
from vqshield.core.environment import environment, pick_device
from vqshield.defenses import as_defense
from vqshield.quantization.kernels import kernel_name
from vqshield.reports.table import Column, Table

WORKLOADS = (
    ("randdisc:codes=25", 32), ("prd:size=2,codes=25", 32), ("swrd:size=3,codes=25", 32),
    ("swrd:size=3,codes=30", 224),
)  # fmt: skip
_BATCHES = {("cpu", 32): 64, ("cpu", 224): 2, ("cuda", 32): 16384, ("cuda", 224): 256}


def bench(
    device: Device = "auto",
    seconds: Annotated[float, typer.Option(help="Measure each row for about this long.")] = 2.0,
    threads: Annotated[int | None, typer.Option(help="Use this many CPU threads (default: all).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure images per second of the quantizers."""
    checks.real("seconds", seconds)
    place = pick_device(device)
    with _threads(threads):
        rows = [_measured(defense, side, place, seconds) for defense, side in WORKLOADS]
        machine = environment(place)
    if as_json:
        show_json({"rows": rows, "environment": machine})
        return
    table = Table(
        title=f"Images per second on {machine['device']}, {rows[0]['threads']} CPU threads",
        columns=[
            Column("defense", "defense"),
            Column("image", "image"),
            Column("kernel", "kernel"),
            Column("images_per_second", "images/s", "number", format=",.1f"),
        ],
        rows=[
            [row["defense"], "{side}×{side}".format_map(row), row["kernel"], row["images_per_second"]]
            for row in rows
        ],
    )
    show(table.terminal())


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Run with that many CPU threads, then with as many as before."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(checks.whole("threads", count, least=1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measured(spec: str, side: int, device: torch.device, seconds: float) -> dict[str, str | int | float]:
    """Images per second of one defense on images of one size, the median of the repeats."""
    batch = _BATCHES[device.type, side]
    images = torch.rand((batch, 3, side, side), generator=torch.Generator().manual_seed(0)).to(device)
    defense = as_defense(spec, seed=0)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 2 or time.perf_counter() - start < seconds:
        began = time.perf_counter()
        defense(images)
        if images.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
        if len(times) == 1:  # the first call compiles kernels
            start = time.perf_counter()
    median = sorted(times[1:])[len(times[1:]) // 2]
    return {
        "defense": spec, "side": side, "kernel": kernel_name("auto", device),
        "threads": torch.get_num_threads(), "batch": batch, "images_per_second": batch / median,
    }  # fmt: skip

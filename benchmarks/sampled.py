"""What does a codebook from some of an image's patches save, and what does it cost?

    python benchmarks/sampled.py --data-dir NIPS17 [--images 200]
    PYTHONPATH=src python3 benchmarks/sampled.py --device cuda --out benchmarks/results/sampled-cuda.json

swRD with ImageNet's settings and default k-means. Speed is that of the whole defense on pictures of 328×328,
one thread on a CPU. Inertia is the squared distance of the clean patches from their nearest centres, beside
that with all patches. Where photographs are given, the accuracy of EfficientNet-lite0 behind the shield
(224×224, several draws) is measured too, by vqshield.evaluate. Writes benchmarks/results/sampled-DEVICE.json.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it

import torch
from torch import Tensor

import vqshield as vq
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.defenses import from_text
from vqshield_paper.speed.record import SampledRecord, SampledRow
from vqshield_paper.speed.timing import measure
from vqshield_paper.speed.workloads import pictures, workload

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = (None, 16384, 4096, 1024, 256)
LARGE = workload("large-swrd-3-30")
CLASSIFIER, DATA, RUNS = "efficientnet-lite0", "nips17", 3
SHOWN = 16  # pictures whose inertia is measured


def inertia(defense: vq.Quantizer, images: Tensor) -> float:
    """Summed over images, whose patches are looked at a part at a time."""
    total, count = 0.0, defense.grid.count(*images.shape[2:])
    centres = defense.codebook(images, streams=torch.arange(len(images), device=images.device))
    for start in range(0, count, 8192):
        patches = defense.grid.cut(images, start, min(count, start + 8192))
        total += float(torch.cdist(patches.double(), centres.double()).amin(2).square().sum())
    return total


def spec(sample: int | None) -> str:
    given = "" if sample is None else f",sample={sample}"
    return f"swrd:size=3,codes=30,beta=6502.5{given}"


def shield(sample: int | None) -> vq.Quantizer:
    made = from_text(spec(sample), seed=0)
    assert isinstance(made, vq.Quantizer)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", type=Path, help="the folder of NIPS-2017's images")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--batch", type=int, help="pictures a call; 4 on a CPU, 64 on a GPU")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for each speed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    batch = options.batch or (4 if device.type == "cpu" else 64)
    images = pictures(LARGE, batch, device)
    accuracies: dict[str, tuple[float, float]] = {}
    if options.data_dir is not None:
        found = vq.evaluate(
            CLASSIFIER, DATA, data_dir=options.data_dir, defense=[spec(each) for each in SAMPLES],
            samples=RUNS, limit=options.images, device=options.device, batch=25,
        )  # fmt: skip
        accuracies = {row.defense: (row.mean, row.standard_error) for row in found.rows}
    whole = inertia(shield(None), images[:SHOWN])
    rows = []
    for sample in SAMPLES:
        defense = shield(sample)
        _, timing = measure(lambda d=defense: d(images), device=device, budget=options.budget)
        accuracy, error = accuracies.get(spec(sample), (None, None))
        rows.append(
            SampledRow(
                sample=sample,
                images_per_second=batch / timing.median,
                inertia_ratio=inertia(defense, images[:SHOWN]) / whole,
                accuracy=accuracy,
                standard_error=error,
            )
        )
        print(rows[-1], flush=True)
    record = SampledRecord(
        what="speed, inertia and accuracy of swRD whose codebook is found in some of the patches",
        machine=dict(environment(device)),
        defense=spec(None),
        side=LARGE.side,
        batch=batch,
        classifier=CLASSIFIER if accuracies else None,
        images=options.images if accuracies else 0,
        runs=RUNS,
        rows=tuple(rows),
    )
    out = options.out or ROOT / "benchmarks" / "results" / f"sampled-{device.type}.json"
    write_json(out, to_plain(record))


if __name__ == "__main__":
    main()

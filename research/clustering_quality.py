"""Does better clustering raise the natural accuracy of pRD? Ours beside scikit-learn's k-means; to results/.

    python experiments/clustering_quality.py --data-dir DIR --classifier resnet18-cifar10.safetensors FILE…

pRD(2, 25) of CIFAR-10 test images, with the paper's noise: by our kernel, and by scikit-learn with one start
and with the best of ten, which ends with a smaller distortion. If the paper's higher figures came from a
better codebook, the last one should come nearer to them.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import fold, unfold
from vqshield.studies.specification import defense

from vqshield.environment import environment
from vqshield.files import write_json
from vqshield.runs.target import Subject, load_subject

SIZE, CODES, NOISE = 2, 25, 4 / 255
OURS = f"prd:size={SIZE},codes={CODES}"


def by_scikit_learn(images: Tensor, *, starts: int, seed: int) -> Tensor:
    """The paper's algorithm 1, image by image."""
    generator, found = torch.Generator().manual_seed(seed), []
    for number, patches in enumerate(unfold(images, SIZE, stride=SIZE).transpose(1, 2)):  # (n, q·s²)
        for_codes = patches + NOISE * torch.randn(patches.shape, generator=generator)
        for_labels = patches + NOISE * torch.randn(patches.shape, generator=generator)
        fitted = KMeans(CODES, n_init=starts, random_state=seed + number).fit(for_codes.numpy())
        found.append(torch.from_numpy(fitted.cluster_centers_)[fitted.predict(for_labels.numpy())].float())
    return fold(torch.stack(found).transpose(1, 2), images.shape[-2:], SIZE, stride=SIZE).clamp(0, 1)


def by_us(images: Tensor, *, seed: int) -> Tensor:
    shield = defense(OURS, seed=seed)
    assert shield is not None
    with torch.no_grad():
        return shield(images)


def accuracy(subject: Subject, images: Tensor) -> float:
    with torch.no_grad():
        found = torch.cat([subject.classifier(part).argmax(1) for part in images.split(100)])
    return float((found == subject.data.labels).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--classifier", nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/clustering-quality-cifar10.json"))
    options = parser.parse_args()
    began = time.perf_counter()
    subjects = [
        load_subject(
            data="cifar10", data_dir=options.data_dir, classifier=each, limit=options.limit, device="cpu"
        )
        for each in options.classifier
    ]
    images = subjects[0].data.floats()
    quantized = {
        "ours": by_us(images, seed=options.seed),
        "scikit-learn, one start": by_scikit_learn(images, starts=1, seed=options.seed),
        "scikit-learn, best of ten starts": by_scikit_learn(images, starts=10, seed=options.seed),
    }
    rows: list[dict[str, Any]] = [
        {
            "clustering": name,
            "mean_squared_error": float((found - images).square().mean()),
            "accuracy": {subject.name: accuracy(subject, found) for subject in subjects},
        }
        for name, found in quantized.items()
    ]
    record = {
        "what": "natural accuracy of pRD with codebooks of different quality",
        "data": subjects[0].described()["data"],
        "classifiers": [subject.described()["classifier"] for subject in subjects],
        "defense": OURS,
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "environment": environment(),
        "rows": rows,
    }
    write_json(options.out, record)
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()

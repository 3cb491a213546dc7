"""Why MNIST classifiers fail behind a quantizer under attack: digits on a background that is not black.

    python experiments/mnist_background.py --data-dir DIR --classifier resnet18-mnist.safetensors FILE…

An attack of eps = 0.31 raises some of the black pixels; two codes restore the shape of the digit, on a
background of their mean. Measured: what a classifier makes of natural digits with the background raised, of
attacked and quantized ones, and of these with their two values stretched back to 0 and 1. To results/.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vqshield.studies.specification import defense

from vqshield.attacks import Linf
from vqshield.environment import environment
from vqshield.files import write_json
from vqshield.runs.target import Subject, load_subject
from vqshield.threats import threat

RAISED = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
ATTACK, EPS, DEFENSE = "pgd:steps=40,step=0.0155,surrogate=none", 0.31, "randdisc:codes=2"


def stretched(images: Tensor) -> Tensor:
    """The darkest value of each image at 0, the brightest at 1."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp(min=1e-6)


def answers(subject: Subject, images: Tensor) -> dict[str, Any]:
    with torch.no_grad():
        found = torch.cat([subject.classifier(part).argmax(1) for part in images.split(250)]).cpu()
    counts = torch.bincount(found, minlength=len(subject.data.classes))
    right = float((found == subject.data.labels).double().mean())
    return {
        "right": right,
        "most_frequent": int(counts.argmax()),
        "its_share": float(counts.max() / len(found)),
    }


def measure(subject: Subject, seed: int) -> dict[str, Any]:
    images, labels = subject.data.floats().to(subject.device), subject.data.labels.to(subject.device)
    shield = defense(DEFENSE, seed=seed)
    assert shield is not None
    shield.to(subject.device)
    attacked = threat(ATTACK, Linf(EPS), seed=seed)(subject.classifier, shield, images, labels)
    with torch.no_grad():
        quantized = shield(attacked)
    black = images < 0.1
    return {
        **subject.described()["classifier"],
        "raised": [{"background": low, **answers(subject, low + (1 - low) * images)} for low in RAISED],
        "attacked": answers(subject, attacked),
        "quantized": answers(subject, quantized),
        "stretched": answers(subject, stretched(quantized)),
        "background": {
            "attacked": float(attacked[black].mean()),
            "quantized": float(quantized[black].mean()),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--classifier", nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/mnist-background.json"))
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for classifier in options.classifier:
        subject = load_subject(
            data="mnist", data_dir=options.data_dir, classifier=classifier, limit=options.limit,
            device=options.device,
        )  # fmt: skip
        rows.append(measure(subject, options.seed))
        print(rows[-1])
    record = {
        "what": "right answers about MNIST digits on a raised background, and attacked behind a quantizer",
        "data": subject.described()["data"],
        "attack": ATTACK,
        "eps": EPS,
        "defense": DEFENSE,
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "environment": environment(subject.device),
        "rows": rows,
    }
    write_json(options.out, record)


if __name__ == "__main__":
    main()

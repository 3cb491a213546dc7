"""Why do MNIST classifiers fail behind a quantizer under attack? Digits on a background that is not black.

    python paper/research/mnist_background.py --data-dir DIR --classifier resnet18-mnist.safetensors FILE…

An attack of eps = 0.31 raises some of the black pixels; two codes restore the shape of the digit, on a
background of their mean. Measured: what a classifier answers for natural digits with the background raised,
for attacked and quantized ones, and for these with their two values stretched back to 0 and 1.
Writes paper/results/mnist-background.json.
"""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common import Target, answers, defense_of, described, ending, make_parser
from vqshield.attacks import Linf
from vqshield.attacks.threats import threat
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain

RAISED = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
ATTACK, EPS, DEFENSE = "pgd:steps=40,step=0.0155,surrogate=none", 0.31, "randdisc:codes=2"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The share of right answers, and how one class crowds out the others.

    background: what black is raised to, for natural digits on a raised background.
    """

    background: float | None = field(default=None, metadata={"omit": True})
    right: float
    most_frequent: int
    its_share: float


@dataclass(frozen=True, kw_only=True)
class Background:
    """The mean of the pixels that were black."""

    attacked: float
    quantized: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was found about one classifier."""

    name: str
    sha256: str
    raised: tuple[Answers, ...]
    attacked: Answers
    quantized: Answers
    stretched: Answers
    background: Background


def stretched(images: Tensor) -> Tensor:
    """The darkest value of each image at 0, the brightest at 1."""
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    return (images - low) / (high - low).clamp(min=1e-6)


def ask(target: Target, images: Tensor, background: float | None = None) -> Answers:
    found = answers(target, images, batch=250)
    counts = torch.bincount(found, minlength=len(target.images.classes))
    return Answers(
        background=background,
        right=float((found == target.images.labels).double().mean()),
        most_frequent=int(counts.argmax()),
        its_share=float(counts.max() / len(found)),
    )


def measure(target: Target, seed: int) -> Row:
    images, labels = target.images.floats().to(target.place), target.images.labels.to(target.place)
    shield = defense_of(DEFENSE, seed=seed).to(target.place)
    attacked = threat(ATTACK, Linf(EPS), seed=seed)(target.model, shield, images, labels)
    quantized = shield(attacked).detach()
    black = images < 0.1
    return Row(
        name=target.name,
        sha256=target.classifier_id.sha256,
        raised=tuple(ask(target, low + (1 - low) * images, low) for low in RAISED),
        attacked=ask(target, attacked),
        quantized=ask(target, quantized),
        stretched=ask(target, stretched(quantized)),
        background=Background(
            attacked=float(attacked[black].mean()), quantized=float(quantized[black].mean())
        ),
    )


def main() -> None:
    parser = make_parser(__doc__, "paper/results/mnist-background.json", data_required=True)
    parser.add_argument("--classifier", nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    for classifier in options.classifier:
        target = Target(
            data="mnist",
            data_dir=options.data_dir,
            classifier=classifier,
            limit=options.limit,
            device=options.device,
        )
        rows.append(measure(target, options.seed))
        print(rows[-1])
    record = {
        "what": "right answers about MNIST digits on a raised background, and attacked behind a quantizer",
        "data": described(target)["data"],
        "attack": ATTACK,
        "eps": EPS,
        "defense": DEFENSE,
        "seed": options.seed,
        **ending(began, target.place),
        "rows": rows,
    }
    write_json(options.out, to_plain(record))


if __name__ == "__main__":
    main()

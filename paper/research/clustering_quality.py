"""Does better clustering raise the natural accuracy of pRD? Ours against scikit-learn's k-means.

    python paper/research/clustering_quality.py --data-dir DIR --classifier resnet18-cifar10.safetensors FILE…

pRD(2, 25) of CIFAR-10 test images, with the paper's noise: by our kernel, and by scikit-learn with one start
and with the best of ten, which ends with a smaller distortion. If the paper's higher accuracies came from a
better codebook, the last one should come closer to them. Writes
paper/results/clustering-quality-cifar10.json.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import fold, unfold

from common import Target, answers, defense_of, described, ending, make_parser
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain

SIZE, CODES, NOISE = 2, 25, 4 / 255
OURS = f"prd:size={SIZE},codes={CODES}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to cluster: how far the images move, and the accuracy of every classifier."""

    clustering: str
    mean_squared_error: float
    accuracy: Mapping[str, float]


def by_scikit_learn(images: Tensor, *, starts: int, seed: int) -> Tensor:
    """The paper's algorithm 1, image by image."""
    generator, found = torch.Generator().manual_seed(seed), []
    for number, patches in enumerate(unfold(images, SIZE, stride=SIZE).transpose(1, 2)):  # (n, q·s²)
        for_codes = patches + NOISE * torch.randn(patches.shape, generator=generator)
        for_labels = patches + NOISE * torch.randn(patches.shape, generator=generator)
        fitted = KMeans(CODES, n_init=starts, random_state=seed + number).fit(for_codes.numpy())
        found.append(torch.from_numpy(fitted.cluster_centers_)[fitted.predict(for_labels.numpy())].float())
    return fold(torch.stack(found).transpose(1, 2), images.shape[-2:], SIZE, stride=SIZE).clamp(0, 1)


def main() -> None:
    parser = make_parser(__doc__, "paper/results/clustering-quality-cifar10.json", data_required=True)
    parser.set_defaults(device="cpu")
    parser.add_argument("--classifier", nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began, seed = time.perf_counter(), options.seed
    targets = [
        Target(
            data="cifar10",
            data_dir=options.data_dir,
            classifier=each,
            limit=options.limit,
            device=options.device,
        )
        for each in options.classifier
    ]
    images, labels = targets[0].data.floats(), targets[0].data.labels
    quantized = {
        "ours": defense_of(OURS, seed=seed)(images),
        "scikit-learn, one start": by_scikit_learn(images, starts=1, seed=seed),
        "scikit-learn, best of ten starts": by_scikit_learn(images, starts=10, seed=seed),
    }
    rows = [
        Row(
            clustering=name,
            mean_squared_error=float((found - images).square().mean()),
            accuracy={
                target.name: float(
                    (answers(target, found.to(target.place), batch=100) == labels).double().mean()
                )
                for target in targets
            },
        )
        for name, found in quantized.items()
    ]
    record = {
        "what": "natural accuracy of pRD with codebooks of different quality",
        "data": targets[0].described()["data"],
        "classifiers": [described(target)["classifier"] for target in targets],
        "defense": OURS,
        "seed": seed,
        **ending(began, targets[0].device),
        "rows": rows,
    }
    write_json(options.out, to_plain(record))
    print(*rows, sep="\n")


if __name__ == "__main__":
    main()

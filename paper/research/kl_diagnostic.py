"""What does the KL diagnostic say of single images under PGD, and does the kind of mixture matter?

    python paper/research/kl_diagnostic.py --data-dir DIR --weights FILE --device cuda --image 0 \\
        --eps 8/255 --defense swrd:size=3,codes=25 --codebooks 10000 --out paper/results/kl-cifar10-swrd.json

Wrote paper/results/kl-cifar10-*.json and, with several --covariance, paper/results/kl-covariances-
cifar10.json.gz; many images with one kind of mixture are F8, `vqshield reproduce F8`. Without --data-dir:
the bundled sample and classifier. A fitted mixture bounds nothing: compare kl with its floor, the same
measurement at eps = 0.
"""

import argparse
import sys
import time
from dataclasses import asdict
from fractions import Fraction
from itertools import product
from typing import Any

import torch

from common import BUNDLED, Target, defense_of, described, ending, make_parser
from vqshield.attacks import PGD, Linf
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield_paper.kl.covariances import kinds
from vqshield_paper.kl.divergence import STARTS
from vqshield_paper.kl.fitting import MixtureSettings
from vqshield_paper.kl.measurement import DivergenceSettings, Measurement, measure

DEFENSES = ("randdisc:codes=25", "prd:size=2,codes=25", "swrd:size=3,codes=25")
FIRST = ("kl", "floor", "excess")
HEADING = "eps     " + "  ".join(f"{name:>17}" for name in (*FIRST, "labels")) + "   held-out loss   (nats)"

WHAT = "KL diagnostic: fitted mixtures, no bound; compare kl with its floor"


def fraction(text: str) -> float:
    return float(Fraction(text))


def arguments() -> argparse.Namespace:
    usual, mixture = DivergenceSettings(), MixtureSettings()
    parser = make_parser(__doc__, "paper/results/kl-cifar10.json")
    parser.add_argument("--data", default="cifar10", help="where --data-dir is given")
    parser.add_argument("--weights", default=BUNDLED)
    parser.add_argument("--defense", nargs="+", default=DEFENSES)
    parser.add_argument("--image", type=int, nargs="+", default=[0])
    parser.add_argument("--eps", type=fraction, nargs="+", default=[8 / 255])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--codebooks", type=int, default=usual.codebooks)
    parser.add_argument("--label-codebooks", type=int, default=usual.label_codebooks)
    parser.add_argument("--lines", type=int, default=usual.lines)
    parser.add_argument("--samples", type=int, default=usual.samples)
    parser.add_argument("--batch", type=int, default=usual.batch)
    parser.add_argument("--components", type=int, default=mixture.components)
    parser.add_argument("--covariance", choices=kinds(), nargs="+", default=[mixture.covariance])
    parser.add_argument("--starts", choices=STARTS, default=usual.starts)
    parser.add_argument("--iterations", type=int, default=mixture.iterations)
    parser.add_argument("--restarts", type=int, default=mixture.restarts)
    parser.add_argument("--seed", type=int, default=usual.seed)
    return parser.parse_args()


def settings(options: argparse.Namespace, covariance: str) -> DivergenceSettings:
    mixture = {name: getattr(options, name) for name in ("components", "iterations", "restarts")}
    names = ("codebooks", "label_codebooks", "lines", "samples", "starts", "batch", "seed")
    return DivergenceSettings(
        mixture=MixtureSettings(**mixture, covariance=covariance),
        **{name: getattr(options, name) for name in names},
    )


def progress(stage: str) -> None:
    print(stage, end=", ", file=sys.stderr, flush=True)


def plain(found: Measurement) -> dict[str, Any]:
    """A row's part of the record; environment and settings are said once, for all rows."""
    names = ("defense", "distance", "seeds", "second_is", "proved", "seconds")
    return {
        "what": WHAT, "images": 1, **{name: to_plain(getattr(found, name)) for name in names},
        **to_plain(found.diagnostic),
    }  # fmt: skip


def row(record: dict[str, Any]) -> str:
    first = [f"{record[name]['value']:9.2f} ±{record[name]['standard_error']:6.2f}" for name in FIRST]
    second = record["second"]
    shown = "not computed" if second is None else f"{second['value']:9.2f} ±{second['standard_error']:6.2f}"
    lost = record["log_likelihood"] - record["held_out"]
    return f"{record['eps']:.4f}  " + "  ".join([*first, shown]) + f"  {lost:9.2f}"


def main() -> None:
    options = arguments()
    chosen = {kind: settings(options, kind) for kind in options.covariance}
    target = Target(
        data=SAMPLE_NAME if options.data_dir is None else options.data,
        data_dir=options.data_dir,
        classifier=options.weights,
        limit=max(options.image) + 1,
        device=options.device,
    )
    place = target.place
    began, rows = time.perf_counter(), []
    attacks = [
        PGD(ball=Linf(eps), steps=options.steps, step="eps/10", seed=options.seed) for eps in options.eps
    ]
    for number in options.image:
        image = target.images.floats(slice(number, number + 1)).to(place)
        label = target.images.labels[number : number + 1].to(place)
        moved = torch.cat([attack(target.model, image, label) for attack in attacks])
        for text, kind in product(options.defense, options.covariance):
            title = f"image {number}, {text}, {kind}"
            print(title, end=": ", file=sys.stderr)
            shield = defense_of(text, seed=0).to(place)
            records = measure(shield, image, moved, settings=chosen[kind], report=progress)
            print("done", file=sys.stderr)
            print(f"{title}\n{HEADING}")
            for eps, found in zip(options.eps, records, strict=True):
                rows.append({"text": text, "eps": eps, "image": number, **plain(found)})
                print(row(rows[-1]))
            seconds = records[0].seconds.items()
            print("seconds, of all budgets: " + ", ".join(f"{name} {value}" for name, value in seconds))
    common = asdict(chosen[options.covariance[0]])
    record = {
        **described(target),
        "what": WHAT,
        "attack": f"pgd-{options.steps} on the bare classifier",
        "settings": {**common, "mixture": {**common["mixture"], "covariance": options.covariance}},
        **ending(began, place),
        "rows": rows,
    }
    write_json(options.out, record)
    print(f"{options.out}: written after {record['seconds']} s")


if __name__ == "__main__":
    main()

"""Which noisy quantizer certifies the largest L2 radii, and does any beat plain Gaussian smoothing?

    python paper/research/certified_radius.py --data-dir DIR --weights resnet18-cifar10.safetensors --pilot \\
        --device cuda --out pilot.json
    python paper/research/certified_radius.py --data-dir DIR --weights resnet18-cifar10.safetensors \\
        --fine-tuned tuned/*.safetensors --best-of pilot.json --device cuda --deadline 240
    python paper/tools/certificate_plot.py

Writes paper/results/certified-radius-cifar10-resnet18.json (the pilot's is kept gzipped next to it). Without
--data-dir: the bundled sample and classifier. A fine-tuned classifier is certified behind the shield that its
file says it was trained behind (`vqshield train --defense`). Configurations are compared at an equal level:
sigma_eff, less the factor that copied pixels cost, which is 1 except for sliding windows with noise on each;
the radius is the level times a function of the votes. The pilot takes the last images of the test set and
another seed, so that what it chooses is not chosen by chance. Nothing starts after the deadline; what is
finished is in the file, and the same command continues with the rest.
"""

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from safetensors import safe_open

from common import BUNDLED, Target, described, make_parser
from vqshield.certificates import Coverage
from vqshield.certification.records import VoteRecord
from vqshield.certification.study import Certification
from vqshield.certification.summary import CertificationSummary
from vqshield.classifiers.folding import PRECISIONS
from vqshield.core import checks
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.core.settings import parse_spec
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import from_text

# The most telling first. The smallest is that of the paper's pRD: two draws of 4/255.
LEVELS = (0.12, 0.25, 0.06, 4 / 255 / math.sqrt(2))
QUANTIZERS = tuple(
    f"{name},codes={codes}" if ":" in name else f"{name}:codes={codes}"
    for codes in (70, 25)
    for name in ("swrd:size=3", "prd:size=2", "randdisc", "swrd:size=2", "prd:size=3")
)
NOISES = ("shared", "image", "patch")
RADII = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)  # common to all levels
STEPS, REACH = 10, 3.3  # radii a sigma_eff, up to what ten thousand draws can certify


@dataclass(frozen=True, kw_only=True)
class Job:
    """One configuration of one classifier."""

    weights: str
    tuned_behind: str | None
    defense: str

    @property
    def level(self) -> float:
        """sigma_eff / copies, rounded: what configurations are compared at."""
        covered = Coverage.of(**from_text(self.defense, seed=0).certificate_terms())
        return float(f"{covered.sigma_eff / covered.copies:.4g}")


@dataclass(frozen=True, kw_only=True)
class Choosable:
    """What a pilot's row must say for the best to be chosen."""

    defense: str
    tuned_behind: str | None
    noise: str
    level: float
    mean_radius: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """At one radius: the share of votes that are certified right, and the certified accuracy of one draw."""

    radius: float
    certified: float
    draw: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one configuration certified; an image whose vote is wrong or not certified has radius 0."""

    defense: str
    classifier: Mapping[str, str]
    tuned_behind: str | None
    noise: str
    level: float
    settings: Mapping[str, Json]
    images: int
    abstained: float
    mean_radius: float
    largest_radius: float
    sigma_eff: float
    copies: float
    draws_right: float
    votes_right: float
    certified_right: float
    curve: tuple[Point, ...]
    seconds: float

    @property
    def key(self) -> tuple[str, str]:
        """What was certified: the weights and the configuration."""
        return self.classifier["sha256"], self.defense

    def __str__(self) -> str:
        who = "fine-tuned" if self.tuned_behind else "as given"
        return (
            f"{self.level:<7g} {self.mean_radius:.4f} mean radius, certified {self.certified_right:6.1%}, "
            f"votes {self.votes_right:6.1%}, abstained {self.abstained:6.1%}, {self.seconds:6.1f} s  "
            f"{self.defense}, {who}"
        )


def configuration(quantizer: str, noise: str, level: float) -> str:
    """The quantizer, with the noise that makes sigma_eff / copies equal to the level."""
    weights = ",weights_from=noisy" if noise == "patch" and quantizer.startswith("swrd") else ""
    shield = from_text(f"{quantizer},noise={noise},sigma=1,tau=1{weights}", seed=0)
    unit = Coverage.of(**shield.certificate_terms())
    scale = level * unit.copies / unit.sigma_eff
    return f"{quantizer},noise={noise},sigma={scale:.6g},tau={scale:.6g}{weights}"


def configurations() -> list[str]:
    """All of them, the most important first; those whose patches would need more noise than a quantizer takes
    are left out (the pilot's file, of an earlier version, has two).
    """
    plain = [f"gaussian:sigma={level:.6g}" for level in LEVELS]
    quantizers = [configuration(*each) for each in product(QUANTIZERS, NOISES, LEVELS)]
    return plain + [text for text in quantizers if parse_spec(text)[1]["sigma"] <= checks.MOST_NOISE]


def best_of(path: Path, top: int) -> list[str]:
    """Of every level in a pilot's file: the Gaussian, and the `top` quantizers by their mean radius."""
    written = json.loads(path.read_text())["rows"]
    every = from_plain(tuple[Choosable, ...], written, path.name, strict=False)
    rows = [row for row in every if row.tuned_behind is None]
    chosen: list[list[str]] = [[] for _ in range(top + 1)]  # by rank, so that every level gets its best first
    for level in dict.fromkeys(row.level for row in rows):
        here = sorted((row for row in rows if row.level == level), key=lambda row: -row.mean_radius)
        chosen[0] += [row.defense for row in here if row.noise == "gaussian"]
        for rank, row in enumerate([row for row in here if row.noise != "gaussian"][:top]):
            chosen[rank + 1].append(row.defense)
    return [text for texts in chosen for text in texts]


def trained_behind(path: str) -> str:
    if not Path(path).is_file():
        raise InvalidInputError(f"{path} is not a file; give safetensors that vqshield train --defense wrote")
    with safe_open(path, framework="pt") as file:
        found = (file.metadata() or {}).get("shield")
    if found is None:
        raise InvalidInputError(
            f"{path} does not say what it was trained behind; train it with vqshield train --defense"
        )
    return str(found)


def planned(options: argparse.Namespace) -> list[Job]:
    """Fine-tuned classifiers first: they are what the others are compared with."""
    texts = options.configuration or (
        configurations() if options.best_of is None else best_of(options.best_of, options.top)
    )
    tuned = [(path, trained_behind(path)) for path in options.fine_tuned]
    jobs = [Job(weights=path, tuned_behind=text, defense=text) for path, text in tuned]
    return jobs + [Job(weights=options.weights, tuned_behind=None, defense=text) for text in texts]


def grid(level: float) -> list[float]:
    own = (number / STEPS * level for number in range(round(REACH * STEPS)))
    return sorted({float(f"{radius:.4g}") for radius in (*own, *RADII)})


def certify(job: Job, target: Target, settings: Certification) -> Row:
    """Certify every image behind one configuration."""
    began = time.perf_counter()
    found = replace(settings, target=target, defense=job.defense).in_memory()
    vote = CertificationSummary.of(found, radii=grid(job.level)).vote
    assert vote is not None
    chosen = [record.selected == record.label for record in found.records if isinstance(record, VoteRecord)]
    used = dict(found.manifest.defense.settings or {})
    names = ("images", "abstained", "mean_radius", "largest_radius", "sigma_eff", "copies")
    return Row(
        defense=job.defense,
        classifier=described(target)["classifier"],
        tuned_behind=job.tuned_behind,
        noise=used.get("noise", "gaussian"),
        level=job.level,
        settings=used,
        **{name: getattr(vote, name) for name in names},
        draws_right=vote.accuracy,
        votes_right=sum(chosen) / len(chosen),
        certified_right=vote.right,
        curve=tuple(
            Point(radius=point.radius, certified=point.vote, draw=point.draw) for point in vote.curve
        ),
        seconds=round(time.perf_counter() - began, 2),
    )


def loaded(weights: str, options: argparse.Namespace) -> Target:
    """The first images, or for a pilot the last ones: what is chosen on some is reported on others."""
    data = SAMPLE_NAME if options.data_dir is None else "cifar10"
    found = Target(data=data, data_dir=options.data_dir, classifier=weights, device=options.device)
    if not options.pilot:
        return replace(found, limit=options.limit)
    part, whole = slice(-options.limit, None), found.images
    return Target.in_memory(found.model, whole.floats(part), whole.labels[part])


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "paper/results/certified-radius-cifar10-resnet18.json")
    parser.add_argument("--weights", default=BUNDLED)
    parser.add_argument("--fine-tuned", nargs="*", default=[])
    parser.add_argument("--configuration", nargs="+", help="only these, as in swrd:noise=image,sigma=0.1")
    parser.add_argument("--best-of", type=Path, help="a pilot's file to choose the configurations from")
    parser.add_argument("--top", type=int, default=3, help="how many quantizers of each level from --best-of")
    parser.add_argument("--pilot", action="store_true", help="few draws of few other images")
    parser.add_argument("--limit", type=int, help="images; without it 500, in a pilot 50")
    parser.add_argument("--n0", type=int, default=100)
    parser.add_argument("--n", type=int, help="draws; without it 1000, in a pilot 100")
    parser.add_argument("--alpha", type=float, default=0.001)
    parser.add_argument("--seed", type=int, help="without it 0, in a pilot 1")
    parser.add_argument("--batch", type=int, default=8000)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds; start nothing after")
    options = parser.parse_args()
    for name, usual, in_pilot in (("limit", 500, 50), ("n", 1000, 100), ("seed", 0, 1)):
        if getattr(options, name) is None:
            setattr(options, name, in_pilot if options.pilot else usual)
    return options


def finished(path: Path, heading: Mapping[str, Any]) -> list[Row]:
    """The rows of an earlier run of the same measurement; rows of any other one are refused."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    for name, value in heading.items():
        if record.get(name) != value:
            raise SystemExit(f"{path} is of another run: its {name} is {record.get(name)}, not {value}")
    return list(from_plain(tuple[Row, ...], record["rows"], path.name))


def measure(options: argparse.Namespace, jobs: list[Job], settings: Certification) -> None:
    began, targets = time.monotonic(), {}
    for job in jobs:
        replace(settings, defense=job.defense)  # whatever cannot be certified is named before any work
        if job.weights not in targets:
            targets[job.weights] = loaded(job.weights, options)
    first = targets[jobs[0].weights]
    plan = {name: getattr(settings, name) for name in ("n0", "n", "alpha", "seed", "batch", "precision")}
    heading = {
        "what": "majority votes certified by randomised smoothing, against the L2 radius",
        "pilot": options.pilot,
        "data": described(first)["data"],
        "plan": plan,
        "environment": environment(first.place),
    }
    rows = finished(options.out, heading)
    done = {row.key for row in rows}
    for job in jobs:
        if (targets[job.weights].classifier_id.sha256, job.defense) in done:
            continue
        if time.monotonic() - began > options.deadline:
            break
        rows.append(certify(job, targets[job.weights], settings))
        done.add(rows[-1].key)
        print(rows[-1], flush=True)
        whole = all((targets[each.weights].classifier_id.sha256, each.defense) in done for each in jobs)
        write_json(options.out, to_plain({**heading, "complete": whole, "rows": rows}))
    print(f"{len(done)} of {len(jobs)} configurations in {options.out}, {time.monotonic() - began:.0f} s")
    print(*sorted(rows, key=lambda row: (row.level, -row.mean_radius)), sep="\n")


def main() -> None:
    options = arguments()
    settings = Certification(
        certificate="vote", n0=options.n0, n=options.n, alpha=options.alpha, seed=options.seed,
        batch=options.batch, precision=options.precision,
    )  # fmt: skip
    measure(options, planned(options), settings)


if __name__ == "__main__":
    main()

"""How much can be certified in L1 by splitting, and in L2 by noise, with classifiers trained for it?

    python paper/research/l1_certificates.py --data-dir DIR --start resnet18-cifar10.safetensors --device cuda

Every job hardens the given network behind its defense, with a loss that makes two draws of an image agree,
and certifies test images: a splitting exactly, Gaussian noise with early stopping and, of some images,
without. Two jobs put swRD behind the splitting, with the classifier as it is and trained behind both. A job
whose row is in the file already is passed over, and one whose weights are there is not trained again, so
that the work may be done in parts (--only, --deadline). Writes
paper/results/certify-l1-cifar10-resnet18.json.
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

import vqshield as vq
from common import Target, make_parser
from vqshield.certification.l1 import L1Certification
from vqshield.certification.study import Certification
from vqshield.certification.summary import CertificationSummary, L1Summary
from vqshield.classifiers.folding import PRECISIONS
from vqshield.core.environment import environment, pick_device
from vqshield.core.files import write_json
from vqshield.core.serialization import from_plain, to_plain
from vqshield.core.settings import Setting
from vqshield.defenses import Defense, from_text
from vqshield.training.run import RunFiles

DRAWS = 2  # of an image in a step
L1_RADII = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
L2_RADII = (0.0, 0.25, 0.5, 0.75)
SWRD = "swrd:size=3,codes=25"
Key = tuple[str, float, float, str | None, bool, int]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A defense, and how its classifier is trained.

    after: a quantizer behind the splitting; trained_behind: whether the classifier was trained behind it too.
    epochs: at most; the command line may say fewer.
    """

    defense: str
    agreement: float
    entropy: float = 0.0
    after: str | None = None
    trained_behind: bool = False
    epochs: int = 1000

    @property
    def key(self) -> Key:
        """What tells its row from others."""
        return self.defense, self.agreement, self.entropy, self.after, self.trained_behind, self.epochs

    @property
    def weights(self) -> str:
        """The name of its classifier's file."""
        behind = [self.after] if self.after is not None and self.trained_behind else []
        numbers = [f"{each:g}" for each in (self.agreement, self.entropy, self.epochs)]
        words = "-".join([self.defense, *numbers, *behind])
        return "".join(each if each.isalnum() or each in ".-" else "-" for each in words) + ".safetensors"


# The largest radius at which anything can be certified is λ; what certifies most at r has λ of about 2r.
JOBS = (
    Job(defense="splitting:scale=0.87", agreement=3.0),
    Job(defense="splitting:scale=1.3", agreement=3.0),
    Job(defense="splitting:scale=2.17", agreement=3.0),
    Job(defense="splitting:scale=3.46", agreement=3.0),
    Job(defense="splitting:scale=5.2", agreement=3.0),
    Job(defense="splitting:scale=6.06", agreement=6.0),
    Job(defense="gaussian:sigma=0.25", agreement=10.0, entropy=0.5),
    Job(defense="splitting:scale=0.87", agreement=3.0, after=SWRD),
    Job(defense="splitting:scale=0.87", agreement=3.0, after=SWRD, trained_behind=True, epochs=20),
    Job(defense="splitting:scale=1.3", agreement=0.0),
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """Certified accuracy at a radius; real: for real-valued images too, not 8-bit ones alone."""

    radius: float
    certified: float
    real: float | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class Full:
    """The certificate without early stopping, of the first images: what stopping saves, and what it costs."""

    images: int
    draws: int
    curve: tuple[Point, ...]
    seconds: float
    saving: float
    early_curve: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Certified:
    """What was certified; shifts: of a splitting, all of them. draws: of Gaussian noise, at most."""

    norm: str
    images: int
    accuracy: float
    right: float
    mean_radius: float
    curve: tuple[Point, ...]
    seconds: float
    shifts: int | None = field(default=None, metadata={"omit": True})
    draws: int | None = field(default=None, metadata={"omit": True})
    saving: float | None = field(default=None, metadata={"omit": True})
    full: Full | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One job: how its classifier was trained, and what was certified."""

    defense: str
    agreement: float
    entropy: float
    after: str | None
    trained_behind: bool
    epochs: int
    training_seconds: float | None
    weights_sha256: str
    certified: Certified

    @property
    def key(self) -> Key:
        """That of its job."""
        return self.defense, self.agreement, self.entropy, self.after, self.trained_behind, self.epochs


class Both(Defense):
    """A defense behind another one, as specs."""

    def __init__(self, first: str, second: str, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.second = first, second

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Both draws have the same stream."""
        streams = self.streams(images, streams)
        for text in (self.first, self.second):
            images = from_text(text, seed=self.seed)(images, streams=streams)
        return images

    def settings(self) -> dict[str, Setting]:
        return {"first": self.first, "second": self.second}


def train(job: Job, path: Path, options: argparse.Namespace) -> float:
    """Write the classifier of a job; the seconds that its training took."""
    behind = job.after if job.trained_behind else None
    defense = job.defense if behind is None else Both(job.defense, behind)
    batch = min(options.train_batch, options.train_limit or options.train_batch)
    hardened = vq.harden(
        str(options.start), defense, options.data, data_dir=options.data_dir,
        method=f"consistency:draws={DRAWS},agreement={job.agreement},entropy={job.entropy}",
        limit=options.train_limit, test_limit=options.train_limit, epochs=job.epochs, batch=batch,
        lr=options.peak_lr, ema=options.ema, label_smoothing=0.0, precision="bf16",
        compile_mode="default" if options.compile else "off", out=path.parent, name=path.stem,
        device=options.device, seed=options.seed,
    )  # fmt: skip
    RunFiles(path.parent, path.stem).checkpoint.unlink()  # several times the size of the weights
    return round(hardened.seconds, 1)


def certify_l1(job: Job, target: Target, options: argparse.Namespace) -> Certified:
    """The exact certificate."""
    study = L1Certification(
        target=target, defense=job.defense, after=job.after, seed=options.seed, batch=options.batch,
        precision=options.precision,
    )  # fmt: skip
    began = time.perf_counter()
    found = L1Summary.of(study.in_memory(), radii=L1_RADII)
    points = tuple(
        Point(radius=each.radius, certified=each.certified, real=each.real) for each in found.curve
    )
    return Certified(
        norm="l1", images=found.images, accuracy=found.accuracy, right=found.right,
        mean_radius=found.mean_radius, curve=points, shifts=found.shifts,
        seconds=round(time.perf_counter() - began, 1),
    )  # fmt: skip


def certify_l2(job: Job, target: Target, options: argparse.Namespace) -> Certified:
    """The certificate with early stopping, and of the first images without."""

    def run(certificate: str, limit: int) -> tuple[CertificationSummary, float]:
        began = time.perf_counter()
        study = Certification(
            target=Target(
                data=target.data, data_dir=target.data_dir, classifier=target.classifier, limit=limit,
                device=target.device,
            ),
            defense=job.defense, certificate=certificate, n0=100, n=options.n, alpha=0.001, seed=options.seed,
            batch=options.batch, precision=options.precision,
            wanted=L2_RADII if certificate == "sequential" else (),
        )  # fmt: skip
        found = CertificationSummary.of(study.in_memory(), radii=L2_RADII)
        return found, round(time.perf_counter() - began, 1)

    def points(found: CertificationSummary) -> tuple[Point, ...]:
        assert found.vote is not None
        return tuple(Point(radius=each.radius, certified=each.vote) for each in found.vote.curve)

    early, seconds = run("sequential", options.limit)
    subset = min(options.subset, options.limit)
    whole, whole_seconds = run("vote", subset)
    same, _ = run("sequential", subset)
    assert early.vote is not None
    assert same.vote is not None
    return Certified(
        norm="l2", images=early.vote.images, accuracy=early.vote.accuracy, right=early.vote.right,
        mean_radius=early.vote.mean_radius, curve=points(early), draws=options.n, saving=early.vote.saving,
        seconds=seconds,
        full=Full(
            images=subset, draws=options.n, curve=points(whole), seconds=whole_seconds,
            saving=float(same.vote.saving or 1), early_curve=points(same),
        ),
    )  # fmt: skip


def measured(job: Job, path: Path, trained: float | None, options: argparse.Namespace) -> Row:
    """The row of a job whose classifier is there."""
    target = Target(
        data=options.data, data_dir=options.data_dir, classifier=str(path), limit=options.limit,
        device=options.device,
    )  # fmt: skip
    certify = certify_l1 if job.defense.startswith("splitting") else certify_l2
    return Row(
        defense=job.defense, agreement=job.agreement, entropy=job.entropy, after=job.after,
        trained_behind=job.trained_behind, epochs=job.epochs,
        training_seconds=trained, weights_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        certified=certify(job, target, options),
    )  # fmt: skip


def finished(path: Path, plan: Mapping[str, object]) -> list[Row]:
    """The rows of an earlier run of the same plan; those of any other one are refused."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    if record["plan"] != json.loads(json.dumps(plan)):
        raise SystemExit(f"{path} is of another run: its plan is {record['plan']}, not {plan}")
    return list(from_plain(tuple[Row, ...], record["rows"], path.name))


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "paper/results/certify-l1-cifar10-resnet18.json", data_required=True)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--start", type=Path, required=True, help="the classifier that training begins with")
    parser.add_argument("--weights", type=Path, default=Path("l1-classifiers"), help="folder for classifiers")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of jobs, from 0; without it all")
    parser.add_argument(
        "--job", help="a defense as a spec string instead of the list, with --agreement and --entropy"
    )
    parser.add_argument("--agreement", type=float, default=3.0)
    parser.add_argument("--entropy", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--train-batch", type=int, default=512)
    parser.add_argument("--train-limit", type=int, help="training images, for a trial")
    parser.add_argument("--peak-lr", type=float, default=0.2)
    parser.add_argument("--ema", type=float, default=0.999)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--limit", type=int, default=1000, help="test images that are certified")
    parser.add_argument("--n", type=int, default=100_000, help="draws of an L2 certificate, at most")
    parser.add_argument("--subset", type=int, default=100, help="images certified without early stopping too")
    parser.add_argument("--batch", type=int, default=8000)
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds; start no job after")
    return parser.parse_args()


def jobs(options: argparse.Namespace) -> list[Job]:
    """What is asked for, with the epochs that it will have."""
    chosen = JOBS if options.only is None else [JOBS[number] for number in options.only]
    if options.job is not None:
        chosen = [Job(defense=options.job, agreement=options.agreement, entropy=options.entropy)]
    return [replace(job, epochs=min(job.epochs, options.epochs)) for job in chosen]


def main() -> None:
    options, began = arguments(), time.perf_counter()
    place = pick_device(options.device)
    names = ("data", "train_batch", "train_limit", "peak_lr", "ema", "limit", "n", "batch",
             "precision", "seed")  # fmt: skip
    plan = {**{name: getattr(options, name) for name in names}, "start": options.start.name, "draws": DRAWS}
    rows = finished(options.out, plan)
    for job in jobs(options):
        if job.key in {row.key for row in rows}:
            continue
        if time.perf_counter() - began > options.deadline:
            break
        print(job, flush=True)
        path = options.weights / job.weights
        trained = None if path.is_file() else train(job, path, options)
        rows.append(measured(job, path, trained, options))
        print(f"  {json.dumps(to_plain(rows[-1]))}", flush=True)
        record = {
            "what": "certified accuracy in L1 by splitting and in L2 by Gaussian noise, of classifiers "
            "trained for it",
            "plan": plan,
            "environment": environment(place),
            "rows": rows,
        }
        write_json(options.out, to_plain(record))
    print(f"{len(rows)} rows in {options.out}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

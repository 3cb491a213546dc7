"""How much clean accuracy does calibration restore, from how many images, and against which attackers?

    python paper/research/calibration.py images --data-dir CIFAR10 --train cifar10=DIR --ood cifar100=DIR2 \\
        --classifier resnet18-cifar10.safetensors --device cuda
    python paper/research/calibration.py imagenet --data-dir NIPS17 --device cuda
    python paper/research/calibration.py ladder --data-dir CIFAR10 --train cifar10=DIR --device cuda \\
        --classifier resnet18-cifar10.safetensors --source resnet18-cifar10.safetensors \\
        --source small-cifar10 --tuned swrd:size=3,codes=25=resnet18-cifar10-swrd-tuned.safetensors

images: clean accuracy against the number of unlabelled images, three seeds; images of one class, of two
    classes in a ratio of 9 to 1, and of another data set.
imagenet: EfficientNet-lite on the NIPS-17 images, calibrated on some and tested on the others.
ladder: unchanged, calibrated and fine-tuned, from transferred images to the adaptive attack.

Each writes paper/results/calibration-PART.json, skips what that file holds, and prints a table
last. A training set may be an .npz file: --train npz=FILE.
"""

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import vqshield as vq
from common import ending, make_parser
from vqshield.classifiers import Normalised, bundled_as_trained, is_bundled, load_classifier
from vqshield.core.environment import pick_device
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.data import FileSet, load
from vqshield.ladders.settings import LadderSettings
from vqshield.ladders.study import MAIN
from vqshield.models.draws import Draws

CIFAR = ("randdisc:codes=25", "prd:size=2,codes=25", "swrd:size=3,codes=25", "swrd:size=3,codes=70",
         "swrd:size=3,codes=25,noise=shared,sigma=0.06,tau=0.06")  # fmt: skip
IMAGENET = ("randdisc:codes=30", "prd:size=2,codes=30", "swrd:size=3,codes=30", "gaussian:sigma=0.06")
LITE = ("efficientnet-lite0", "efficientnet-lite2")
COUNTS = {"images": (16, 64, 256, 1024, 4096), "imagenet": (16, 32, 64, 128, 200)}
METHODS = ("reestimate", "paired", "auto")
GIVEN = "unchanged"


@dataclass(frozen=True, kw_only=True)
class Row:
    """The accuracy of one classifier behind one defense, as a fraction.

    Attributes:
        kind: which images calibrated it: "random", "one class", "two classes, 9 to 1", or a data set.
        images, seed: how many, and the seed of their choice; 0 images: unchanged.
        chosen: what was applied; agreement: of the chosen one on held-back images.
        seconds: of the calibration.
    """

    classifier: str
    defense: str
    kind: str
    images: int
    seed: int
    method: str
    chosen: str
    agreement: float | None
    accuracy: float
    standard_error: float
    n: int
    runs: int
    seconds: float

    @property
    def key(self) -> tuple[str, str, str, int, int, str]:
        """What it is of."""
        return self.classifier, self.defense, self.kind, self.images, self.seed, self.method


class Table:
    """The rows of a file, written whenever one is added."""

    def __init__(self, path: Path, what: str, device: torch.device) -> None:
        self.path, self.what, self.device, self.began = path, what, device, time.perf_counter()
        held = json.loads(path.read_bytes())["rows"] if path.is_file() else []
        self.rows = list(from_plain(tuple[Row, ...], held, str(path)))

    def has(self, key: object) -> bool:
        return any(row.key == key for row in self.rows)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        content: dict[str, Json] = {"what": self.what, "rows": to_plain(self.rows)}
        write_json(self.path, content | ending(self.began, self.device))
        print(
            f"{100 * row.accuracy:5.1f} ± {100 * row.standard_error:.1f}  {row.key} {row.chosen}", flush=True
        )

    def show(self) -> None:
        """Clean accuracy in percent: a line for each classifier, defense and kind, the seeds together."""
        columns = sorted({(row.images, row.method) for row in self.rows})
        lines = dict.fromkeys((row.classifier, row.defense, row.kind) for row in self.rows)
        for line in lines:
            print("\n" + " | ".join(line))
            for images, method in columns:
                found = [
                    row
                    for row in self.rows
                    if (row.classifier, row.defense, row.kind, row.images, row.method)
                    == (*line, images, method)
                ]
                if found:
                    shown = ", ".join(f"{100 * row.accuracy:.1f}" for row in found)
                    print(f"  {images:5d} {method:12s} {shown}   ± {100 * found[0].standard_error:.1f}")


@torch.no_grad()
def accuracy(classifier: nn.Module, shielded: Sequence[Tensor], labels: Tensor) -> Draws:
    """The answers for images that passed the defense, a pass each."""
    answers = [torch.cat([classifier(part).argmax(1) for part in each.split(500)]) for each in shielded]
    return Draws(torch.stack(answers).cpu(), labels)


class Subject:
    """A classifier, and test images as a defense makes them, once for all calibrations."""

    def __init__(
        self, table: Table, name: str, defense: str, images: Tensor, labels: Tensor, runs: int
    ) -> None:
        self.table, self.name, self.defense, self.labels, self.runs = table, name, defense, labels, runs
        device = table.device
        self.model = (
            bundled_as_trained(name, device) if is_bundled(name) else load_classifier(name, None, device)
        )
        shield = vq.defenses.from_text(defense, seed=1).to(device)
        numbers = torch.arange(len(images))
        self.shielded = [
            torch.cat([
                shield(images[part].to(device), streams=(part + run * len(images)).to(device))
                for part in numbers.split(250)
            ])
            for run in range(runs)
        ]  # fmt: skip

    def measure(self, kind: str, images: Tensor | None, seed: int, method: str) -> None:
        """Add a row, unless there is one."""
        count = 0 if images is None else len(images)
        key = (Path(self.name).name, self.defense, kind, count, seed, method)
        if self.table.has(key):
            return
        began, model, chosen, agreement = time.perf_counter(), self.model, GIVEN, None
        if images is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shield = vq.defenses.from_text(self.defense, seed=0).to(self.table.device)
                found = vq.calibrate(self.model, images, defense=shield, method=method, seed=seed)
            model, chosen = found.classifier, found.calibration.method
            agreement = found.calibration.agreement.get(chosen)
        seconds = round(time.perf_counter() - began, 2)
        draws = accuracy(model, self.shielded, self.labels)
        self.table.add(
            Row(
                classifier=key[0], defense=self.defense, kind=kind, images=count, seed=seed, method=method,
                chosen=chosen, agreement=agreement, accuracy=draws.mean, standard_error=draws.standard_error,
                n=len(self.labels), runs=self.runs, seconds=seconds,
            )
        )  # fmt: skip


def choices(labels: Tensor, count: int, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Which training images calibrate, by kind; the skewed ones for one count alone."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    yield "random", order[:count]
    if count == 256:
        first, second = (order[labels[order] == (seed + each) % 10] for each in (0, 1))
        yield "one class", first[:count]
        rare = count // 10
        yield "two classes, 9 to 1", torch.cat([first[: count - rare], second[:rare]])


def images_part(table: Table, args: argparse.Namespace) -> None:
    test = load("cifar10", "test", args.data_dir, limit=args.limit)
    train = load(*named(args.train, "train"))
    other = load(*named(args.ood, "test")) if args.ood else None
    for defense in args.defense or CIFAR[:4]:
        subject = Subject(table, args.classifier, defense, test.floats(), test.labels, args.runs)
        subject.measure("random", None, 0, GIVEN)
        for count in args.count or COUNTS["images"]:
            for seed in range(args.seeds):
                for kind, chosen in choices(train.labels, count, seed):
                    for method in METHODS:
                        subject.measure(kind, train.at(chosen), seed, method)
                if other is not None and count == 256:
                    order = torch.randperm(len(other), generator=torch.Generator().manual_seed(seed))
                    for method in METHODS:
                        subject.measure(other.name, other.at(order[:count]), seed, method)


def imagenet_part(table: Table, args: argparse.Namespace) -> None:
    for name in LITE if args.classifier is None else (args.classifier,):
        model, data = load_classifier(name), load("nips17", "test", args.data_dir)
        assert isinstance(model, Normalised)
        assert isinstance(data, FileSet)
        pictures = data.sized(model.size, crop=model.crop, resize=model.resize).images
        order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(0))
        some, others = order[:200], order[200:]
        if args.limit is not None:
            others = others[: args.limit]
        floats = pictures[others].float() / 255
        for defense in args.defense or IMAGENET:
            subject = Subject(table, name, defense, floats, data.labels[others], args.runs)
            subject.measure("random", None, 0, GIVEN)
            for count in args.count or COUNTS["imagenet"]:
                for method in METHODS:
                    subject.measure("random", pictures[some[:count]], 0, method)


def ladder_part(args: argparse.Namespace, work: Path, device: torch.device) -> None:
    usual = LadderSettings(draws=(1,), batch=args.limit or 250, runs=args.runs, selection=args.runs)
    settings = replace(usual, calls=tuple(args.calls), suite=args.suite).in_precision("bf16")
    data, split, folder = named(args.train, "train")
    tuned = dict(text.rsplit("=", 1) for text in args.tuned)
    rows: list[dict[str, Json]] = []
    began = time.perf_counter()
    for defense in args.defense or CIFAR:
        kept = work / f"{''.join(each if each.isalnum() else '-' for each in defense)}.safetensors"
        if not kept.is_file():
            vq.calibrate(
                args.classifier, data, defense=defense, split=split, data_dir=folder, limit=4096, out=work,
                name=kept.stem, device=str(device),
            )  # fmt: skip
        subjects = {GIVEN: args.classifier, "calibrated": str(kept)}
        if defense in tuned:
            subjects["fine-tuned"] = tuned[defense]
        for what, file in subjects.items():
            found = vq.ladder(
                file, "cifar10", defense=defense, sources=args.source, controls=(), settings=settings,
                limit=args.limit, data_dir=args.data_dir, device=str(device),
                out=work / f"{kept.stem}-{what}",
            )  # fmt: skip
            for row in found.rows:
                if row.subject == MAIN:
                    rows.append({"defense": defense, "classifier": what, **to_plain(row)})  # type: ignore[arg-type]
                    print(f"{100 * row.mean:5.1f} {defense} {what} {row.rung} {row.calls or ''}", flush=True)
        content: dict[str, Json] = {"what": "ladder", "settings": to_plain(settings), "rows": rows}
        write_json(args.out, content | ending(began, device))
    rungs = list(dict.fromkeys((str(row["rung"]), row["calls"]) for row in rows))
    print("\n" + " | ".join(f"{rung} {calls or ''}".strip() for rung, calls in rungs))
    for line in dict.fromkeys((row["defense"], row["classifier"]) for row in rows):
        cells = {
            (row["rung"], row["calls"]): row["mean"]
            for row in rows
            if (row["defense"], row["classifier"]) == line
        }
        shown = [f"{100 * float(str(cells[rung])):.1f}" if rung in cells else "-" for rung in rungs]
        print(f"{' | '.join(map(str, line))}: {' | '.join(shown)}")


def named(text: str, split: str) -> tuple[str, str, Path]:
    """NAME=FOLDER as data set, split and folder."""
    name, _, folder = text.partition("=")
    return name, split, Path(folder)


def main() -> None:
    parser = make_parser(__doc__, "", data_required=True)
    parser.add_argument("part", choices=["images", "imagenet", "ladder"])
    parser.add_argument("--classifier")
    parser.add_argument("--train", help="NAME=FOLDER of the calibration images")
    parser.add_argument("--ood", help="NAME=FOLDER of images of another data set")
    parser.add_argument("--defense", action="append")
    parser.add_argument("--count", type=int, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--calls", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--suite", default="adaptive-v2")
    parser.add_argument("--source", action="append", default=[])
    parser.add_argument("--tuned", action="append", default=[], help="DEFENSE=FILE")
    parser.add_argument("--work", type=Path, default=Path("vqshield-calibration"))
    args = parser.parse_args()
    device = pick_device(args.device)
    if args.out == Path():
        args.out = Path("results") / f"calibration-{args.part}.json"
    if args.part == "ladder":
        ladder_part(args, args.work, device)
        return
    table = Table(args.out, args.part, device)
    (images_part if args.part == "images" else imagenet_part)(table, args)
    table.show()


if __name__ == "__main__":
    main()

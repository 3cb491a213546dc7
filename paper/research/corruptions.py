"""Does a hardened shield help or hurt where pictures go wrong by themselves?

    python paper/research/corruptions.py --data-dir CIFAR10 --weights resnet18-cifar10.safetensors \\
        --work FOLDER --images 1000 --device cuda

Writes paper/results/corruptions-cifar10-resnet18.json. FOLDER is that of
paper/research/harden_frontier.py: its subjects
are measured, each behind the shield that it was fine-tuned behind and without it, on fifteen kinds of
corruption at five severities (vqshield_paper.corruptions) and on the images as they are; one draw an image.
The bare classifier is among them. What is finished is in the file; the same command continues.

More come from --model, each with the shield that it was tuned behind. The record is of four, without --work;
their cards are in paper/results/classifiers (resnet18-cifar10-swrd-25-noise-0.06-long, -swrd-25-beta-32-long,
-gaussian-tuned, -adversarial):

    --model tuned=HEAVY.safetensors+swrd:size=3,codes=25,noise=shared,sigma=0.06,tau=0.06
    --model light=LIGHT.safetensors+swrd:size=3,codes=25,beta=32
    --model noise=NOISE.safetensors+gaussian:sigma=0.06 --model adversarial=ADVERSARIAL.safetensors
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from common import Target, described, ending, make_parser
from harden_frontier import Row as Hardened
from vqshield.core.display_names import NONE
from vqshield.core.files import write_json
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import from_plain, to_plain
from vqshield.data import SAMPLE_NAME, ImageSet
from vqshield.defended import Defended
from vqshield.ladders.study import parse_control
from vqshield.models.draws import draw_predictions
from vqshield.runs.arguments import defense_from
from vqshield_paper.corruptions import SEVERITIES, corrupted, list_corruptions

CLEAN = "clean"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A classifier and what stands before it."""

    subject: str
    weights: str
    defense: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """The share of images right, of one model, under one corruption; severity 0: as they are."""

    subject: str
    defense: str
    kind: str
    severity: int
    accuracy: float
    standard_error: float
    n: int

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.subject, self.defense, self.kind, self.severity


def models(options: argparse.Namespace) -> list[Model]:
    """The bare classifier, and every hardened one with and without its shield."""
    found = [Model(subject="bare", weights=options.weights, defense=NONE)]
    for text in options.model:
        name, weights, defense = parse_control(text)
        found += [
            Model(subject=name, weights=weights, defense=each) for each in dict.fromkeys((defense, NONE))
        ]
    for file in sorted((options.work / "rows").glob("*.json")) if options.work else ():
        subject = from_plain(Hardened, json.loads(file.read_text()), file.name).subject
        weights = options.work / f"{subject.name}.safetensors"
        if not weights.is_file() or (options.only and subject.name not in options.only):
            continue
        for defense in dict.fromkeys((subject.defense, NONE)):
            found.append(Model(subject=subject.name, weights=str(weights), defense=defense))
    return found


def conditions() -> list[tuple[str, int]]:
    """The strongest and the clean images first: a run that is stopped has the ends of every curve."""
    order = (3, 5, 1, 4, 2)
    assert set(order) == set(SEVERITIES)
    return [(CLEAN, 0), *((kind, severity) for severity in order for kind in list_corruptions())]


def measured(model: Model, network: nn.Module, images: ImageSet, kind: str, severity: int, batch: int) -> Row:
    where = next(network.parameters()).device
    defense = defense_from(model.defense, seed=derived_seed(0, model.defense, kind, severity))
    shielded = network if defense is None else Defended(network, defense.to(where))
    drawn = draw_predictions(
        shielded, images.floats().to(where), images.labels.to(where), runs=1, batch=batch
    )
    share = drawn.mean
    return Row(
        subject=model.subject,
        defense=model.defense,
        kind=kind,
        severity=severity,
        accuracy=share,
        standard_error=math.sqrt(share * (1 - share) / len(images)),
        n=len(images),
    )


def table(rows: list[Row]) -> str:
    """Of every model: clean accuracy, and the mean over kinds of each severity."""
    lines = []
    for subject, defense in dict.fromkeys((row.subject, row.defense) for row in rows):
        own = [row for row in rows if (row.subject, row.defense) == (subject, defense)]
        cells = []
        for severity in (0, *SEVERITIES):
            values = [row.accuracy for row in own if row.severity == severity]
            cells.append(f"{100 * sum(values) / len(values):5.1f}" if values else "  –  ")
        lines.append(f"{'  '.join(cells)}  {subject} / {defense}")
    return "\n".join(lines)


def work(options: argparse.Namespace) -> None:
    began, started = time.perf_counter(), time.monotonic()
    data = "cifar10" if options.data_dir else SAMPLE_NAME
    target = Target(
        data=data, data_dir=options.data_dir, classifier=options.weights, limit=options.images,
        device=options.device,
    )  # fmt: skip
    every, heading = models(options), described(target)
    networks = {
        each.weights: Target(
            data=data, data_dir=options.data_dir, classifier=each.weights, device=options.device
        ).model
        for each in every
    }
    rows: list[Row] = []
    if options.out.is_file():
        kept = json.loads(options.out.read_text())
        if kept["data"] != heading["data"]:
            raise SystemExit(f"{options.out} is of other images; move it away")
        rows = list(from_plain(tuple[Row, ...], kept["rows"], options.out.name))
    done, clean = {row.key for row in rows}, target.images
    for kind, severity in conditions():
        left = [each for each in every if (each.subject, each.defense, kind, severity) not in done]
        if not left or time.monotonic() - started > options.deadline:
            continue
        pictures = clean.images if kind == CLEAN else corrupted(clean.images, kind, severity)
        images = ImageSet(clean.name, pictures, clean.labels, clean.classes)
        rows += [
            measured(each, networks[each.weights], images, kind, severity, options.batch) for each in left
        ]
        end = ending(began, target.place)
        complete = len(rows) >= len(every) * len(conditions())
        write_json(options.out, to_plain({**heading, "complete": complete, **end, "rows": rows}))
        print(f"{kind} {severity}: {len(rows)} of {len(every) * len(conditions())}", flush=True)
    print(f"\nclean, then severities 1 to 5 (mean over kinds), {time.monotonic() - started:.0f} s")
    print(table(rows))


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "paper/results/corruptions-cifar10-resnet18.json")
    parser.add_argument("--weights", required=True, help="the bare classifier")
    parser.add_argument("--work", type=Path, help="folder of paper/research/harden_frontier.py")
    parser.add_argument("--model", action="append", default=[], help="one more, NAME=CLASSIFIER+DEFENSE")
    parser.add_argument("--only", nargs="*", default=[], help="only these of its subjects")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds; start nothing after")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    work(arguments())

"""Which shield, with a classifier fine-tuned behind it, is best against whom?

    python paper/research/harden_frontier.py --data-dir CIFAR10 --weights resnet18-cifar10.safetensors \\
        --work FOLDER --device cuda --deadline 1500

Writes paper/results/harden-frontier.json. Every subject (a shield and a way to fine-tune) is hardened by
vq.harden and measured rung by rung, from the cheapest rung for all subjects to the dearest; its weights and
a file of its own (rows/NAME.json) stay in --work, outside the repository, and the same command continues
there. Several processes may work there at once, each with subjects of its own (--only) and a file of its
own (--out); --collect then writes what all of them found, and measures nothing. The rungs:

    natural    images as they are, ten draws
    transfer   images that PGD-100 with momentum found on the classifier as it was given, before any tuning
    ignorant   PGD-20 on the very weights, the shield left out
    square5    Square with 2,000 queries of five draws each, 10,000 calls
    adaptive   of twins alone: adaptive-v1; without a quantizer, the same attacks without a surrogate

The search tunes every shield briefly; --choose names the two that are nearest to what presets should keep:
heavy, at least 90 % natural, and light, at least 92 %. --finals NAME … adds them, tuned five times as long,
as NAME-long; noise alone belongs among them, as the control.

--twins --out paper/results/harden-twins.json measures instead whether adversarial training through a shield
is better than without it: networks that differ by the shield alone, at equal epochs and attack steps, three
seeds; without it at several budgets, so that there is a line to lie above or below.
"""

import argparse
import json
import math
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import vqshield as vq
from common import Target, described, make_parser
from vqshield.attacks import PGD, PRECISIONS, Linf
from vqshield.attacks.suites import with_precision
from vqshield.core.display_names import NONE
from vqshield.core.environment import environment
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield.core.tensors import read_tensors, tensors_to_bytes
from vqshield.evaluation.summary import ALL, EvaluationSummary
from vqshield.training.run import RunFiles

EPS = 8 / 255
RUNGS = ("natural", "transfer", "ignorant", "square5", "adaptive")
QUICK = RUNGS[:3]
QUERIED = RUNGS[:4]
EPOCHS, LONG = 6, 30
_CLIMB = "pgd:steps=60,step=2/255,schedule=cosine,momentum=0.75,candidates=4,eot=5"
ATTACKS = {
    "natural": (),
    "ignorant": ("pgd:steps=20,step=eps/10,surrogate=none",),
    "square5": ("square:queries=2000,eot=5",),
    "adaptive": ("adaptive-v1",),
}
WITHOUT_QUANTIZER = tuple(
    f"{_CLIMB},{more}" for more in ("loss=margin", "loss=cross-entropy", "loss=margin,basis=block2")
)
SWRD_25, SWRD_2 = "swrd:size=3,codes=25", "swrd:size=2,codes=15"
# What a preset should keep; under queries: 10,000 calls with five draws per query, the stronger attack.
HEAVY = {"natural": 0.90, "transfer": 0.87, "ignorant": 0.82, "square5": 0.74}
LIGHT = {"natural": 0.92, "transfer": 0.85, "ignorant": 0.78}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A shield, and how the classifier is fine-tuned behind it; epochs 0: as it was given."""

    name: str
    defense: str
    method: str = "natural"
    epochs: int = EPOCHS
    seed: int = 0
    rungs: tuple[str, ...] = QUICK


@dataclass(frozen=True, kw_only=True)
class Rung:
    """Accuracy under attack: mean and deviation over draws, standard error over images."""

    mean: float
    std: float
    standard_error: float
    vote: float
    runs: int
    n: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """A subject, what hardening it took, and its rungs as far as they are measured."""

    subject: Subject
    weights_sha256: str
    before: float | None
    after: float | None
    training: Mapping[str, Json] | None
    training_seconds: float
    rungs: Mapping[str, Rung] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = "  ".join(
            f"{name} {100 * self.rungs[name].mean:5.1f}" if name in self.rungs else f"{name}   –  "
            for name in RUNGS
        )
        return f"{self.subject.name:34s} {shown}"


def noisy(quantizer: str, sigma: float, *, noise: str = "shared") -> str:
    """A quantizer with noise on the image: one draw for both of its stages, or ("image") one for each."""
    return f"{quantizer},noise={noise},sigma={sigma:g},tau={sigma:g}"


def frontier() -> list[Subject]:
    """All shields of the search, controls among them; queries, which are dear, where noise may help."""
    plain = [
        Subject(name=f"swrd-{codes}", defense=f"swrd:size=3,codes={codes}") for codes in (15, 25, 40, 55, 70)
    ]
    both = [
        Subject(
            name=f"swrd-{codes}-noise-{sigma:g}",
            defense=noisy(f"swrd:size=3,codes={codes}", sigma),
            rungs=QUERIED,
        )
        for codes, sigma in ((15, 0.03), (25, 0.03), (25, 0.06), (40, 0.06), (70, 0.06), (70, 0.09))
    ]
    return [
        Subject(name="bare", defense=NONE, epochs=0),
        Subject(name="swrd-25-as-given", defense=SWRD_25, epochs=0),
        *plain,
        *both,
        Subject(name="swrd-25-beta-32", defense=f"{SWRD_25},beta=32"),
        Subject(name="swrd-25-noise-0.06-two-draws", defense=noisy(SWRD_25, 0.06, noise="image")),
        Subject(name="swrd-s2-15", defense=SWRD_2),
        Subject(name="swrd-s2-15-noise-0.06", defense=noisy(SWRD_2, 0.06), rungs=QUERIED),
        Subject(name="gaussian-0.06", defense="gaussian:sigma=0.06", rungs=QUERIED),
        Subject(name="gaussian-0.12", defense="gaussian:sigma=0.12"),
    ]


def final(subject: Subject) -> Subject:
    """The same, tuned for longer; a ladder measures the dear rungs of it."""
    return replace(subject, name=f"{subject.name}-long", epochs=LONG, rungs=QUICK)


def extra(defense: str) -> Subject:
    """A shield beyond the list, fine-tuned as the others are."""
    return Subject(name=re.sub(r"[^A-Za-z0-9.]+", "-", defense), defense=defense)


def adversarial(*, eps: str, shield: str, seed: int = 0) -> Subject:
    behind = "none" if shield == NONE else "swrd-25"
    surrogate = "none" if shield == NONE else "soft"
    return Subject(
        name=f"adversarial-{eps.replace('/255', '')}-{behind}" + (f"-seed-{seed}" if seed else ""),
        defense=shield,
        method=f"adversarial:eps={eps},steps=7,surrogate={surrogate}",
        seed=seed,
        rungs=("natural", "adaptive"),
    )


def twins() -> list[Subject]:
    """With and without the shield, at equal epochs and steps: a line without it first, for every seed."""
    pairs = [("8/255", NONE), ("5.5/255", NONE), ("8/255", SWRD_25), ("5.5/255", SWRD_25)]
    order = [(seed, *pair) for part in (pairs[:3], pairs[3:]) for seed in (0, 1, 2) for pair in part]
    return [adversarial(eps=eps, shield=shield, seed=seed) for seed, eps, shield in order]


def preset(rows: Sequence[Row], wanted: Mapping[str, float], *, other_than: Row | None = None) -> Row | None:
    """The quantizer that is furthest above all that is wanted, or least below the rung that gives way."""
    fit = [
        row
        for row in rows
        if row.subject.defense.startswith("swrd")
        and row.subject.method == "natural"
        and row.subject.epochs == EPOCHS  # finals would win by their tuning
        and row is not other_than
        and set(wanted) <= set(row.rungs)
    ]
    return max(fit, key=lambda row: slack(row, wanted), default=None)


def slack(row: Row, wanted: Mapping[str, float]) -> float:
    """How far the worst rung lies above what is wanted of it."""
    return min(row.rungs[rung].mean - least for rung, least in wanted.items())


class Laboratory:
    """Hardens and measures subjects; what it has of them lies in a folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.began = options, time.monotonic()
        self.rows = options.work / "rows"
        self.rows.mkdir(parents=True, exist_ok=True)

    def target(self, weights: Path | str, images: int) -> Target:
        chosen = self.options
        return Target(
            data="cifar10",
            data_dir=chosen.data_dir,
            classifier=str(weights),
            limit=images,
            device=chosen.device,
        )

    @property
    def late(self) -> bool:
        return time.monotonic() - self.began > self.options.deadline

    def hardened(self, subject: Subject) -> Row:
        """The row of a subject, with its classifier fine-tuned, now or in an earlier run."""
        chosen, row = self.options, self.kept(subject)
        if row is not None and (self.weights(subject).is_file() or set(subject.rungs) <= set(row.rungs)):
            return row  # else its weights were left behind, and what was measured of them with them
        for rung in RUNGS:
            for old in (chosen.work / "records").glob(f"{subject.name}-{rung}-*"):
                shutil.rmtree(old)
        before = after = card = None
        began, weights = time.perf_counter(), Path(chosen.weights)
        if subject.epochs:
            found = vq.harden(
                chosen.weights, subject.defense, "cifar10", data_dir=chosen.data_dir, method=subject.method,
                epochs=chosen.epochs or subject.epochs, batch=chosen.batch, lr=chosen.lr, ema=chosen.ema,
                seed=subject.seed, limit=chosen.train_limit, test_limit=chosen.train_limit, out=chosen.work,
                name=subject.name, device=chosen.device, precision=chosen.precision, progress=tell,
            )  # fmt: skip
            before, after, weights = found.before, found.after, found.weights
            RunFiles(chosen.work, found.settings.name).checkpoint.unlink()  # six times the weights' size
            card = {key: value for key, value in found.card["settings"].items() if key != "classifier"}
        row = Row(
            subject=subject,
            weights_sha256=self.target(weights, 1).classifier_id.sha256,
            before=before,
            after=after,
            training=card,
            training_seconds=round(time.perf_counter() - began, 1) if subject.epochs else 0.0,
        )
        self.keep(row)
        return row

    def kept(self, subject: Subject) -> Row | None:
        """What an earlier run has of a subject."""
        file = self.rows / f"{subject.name}.json"
        if not file.is_file():
            return None
        row = from_plain(Row, json.loads(file.read_text()), file.name)
        if replace(row.subject, rungs=subject.rungs) != subject:
            raise SystemExit(f"{file} is of another subject, {row.subject}; move it away")
        return replace(row, subject=subject)

    def keep(self, row: Row) -> None:
        write_json(self.rows / f"{row.subject.name}.json", to_plain(row))

    def weights(self, subject: Subject) -> Path:
        own = self.options.work / f"{subject.name}.safetensors"
        return own if subject.epochs else Path(self.options.weights)

    def measured(self, row: Row, rung: str) -> Row:
        """The row with one more rung, which is on the disk then."""
        began, subject, chosen = time.perf_counter(), row.subject, self.options
        count = chosen.images
        if rung == "square5":
            count = chosen.square_images
        elif rung == "adaptive":
            count = chosen.adaptive_images or chosen.images
        if rung == "transfer":
            target = self.target(self.weights(subject), count)
            images, labels = self.transferred(count)
            found = vq.evaluate(
                target.model, images, labels, defense=subject.defense, samples=chosen.runs,
                batch=chosen.attack_batch,
            )  # fmt: skip
            attack = NONE
        else:
            attacks = ATTACKS[rung]
            if rung == "adaptive" and not subject.defense.startswith("swrd"):
                attacks = WITHOUT_QUANTIZER
            attacks = tuple(with_precision(each, chosen.attack_precision) for each in attacks)
            found = vq.evaluate(
                str(self.weights(subject)), "cifar10", data_dir=chosen.data_dir, limit=count,
                defense=subject.defense, attacks=attacks, eps=EPS, samples=chosen.runs,
                batch=chosen.attack_batch, device=chosen.device,
                out=chosen.work / "records" / f"{subject.name}-{rung}-{count}",
            )  # fmt: skip
            attack = ALL if attacks else NONE
        rungs = {**row.rungs, rung: _rung(found, subject.defense, attack, time.perf_counter() - began)}
        more = replace(row, rungs={name: rungs[name] for name in RUNGS if name in rungs})
        self.keep(more)
        return more

    def transferred(self, count: int) -> tuple[Tensor, Tensor]:
        """Images that break the classifier as it was given; found once."""
        target = self.target(self.options.weights, count)
        file = self.options.work / f"transfer-{count}.safetensors"
        images, labels = target.part(range(count))
        if not file.is_file():
            attack = PGD(ball=Linf(EPS), steps=100, step=EPS / 10, momentum=1.0)
            parts = zip(images.split(500), labels.split(500), strict=True)
            found = torch.cat([attack(target.model, *part) for part in parts])
            write_atomically(file, tensors_to_bytes({"images": found.cpu()}))
        return read_tensors(file)[0]["images"].to(images.device), labels


def tell(doing: str, done: int, total: int) -> None:
    """Print how far a training is."""
    print(f"{doing}  step {done} of {total}", flush=True)


def _rung(found: EvaluationSummary, defense: str, attack: str, seconds: float) -> Rung:
    row = found.row(defense, attack)
    assert row is not None
    return Rung(
        mean=row.mean, std=row.std, standard_error=row.standard_error, vote=row.vote, runs=row.runs, n=row.n,
        seconds=round(seconds, 1),
    )  # fmt: skip


def work(options: argparse.Namespace) -> None:
    laboratory = Laboratory(options)
    every = [*map(extra, options.also), *(twins() if options.twins else frontier())]
    _refuse_unknown(options.finals, every)
    every += [final(each) for each in every if each.name in options.finals]
    _refuse_unknown(options.only, every)
    subjects = [
        each
        for each in every
        if not options.only or each.name in options.only or each.defense in options.also
    ]
    if missing := set(options.rungs or ()) - {rung for each in subjects for rung in each.rungs}:
        raise SystemExit(f"none of these subjects is measured on {', '.join(sorted(missing))}")
    if options.collect or options.choose:
        found = [row for subject in every if (row := laboratory.kept(subject)) is not None]
        if options.collect:
            write(options, laboratory, every, found)
        print(*found, sep="\n")
        if options.choose:
            heavy = preset(found, HEAVY)
            light = preset(found, LIGHT, other_than=heavy)
            for name, row, wanted in (("heavy", heavy, HEAVY), ("light", light, LIGHT)):
                if row is not None:
                    print(f"{name} {row.subject.name} slack {100 * slack(row, wanted):+.1f}")
        return
    rows: dict[str, Row] = {}
    for rung in options.rungs or RUNGS:
        for subject in subjects:
            if laboratory.late:
                break
            if rung not in subject.rungs:
                continue
            row = rows.get(subject.name) or laboratory.hardened(subject)
            rows[subject.name] = row if rung in row.rungs else laboratory.measured(row, rung)
            print(rows[subject.name], flush=True)
            write(options, laboratory, every, list(rows.values()))
    print(f"\n{len(rows)} of {len(subjects)} subjects, {time.monotonic() - laboratory.began:.0f} s")
    print(*rows.values(), sep="\n")


def _refuse_unknown(names: Sequence[str], every: Sequence[Subject]) -> None:
    if missing := set(names) - {each.name for each in every}:
        raise SystemExit(f"no subject {sorted(missing)}; there are {', '.join(each.name for each in every)}")


def write(options: argparse.Namespace, laboratory: Laboratory, every: list[Subject], rows: list[Row]) -> None:
    """The result so far, of this run and of earlier ones."""
    named = {row.subject.name: row for row in rows}
    found = [named.get(subject.name) or laboratory.kept(subject) for subject in every]
    ordered = [row for row in found if row is not None]
    target = laboratory.target(options.weights, options.images)
    heading = {
        **described(target),
        "eps": EPS,
        "images": options.images,
        "square_images": options.square_images,
        "attack_precision": options.attack_precision,
        "complete": len(ordered) == len(every)
        and all(set(row.subject.rungs) <= set(row.rungs) for row in ordered),
        "machine": environment(target.place),
    }
    write_json(options.out, to_plain({**heading, "rows": ordered}))


def arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, "paper/results/harden-frontier.json", data_required=True)
    parser.add_argument("--weights", required=True, help="the classifier to harden, safetensors")
    parser.add_argument("--work", type=Path, required=True, help="folder for weights and records")
    parser.add_argument("--images", type=int, default=500, help="test images of a rung")
    parser.add_argument("--square-images", type=int, default=250)
    parser.add_argument("--adaptive-images", type=int, help="without it, as many as of other rungs")
    parser.add_argument("--runs", type=int, default=10, help="draws per number")
    parser.add_argument("--rungs", nargs="+", choices=RUNGS, help="without it, all that a subject has")
    parser.add_argument("--only", nargs="*", default=[], help="only these subjects")
    parser.add_argument("--also", nargs="*", default=[], help="more shields, as in swrd:size=2,codes=25")
    parser.add_argument("--finals", nargs="*", default=[], help="these subjects tuned for longer, as well")
    parser.add_argument("--twins", action="store_true")
    parser.add_argument("--collect", action="store_true", help="write what is in --work, measure nothing")
    parser.add_argument("--choose", action="store_true", help="say which two would be presets")
    parser.add_argument("--epochs", type=int, help="of every subject, in place of its own")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--ema", type=float, default=0.995)
    parser.add_argument("--precision", help="without it, bf16 on a GPU")
    parser.add_argument("--train-limit", type=int, help="the first training (and test) images alone")
    parser.add_argument("--attack-batch", type=int, default=250)
    parser.add_argument("--attack-precision", choices=PRECISIONS, default=PRECISIONS[0])
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds; start nothing after")
    return parser.parse_args()


if __name__ == "__main__":
    work(arguments())

"""How often does the audit fail an honest model by luck? Whole audits, over a few seeds.

tests/auditing/test_false_alarms.py simulates the decisions alone, thousands of times. Here the bundled
classifier stands behind Gaussian noise, pRD and swRD, judged by attacks that are known to be good enough for
them. The file is written after every audit; audits that are in it are not repeated. Ends after so many
minutes of processor time.

    python research/audit_false_alarms.py [--minutes 15] [--images 20 50] [--out FILE]
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.auditing import QUICK, run_audit
from vqshield.defenses import PRD, SWRD, Defense
from vqshield.environment import environment
from vqshield.files import write_json
from vqshield.noise import Draw, Stage
from vqshield.patches import Disjoint
from vqshield.plain import to_plain
from vqshield.runs.target import Subject, load_subject

SOFT = "pgd:steps=20,eot=4,surrogate=soft,loss=margin,momentum=0.75,schedule=cosine,step=2/255"
STRAIGHT = "pgd:steps=20,eot=4,loss=margin,momentum=0.75,schedule=cosine,step=2/255"
SETTINGS = dataclasses.replace(QUICK, runs=5, queries=50)


class Noise(Defense):
    """Gaussian noise on the image and nothing else."""

    @property
    def grid(self) -> Disjoint:
        """Single pixels."""
        return Disjoint(1)

    def settings(self) -> dict[str, Any]:
        """Its standard deviation."""
        return {"sigma": self.sigma}

    def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
        """Noisy images, cut off at [0, 1]."""
        streams = self.streams(images, streams)
        drawn = Draw(self.seed, streams).normals(Stage.CODEBOOK, 0, images[0].numel())
        return (images.detach() + self.sigma * drawn.view_as(images).to(images)).clamp(0, 1)


MODELS: dict[str, tuple[Defense, str]] = {
    "noise": (Noise(sigma=8 / 255, seed=0), STRAIGHT),
    "prd": (PRD(seed=0), SOFT),
    "swrd": (SWRD(seed=0), SOFT),
}


def plan(sizes: list[int]) -> Iterator[tuple[str, int, int]]:
    """Model, images, seed: in an order in which a run that is cut short has every model."""
    yield from ((name, images, seed) for seed in range(10) for images in sizes for name in MODELS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--images", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--out", type=Path, default=Path("results/false-alarms-audit.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    subject = load_subject(device="cpu")
    audits = json.loads(options.out.read_text())["each"] if options.out.is_file() else []
    done = {(each["model"], each["images"], each["seed"]) for each in audits}
    for name, count, seed in plan(options.images):
        if time.process_time() > 60 * options.minutes:
            break
        if (name, count, seed) not in done:
            audits.append(audited(subject, name, count, seed))
            print(name, count, seed, audits[-1]["outcomes"], audits[-1]["alarms"], flush=True)
            write(options.out, subject, audits)


def audited(subject: Subject, name: str, count: int, seed: int) -> dict[str, Any]:
    defense, attack = MODELS[name]
    images, labels = subject.data.floats(), subject.data.labels
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    probe = SETTINGS.probe if attack == SOFT else STRAIGHT
    report = run_audit(
        subject.classifier, defense, images[order], labels[order], attacks=[attack],
        settings=dataclasses.replace(SETTINGS, seed=seed, probe=probe),
    )  # fmt: skip
    alarms = [flag for flag in report.flags if flag.outcome in ("fail", "suspicious")]
    return {
        "model": name, "images": count, "seed": seed, "seconds": report.seconds,
        "natural": to_plain(report.audit.natural), "reported": to_plain(report.audit.reported),
        "outcomes": {flag.name: flag.outcome for flag in report.flags},
        "alarms": {flag.name: to_plain(flag.figures) for flag in alarms},
    }  # fmt: skip


def write(path: Path, subject: Subject, audits: list[dict[str, Any]]) -> None:
    write_json(path, {
        "what": "audits of honest models: how many raise an alarm, and which",
        "classifier": subject.name, "data": subject.data.name,
        "attacks": {name: attack for name, (_, attack) in MODELS.items()},
        "settings": to_plain(SETTINGS), "machine": environment("cpu"),
        "audits": len(audits), "with_alarms": sum(bool(each["alarms"]) for each in audits),
        "seconds": round(sum(each["seconds"] for each in audits), 1),
        "each": audits,
    })  # fmt: skip


if __name__ == "__main__":
    main()

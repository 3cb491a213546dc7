"""How often does the audit fail an honest model by luck? Whole audits, over ten seeds.

tests/auditing/test_false_alarms.py simulates the decisions alone, thousands of times. Here the bundled
classifier stands bare, behind Gaussian noise, pRD and swRD, and one that was trained adversarially, where its
file is given, stands bare; judged by attacks that are known to be good enough for them. The file is written
after every audit; audits that are in it, with all of today's flags, are not repeated. Nothing more is begun
after the deadline.

    python research/audit_false_alarms.py [--device cuda] [--workers 8] [--deadline 480] [--images 20 50 200]
        [--adversarial FILE]
"""

import argparse
import dataclasses
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from common import BUNDLED, Target, make_parser

import vqshield as vq
from vqshield.auditing import QUICK, TITLES
from vqshield.environment import environment
from vqshield.files import parse_json, write_json
from vqshield.plain import Json, from_plain, to_plain

SOFT = "pgd:steps=20,eot=4,surrogate=soft,loss=margin,momentum=0.75,schedule=cosine,step=2/255"
STRAIGHT = "pgd:steps=20,eot=4,loss=margin,momentum=0.75,schedule=cosine,step=2/255"
SETTINGS = dataclasses.replace(QUICK, runs=5, queries=50)
BARE = "gaussian:sigma=0.0"
MODELS = {BARE: STRAIGHT, "gaussian:sigma=8/255": STRAIGHT, "prd": SOFT, "swrd": SOFT}
"""Each defense, and the attack that judges it."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit; alarms: the flags that failed or are suspicious, with their figures."""

    defense: str
    images: int
    seed: int
    seconds: float
    natural: float
    reported: float
    outcomes: Mapping[str, str]
    alarms: Mapping[str, Json]
    classifier: str = BUNDLED


def plan(sizes: list[int], adversarial: str | None) -> Iterator[tuple[str, str, int, int]]:
    """Classifier, defense, images, seed: in an order in which a run that is cut short has every model."""
    models = [(BUNDLED, name) for name in MODELS]
    models += [] if adversarial is None else [(adversarial, BARE)]
    yield from ((*model, images, seed) for seed in range(10) for images in sizes for model in models)


@cache
def target(device: str, classifier: str = BUNDLED) -> Target:
    torch.set_num_threads(1)
    return Target(device=device, classifier=classifier)


def audited(classifier: str, name: str, count: int, seed: int, device: str) -> Audited:
    pictures, labels = target(device, classifier).part(slice(None))
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))[:count]
    attack = MODELS[name]
    probe = SETTINGS.probe if attack == SOFT else STRAIGHT
    report = vq.audit(
        target(device, classifier).model, pictures[order], labels[order], defense=name, attacks=attack,
        seed=seed, settings=dataclasses.replace(SETTINGS, probe=probe),
    )  # fmt: skip
    alarms = [flag for flag in report.flags if flag.outcome in ("fail", "suspicious")]
    return Audited(
        classifier=classifier,
        defense=name,
        images=count,
        seed=seed,
        seconds=report.seconds,
        natural=report.audit.natural.mean,
        reported=report.audit.reported.mean,
        outcomes={flag.name: flag.outcome for flag in report.flags},
        alarms={flag.name: to_plain(flag.figures) for flag in alarms},
    )


def main() -> None:
    parser = make_parser(__doc__, "results/false-alarms-audit.json")
    parser.add_argument("--images", type=int, nargs="+", default=[20, 50])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=900.0, help="seconds after which none is begun")
    parser.add_argument("--adversarial", help="a classifier that was trained adversarially")
    options = parser.parse_args()
    found = kept(options.out)
    done = {(each.classifier, each.defense, each.images, each.seed) for each in found}
    left = [each for each in plan(options.images, options.adversarial) if each not in done]
    began = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        running = set()
        while left or running:
            while left and len(running) < options.workers and time.monotonic() - began < options.deadline:
                running.add(pool.submit(audited, *left.pop(0), options.device))
            if not running:
                break
            finished = next(as_completed(running))
            running.remove(finished)
            found.append(finished.result())
            print(found[-1].defense, found[-1].images, found[-1].seed, dict(found[-1].alarms), flush=True)
            write(options, found)
    print(f"{sum(bool(each.alarms) for each in found)} of {len(found)} audits raised an alarm")


def kept(path: Path) -> list[Audited]:
    """The audits of an earlier run, where the file is there."""
    if not path.is_file():
        return []
    found = from_plain(tuple[Audited, ...], parse_json(path.read_bytes(), path)["each"], str(path))
    return [each for each in found if list(each.outcomes) == list(TITLES)]


def write(options: argparse.Namespace, found: list[Audited]) -> None:
    found = sorted(found, key=lambda each: (each.classifier, each.defense, each.images, each.seed))
    place = target(options.device)
    write_json(options.out, to_plain({
        "what": "audits of honest models: how many raise an alarm, and which",
        "classifier": place.name, "data": place.data, "attacks": MODELS, "settings": SETTINGS,
        "machine": environment(place.place), "workers": options.workers,
        "audits": len(found), "with_alarms": sum(bool(each.alarms) for each in found),
        "seconds": round(sum(each.seconds for each in found), 1),
        "each": found,
    }))  # fmt: skip


if __name__ == "__main__":
    main()

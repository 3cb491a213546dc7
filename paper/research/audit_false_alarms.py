"""How often does the audit fail an honest model by luck? Whole audits, over ten seeds.

tests/auditing/test_false_alarms.py simulates the decisions alone, thousands of times. Here the bundled
classifier stands bare, behind Gaussian noise, pRD and swRD, and one that was trained adversarially, where its
file is given, stands bare; judged by attacks that are known to be good enough for them.

    python paper/research/audit_false_alarms.py --device cuda --workers 12 --deadline 540 --images 50 200 \\
        --adversarial small-cifar10-adversarial.safetensors

The file is written after every audit. Audits that are in it, with all of today's flags, are not repeated;
those with fewer flags stay in it until they are measured again. At the deadline the audits that are still
running are given up, and the same command continues. The adversarially trained classifier came from

    vqshield harden --classifier small-cifar10 --defense none --method adversarial:eps=8/255,steps=7 \\
        --data cifar10 --data-dir CIFAR10 --device cuda --name small-cifar10-adversarial --out runs
"""

import argparse
import dataclasses
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.pool import AsyncResult
from pathlib import Path

import torch

import vqshield as vq
from common import BUNDLED, Target, make_parser
from vqshield.auditing import FAIL, QUICK, SUSPICIOUS, TITLES
from vqshield.core.environment import environment
from vqshield.core.files import parse_json, write_json
from vqshield.core.serialization import Json, from_plain, to_plain

SOFT = "pgd:steps=20,eot=4,surrogate=soft,loss=margin,momentum=0.75,schedule=cosine,step=2/255"
STRAIGHT = "pgd:steps=20,eot=4,loss=margin,momentum=0.75,schedule=cosine,step=2/255"
SETTINGS = dataclasses.replace(QUICK, runs=5, queries=50)
BARE = "gaussian:sigma=0.0"
MODELS = {BARE: STRAIGHT, "gaussian:sigma=8/255": STRAIGHT, "prd": SOFT, "swrd": SOFT}
"""Each defense, and the attack that judges it."""


Key = tuple[str, str, int, int]
"""Classifier, defense, images, seed."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit; alarms: the flags that failed or are suspicious, with their numbers."""

    defense: str
    images: int
    seed: int
    seconds: float
    natural: float
    reported: float
    outcomes: Mapping[str, str]
    alarms: Mapping[str, Json]
    classifier: str = BUNDLED

    @property
    def key(self) -> Key:
        """The audited model and the seed."""
        return self.classifier, self.defense, self.images, self.seed

    @property
    def is_current(self) -> bool:
        """Whether it was judged by all of today's flags."""
        return list(self.outcomes) == list(TITLES)


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What a file has of earlier runs: audits, and the SHA-256 of each classifier's file."""

    audits: tuple[Audited, ...] = ()
    classifiers: Mapping[str, str] = field(default_factory=dict)


def plan(sizes: Iterable[int], adversarial: str | None, seeds: int = 10) -> Iterator[Key]:
    """What to audit, ordered so that a run that is cut short covers every model."""
    models = [(BUNDLED, name) for name in MODELS]
    models += [] if adversarial is None else [(adversarial, BARE)]
    yield from ((*model, images, seed) for seed in range(seeds) for images in sizes for model in models)


@cache
def target(device: str, classifier: str) -> Target:
    torch.set_num_threads(1)
    return Target(device=device, classifier=classifier)


def audited(device: str, file: str, key: Key) -> Audited:
    """One audit; `file` is where the key's classifier lies."""
    classifier, name, count, seed = key
    place = target(device, file)
    pictures, labels = place.part(slice(None))
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))[:count]
    attack = MODELS[name]
    probe = SETTINGS.probe if attack == SOFT else STRAIGHT
    report = vq.audit(
        place.model, pictures[order], labels[order], defense=name, attacks=attack,
        seed=seed, settings=dataclasses.replace(SETTINGS, probe=probe),
    )  # fmt: skip
    alarms = [flag for flag in report.flags if flag.outcome in (FAIL, SUSPICIOUS)]
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
    began = time.monotonic()
    parser = make_parser(__doc__, "paper/results/false-alarms-audit.json")
    parser.add_argument("--images", type=int, nargs="+", default=[50])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=900.0, help="seconds after which it ends")
    parser.add_argument("--adversarial", help="a classifier that was trained adversarially")
    options = parser.parse_args()
    files = {BUNDLED: BUNDLED}
    if options.adversarial is not None:
        files[Path(options.adversarial).name] = options.adversarial
    digests = {name: target(options.device, file).classifier_id.sha256 for name, file in files.items()}
    earlier = kept(options.out, digests)
    found = {each.key: each for each in earlier.audits}
    adversarial = next((name for name in files if name != BUNDLED), None)
    left = [key for key in plan(options.images, adversarial) if key not in found or not found[key].is_current]
    print(
        f"{len(left)} audits to do, {sum(each.is_current for each in found.values())} are there", flush=True
    )
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:  # left, it ends its workers
        jobs = [pool.apply_async(audited, (options.device, files[key[0]], key)) for key in left]
        for each in as_they_come(jobs, began + options.deadline):
            found[each.key] = each
            print(*each.key, f"{each.seconds:.0f} s", dict(each.alarms), flush=True)
            write(options, found.values(), {**earlier.classifiers, **digests})
    current = [each for each in found.values() if each.is_current]
    print(f"{sum(bool(each.alarms) for each in current)} of {len(current)} audits raised an alarm")


def as_they_come(jobs: Iterable[AsyncResult[Audited]], deadline: float) -> Iterator[Audited]:
    """Results as they become ready, until the deadline (time.monotonic)."""
    waiting = list(jobs)
    while waiting and time.monotonic() < deadline:
        ready = [job for job in waiting if job.ready()]
        waiting = [job for job in waiting if job not in ready]
        yield from (job.get() for job in ready)
        if waiting and not ready:
            waiting[0].wait(min(0.5, max(0.0, deadline - time.monotonic())))


def kept(path: Path, digests: Mapping[str, str]) -> Earlier:
    """The audits of earlier runs, where the file is there; without those of a classifier of other weights."""
    if not path.is_file():
        return Earlier()
    record = parse_json(path.read_bytes(), path)
    classifiers = from_plain(dict[str, str], record.get("classifiers", {}), str(path))
    found = from_plain(tuple[Audited, ...], record["each"], str(path))
    changed = {name for name, digest in classifiers.items() if digests.get(name, digest) != digest}
    return Earlier(
        audits=tuple(each for each in found if each.classifier not in changed), classifiers=classifiers
    )


def write(options: argparse.Namespace, found: Iterable[Audited], classifiers: Mapping[str, str]) -> None:
    each = sorted(found, key=lambda audit: audit.key)
    current = [audit for audit in each if audit.is_current]
    place = target(options.device, BUNDLED)
    write_json(options.out, to_plain({
        "what": "audits of honest models: how many raise an alarm, and which",
        "classifier": place.name, "classifiers": classifiers, "data": place.data, "attacks": MODELS,
        "settings": SETTINGS, "machine": environment(place.place), "workers": options.workers,
        "audits": len(current), "with_alarms": sum(bool(audit.alarms) for audit in current),
        "with_fewer_flags": len(each) - len(current),
        "seconds": round(sum(audit.seconds for audit in current), 1),
        "each": each,
    }))  # fmt: skip


if __name__ == "__main__":
    main()

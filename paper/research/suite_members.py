"""What does each member add to a suite, on plain and on hardened classifiers? Leave-one-out tables.

Every member of adaptive-v2, which holds all of adaptive-v1, and some candidates attack the same images of
up to three subjects. What a set of them leaves is the minimum per image, chosen on draws of its own. All that
is measured is kept in the folder --work: a run that was stopped continues there.

    python paper/research/suite_members.py --data cifar10 --data-dir DIR --device cuda \
        --images 500 --batch 500 --precision tf32 --plain FILE --fine-tuned FILE --adversarial FILE

About 5,600 gradients per image and subject; half of them go through unrolled centres.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from common import BUNDLED, Target, ending, make_parser
from vqshield.attacks import PRECISIONS, Linf
from vqshield.attacks.suites import expand, suite, with_precision
from vqshield.attacks.threats import Threat, threat
from vqshield.auditing import AuditSettings
from vqshield.auditing.probes import Probes
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.defenses import from_text
from vqshield.models.calling import evaluating
from vqshield.models.draws import Draws, strongest
from vqshield.runs.notes import Notes

STEPS = "momentum=0.75,schedule=cosine,step=2/255,candidates=4"
CANDIDATES = {
    "soft-margin, 100 steps, 10 draws": f"pgd:steps=100,eot=10,surrogate=soft,loss=margin,{STEPS}",
    "unrolled-margin, 60 steps, 5 draws": (
        f"pgd:steps=60,eot=5,surrogate=soft,centres=unrolled,loss=margin,{STEPS}"
    ),
    "unrolled-entropy": f"pgd:steps=60,eot=5,surrogate=soft,centres=unrolled,{STEPS}",
    "soft-targeted": f"pgd:steps=60,eot=5,surrogate=soft,loss=targeted-margin,restarts=3,{STEPS}",
}
BALL = Linf(8 / 255)


@dataclass(frozen=True, kw_only=True)
class Left:
    """Accuracy under attacks, in shares: the mean of the runs, and its standard error over images."""

    mean: float
    error: float

    @classmethod
    def of(cls, draws: Draws) -> "Left":
        return cls(mean=draws.mean, error=draws.standard_error)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Accuracy under attacks of one classifier behind the defense.

    Attributes:
        members: by each member of adaptive-v2 alone; candidates: by each of those that were tried.
        seconds: that each took.
        suites: by adaptive-v1 and adaptive-v2.
        without: by each suite without one of its members, by suite and member.
        with_candidate: by adaptive-v2 with one candidate more.
    """

    name: str
    classifier: str
    sha256: str
    natural: Left
    members: Mapping[str, Left]
    candidates: Mapping[str, Left]
    seconds: Mapping[str, float]
    suites: Mapping[str, Left]
    without: Mapping[str, Mapping[str, Left]]
    with_candidate: Mapping[str, Left]


def measured(
    name: str, target: Target, defense: str, settings: AuditSettings, precision: str, images: int, work: Path
) -> Subject:
    pictures, labels = target.part(slice(images))
    identity = target.classifier_id
    notes = Notes(work / name)
    of: tuple[Json, ...] = (
        identity.sha256, target.data, images, defense, settings.runs, settings.batch, settings.seed, precision
    )  # fmt: skip
    known = notes.value(tuple[Json, ...], "all", lambda: of)
    if known != of:
        raise SystemExit(f"{work} holds what was measured of {known}; choose another folder for {of}")
    shield = from_text(defense, seed=settings.seed).to(target.place)
    probes = Probes(
        classifier=target.model,
        defense=shield,
        images=pictures,
        labels=labels,
        settings=settings,
        notes=notes,
    )
    seconds: dict[str, float] = {}

    def attacked(short: str, chosen: Threat) -> tuple[Draws, Draws]:
        began = time.perf_counter()
        found = probes.draws(chosen)
        took = round(time.perf_counter() - began, 1)
        seconds[short] = notes.value(float, {"seconds": short}, lambda: took)
        print(f"{name}, {short}: {found[1].mean:.3f} in {seconds[short]:.0f} s", flush=True)
        return found

    with evaluating(target.model):
        natural = Left.of(probes.natural())
        members = {
            short: attacked(short, each)
            for each in expand(with_precision("adaptive-v2", precision), BALL, seed=settings.seed)
            for short in [each.name.partition("/")[2]]
        }
        candidates = {
            short: attacked(short, threat(with_precision(text, precision), BALL, seed=settings.seed))
            for short, text in CANDIDATES.items()
        }
    first = [each.name.partition("/")[2] for each in suite("adaptive-v1", BALL)]
    suites = {"adaptive-v1": first, "adaptive-v2": list(members)}
    return Subject(
        name=name,
        classifier=identity.name,
        sha256=identity.sha256,
        natural=natural,
        members={short: Left.of(each[1]) for short, each in members.items()},
        candidates={short: Left.of(each[1]) for short, each in candidates.items()},
        seconds=seconds,
        suites={version: together(members[each] for each in held) for version, held in suites.items()},
        without={
            version: {
                without: together(members[each] for each in held if each != without) for without in held
            }
            for version, held in suites.items()
        },
        with_candidate={short: together([*members.values(), each]) for short, each in candidates.items()},
    )


def together(pairs: Iterable[tuple[Draws, Draws]]) -> Left:
    """What the strongest of each image leaves."""
    selections, reports = zip(*pairs, strict=True)
    return Left.of(strongest(selections, reports)[0])


def main() -> None:
    parser = make_parser(__doc__, "paper/results/suite-members.json")
    parser.add_argument("--data", default="cifar10-sample")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--batch", type=int, default=250, help="images that are attacked at once")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0], help="of gradients")
    parser.add_argument("--defense", default="swrd:size=3,codes=25")
    parser.add_argument("--work", type=Path, default=Path("suite-members-work"))
    for name in ("plain", "fine-tuned", "adversarial"):
        parser.add_argument(f"--{name}", help="a classifier's file" + f", else {BUNDLED}" * (name == "plain"))
    options = parser.parse_args()
    began = time.perf_counter()
    settings = AuditSettings(runs=options.runs, batch=options.batch, seed=options.seed)
    files = {
        "plain": options.plain or BUNDLED,
        "fine-tuned": options.fine_tuned,
        "adversarial": options.adversarial,
    }
    subjects: list[Subject] = []
    for name, file in files.items():
        if file is None:
            continue
        target = Target(data=options.data, data_dir=options.data_dir, classifier=file, device=options.device)
        subjects.append(
            measured(name, target, options.defense, settings, options.precision, options.images, options.work)
        )
        write_json(options.out, to_plain({
            "what": "what each member adds to a suite of attacks: leave-one-out",
            "data": options.data, "images": options.images, "defense": options.defense, "eps": BALL.eps,
            "runs": options.runs, "seed": options.seed, "precision": options.precision,
            "candidates": CANDIDATES, "rows": subjects,
            **ending(began, target.place),
        }))  # fmt: skip


if __name__ == "__main__":
    main()

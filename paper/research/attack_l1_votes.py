"""Does any L1 attack flip a vote that splitting certifies, inside its radius? None may.

    python paper/research/attack_l1_votes.py --data cifar10 --data-dir DIR --classifier FILE --scale 0.87

Every vote is certified exactly, and then attacked with a budget of its own radius: L1-APGD (Croce and Hein
2021) with two losses on the average over random shifts, through the straight-through gradient, and random
sparse changes. What an attack finds is put on the 8-bit grid, all of its budget used, and all shifts vote
on it again. A single vote that flips refutes the certificate, or the code behind it, and ends with exit
status 1. The same attacks with a budget several times as large (--outside) show what they can do. Writes
paper/results/attack-l1-votes.json.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from common import BUNDLED, Target, described, make_parser
from vqshield.attacks import APGD, EOT, L1, Attack, RandomNoise
from vqshield.certificates import certify_all_shifts
from vqshield.certification.study import fast_forward
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import to_plain
from vqshield.defended import Defended
from vqshield.defenses import Splitting

WHITE = 255


@dataclass(frozen=True, kw_only=True)
class Given:
    """How votes are attacked; controls: how many are attacked with `outside` times their radius too."""

    scale: float = 0.87
    certified: int = 500
    controls: int = 100
    outside: float = 5.0
    steps: int = 50
    eot: int = 32
    tries: int = 5
    group: int = 16
    batch: int = 4000
    precision: str = "float32"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What the shifts vote on what an attack found: the certified answer's lead, in votes, and the winner."""

    attack: str
    steps: int
    lead: int
    answer: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One image; inside: within the certified radius, outside: within several times that."""

    image: int
    label: int
    answer: int
    steps: int
    lead: int
    inside: tuple[Attacked, ...] = ()
    outside: tuple[Attacked, ...] | None = field(default=None, metadata={"omit": True})

    @property
    def flipped(self) -> bool:
        """Whether the certificate is refuted."""
        return any(each.answer != self.answer for each in self.inside)

    @property
    def falls_outside(self) -> bool:
        """Whether the larger budget changes the vote."""
        return any(each.answer != self.answer for each in self.outside or ())


class Votes:
    """The votes of all shifts on an image."""

    def __init__(self, target: Target, split: Splitting, *, batch: int, precision: str) -> None:
        self._forward = fast_forward(target.model, device=target.place, precision=precision)
        self._split, self._classes, self._batch = split, len(target.images.classes), batch

    @torch.no_grad()
    def __call__(self, image: Tensor) -> Tensor:
        """(1, classes)."""
        counts = torch.zeros(self._classes, dtype=torch.int64, device=image.device)
        for shifts in torch.split(torch.arange(self._split.levels, device=image.device), self._batch):
            shown = self._split.shifted(image.expand(len(shifts), -1, -1, -1), shifts)
            counts += torch.bincount(self._forward(shown).argmax(-1), minlength=self._classes)
        return counts[None].cpu()


def on_grid(found: Tensor, image: Tensor, steps: int) -> Tensor:
    """The 8-bit image near what was found, `steps` levels from the original or fewer.

    Changes are shortened to the budget and cut to whole levels; the remainder goes where most was cut off.
    """
    levels = (image.double() * WHITE).round().flatten()
    change = found.double().flatten() * WHITE - levels
    change *= min(1.0, steps / float(change.abs().sum().clamp(min=1e-9)))
    sign, whole = change.sign(), change.abs().floor()
    further = levels + sign * (whole + 1)
    free = (sign != 0) & (further >= 0) & (further <= WHITE)
    cut = torch.where(free, change.abs() - whole, -1.0)
    more = cut.argsort(descending=True)[: max(0, steps - int(whole.sum()))]
    whole[more[cut[more] >= 0]] += 1
    return ((levels + sign * whole) / WHITE).to(image.dtype).view_as(image)


def attacks(eps: float, *, steps: int, tries: int, seed: int) -> dict[str, Attack]:
    """By name; all within eps."""
    ball = L1(eps)
    return {
        "margin": APGD(ball=ball, steps=steps, loss="margin", random_start=False, seed=seed),
        "cross-entropy": APGD(ball=ball, steps=steps, loss="cross-entropy", seed=seed),
        "noise": RandomNoise(ball=ball, tries=tries, kind="points", seed=seed),
    }


def attacked(
    target: Target, split: Splitting, votes: Votes, group: Sequence[Row], *, factor: float, given: Given
) -> list[tuple[Attacked, ...]]:  # fmt: skip
    """Every attack on a group of images, each with `factor` times its own certified radius."""
    images = torch.cat([target.part(range(row.image, row.image + 1))[0] for row in group])
    answers = torch.tensor([row.answer for row in group], device=images.device)
    budgets = [round(factor * row.steps) for row in group]
    seed = derived_seed(given.seed, group[0].image, f"{factor:g}")
    found: list[list[Attacked]] = [[] for _ in group]
    # The largest budget of the group for all, cut back to each image's own afterwards.
    for name, attack in attacks(
        max(budgets) / WHITE, steps=given.steps, tries=given.tries, seed=seed
    ).items():
        model = EOT(Defended(target.model, split.reseeded(derived_seed(seed, name))), draws=given.eot)
        moved = attack(model, images, answers)
        for number, row in enumerate(group):
            image = images[number : number + 1]
            point = on_grid(moved[number], image, budgets[number])
            distance = int(((point - image).double() * WHITE).round().abs().sum())
            assert distance <= budgets[number], f"{distance} levels are over a budget of {budgets[number]}"
            counts = votes(point)
            elected = int(certify_all_shifts(counts=counts).answers)
            left = lead(counts, row.answer)
            found[number].append(Attacked(attack=name, steps=distance, lead=left, answer=elected))
    return [tuple(each) for each in found]


def lead(counts: Tensor, answer: int) -> int:
    """The lead of a class over all others, in votes; below 0 where another class leads."""
    others = counts[0].clone()
    others[answer] = -1
    return int(counts[0, answer]) - int(others.max())


def certified_votes(target: Target, votes: Votes, most: int) -> list[Row]:
    """The first images whose vote is certified beyond the image itself."""
    rows: list[Row] = []
    for number in range(len(target.images)):
        if len(rows) == most:
            break
        image, label = target.part(range(number, number + 1))
        counts = votes(image)
        found = certify_all_shifts(counts=counts)
        answer, steps = int(found.answers), int(found.steps)
        if steps > 0:
            rows.append(
                Row(image=number, label=int(label), answer=answer, steps=steps, lead=lead(counts, answer))
            )
    return rows


def main() -> int:
    parser = make_parser(__doc__, "paper/results/attack-l1-votes.json")
    parser.add_argument("--data", default="cifar10-sample")
    parser.add_argument("--classifier", default=BUNDLED)
    parser.add_argument("--limit", type=int, help="of images looked at")
    for name, value in asdict(Given()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = vars(parser.parse_args())
    given = Given(**{name: options[name] for name in asdict(Given())})
    began = time.perf_counter()
    target = Target(**{name: options[name] for name in ("data", "data_dir", "classifier", "limit", "device")})
    split = Splitting(scale=given.scale, seed=0)
    votes = Votes(target, split, batch=given.batch, precision=given.precision)
    certified = certified_votes(target, votes, given.certified)
    print(f"{len(certified)} certified votes, {time.perf_counter() - began:.0f} s", flush=True)
    controls = {row.image for row in certified[: given.controls]}
    ordered = sorted(certified, key=lambda row: row.steps)  # so that budgets in a group are about equal
    rows: list[Row] = []
    for first in range(0, len(ordered), given.group):
        group = ordered[first : first + given.group]
        inside = attacked(target, split, votes, group, factor=1.0, given=given)
        done = [replace(row, inside=each) for row, each in zip(group, inside, strict=True)]
        known = [row for row in done if row.image in controls]
        if known:
            beyond = attacked(target, split, votes, known, factor=given.outside, given=given)
            by_image = {row.image: each for row, each in zip(known, beyond, strict=True)}
            done = [replace(row, outside=by_image.get(row.image)) for row in done]
        rows += done
        flips = sum(row.flipped for row in rows)
        print(f"{len(rows)} attacked, {flips} flipped, {time.perf_counter() - began:.0f} s", flush=True)
    rows.sort(key=lambda row: row.image)
    flipped = sum(row.flipped for row in rows)
    record = {
        "what": "votes that splitting certifies, attacked inside their certified L1 radius",
        **described(target),
        "plan": asdict(given),
        "environment": environment(target.place),
        "seconds": round(time.perf_counter() - began, 1),
        "certified": len(rows),
        "certified_right": sum(row.answer == row.label for row in rows),
        "mean_radius": sum(row.steps for row in rows) / max(1, len(rows)) / WHITE,
        "flipped": flipped,
        "lowest_lead": min((each.lead for row in rows for each in row.inside), default=None),
        "controls": sum(row.outside is not None for row in rows),
        "flipped_outside": sum(row.falls_outside for row in rows),
        "rows": rows,
    }
    write_json(options["out"], to_plain(record))
    print(f"{flipped} of {len(rows)} certified votes flipped; see {options['out']}")
    return 1 if flipped else 0


if __name__ == "__main__":
    raise SystemExit(main())

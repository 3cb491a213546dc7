"""Does any attack flip a certified majority vote inside its certified radius? None may.

    python paper/research/attack_certified_votes.py --limit 200 --device cuda

Every image's vote is certified (Cohen et al.: n0 draws choose, n bound, alpha), and then attacked just inside
its own L2 radius: PGD with straight-through and with soft gradients, averaged over draws, and random noise.
Fresh draws then vote on what the attack found. A single vote that flips refutes the certificate, or the code
behind it, and ends with exit status 1. Writes paper/results/attack-certified-votes.json.
"""

import json
import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from common import BUNDLED, Target, defense_of, described, make_parser
from vqshield.attacks import L2
from vqshield.attacks.threats import threat
from vqshield.certificates import Coverage, Votes, certify_vote
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.seeds import derived_seed
from vqshield.core.serialization import to_plain
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.models.draws import outputs

INSIDE = 0.999  # of the radius, which itself is not certified


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How votes are certified, attacked and counted again."""

    defense: str = "swrd:noise=shared,sigma=0.1,tau=0.1"
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    steps: int = 100
    eot: int = 10
    tries: int = 20
    votes: int = 1000
    seed: int = 0
    batch: int = 500

    def shield(self, *purpose: int | str) -> Defense:
        """The defense, with draws that no other purpose has."""
        return defense_of(self.defense, seed=derived_seed(self.seed, *purpose))

    def attacks(self) -> dict[str, str]:
        """The threats, as `vqshield evaluate --attack` takes them."""
        pgd = f"pgd:steps={self.steps},step=eps/10,eot={self.eot},loss=margin,schedule=cosine,momentum=0.75"
        noise = f"noise:tries={self.tries},eot={self.eot}"
        return {
            "ste": pgd,
            "soft": f"{pgd},surrogate=soft",
            "corners": noise,
            "points": f"{noise},kind=points",
        }


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """How far an attack went, and how fresh draws then vote: the certified answer's share, and the winner."""

    distance: float
    share: float
    vote: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One image: its certificate, and what every attack did to it; answer −1 and radius 0: not certified."""

    image: int
    answer: int
    radius: float
    p_lower: float
    attacks: Mapping[str, Attacked]
    flipped: bool
    label: int | None = None


def counts(model: nn.Module, image: Tensor, draws: int, batch: int) -> Tensor:
    """How often each class comes out in fresh draws of one image, (1, classes)."""
    logits = outputs(model, image, runs=draws, batch=batch)[:, 0]
    return torch.bincount(logits.argmax(-1).cpu(), minlength=logits.shape[-1])[None]


def certify(classifier: nn.Module, image: Tensor, number: int, plan: Plan) -> Votes:
    """The certificate of one image (1, q, h, w)."""
    models = [
        Defended(classifier, plan.shield(number, stage).to(image.device)) for stage in ("select", "bound")
    ]
    covered = Coverage.of(**plan.shield(number).certificate_terms())
    return certify_vote(
        selection_counts=counts(models[0], image, plan.n0, plan.batch),
        estimation_counts=counts(models[1], image, plan.n, plan.batch),
        alpha=plan.alpha,
        sigma_eff=covered.sigma_eff,
        copies=covered.copies,
    )


def attack_vote(classifier: nn.Module, image: Tensor, number: int, plan: Plan) -> Row:
    """Certify the vote of one image, then try to change it inside the radius."""
    certificate = certify(classifier, image, number, plan)
    answer, radius = certificate.answers, float(certificate.radii)
    tried = {}
    if radius > 0:
        ball = L2(INSIDE * radius)
        for name, text in plan.attacks().items():
            chosen = threat(text, ball, seed=derived_seed(plan.seed, number, name))
            shield = plan.shield(number, name, "attacked").to(image.device)
            found = chosen(classifier, shield, image, answer.to(image.device))
            fresh = Defended(classifier, plan.shield(number, name, "vote").to(image.device))
            votes = counts(fresh, found, plan.votes, plan.batch)[0]
            tried[name] = Attacked(
                distance=float(ball.distance(found, image)),
                share=float(votes[int(answer)]) / plan.votes,
                vote=int(votes.argmax()),
            )
    return Row(
        image=number,
        answer=int(answer),
        radius=radius,
        p_lower=float(certificate.probabilities),
        attacks=tried,
        flipped=any(each.vote != int(answer) for each in tried.values()),
    )


loaded_once = cache(Target)  # in every process


def attack_number(number: int, *, plan: Plan, where: dict[str, Any]) -> Row:
    """The row of one image, in whatever process: all its seeds follow from its number."""
    target = loaded_once(**where)
    image = target.images.floats(slice(number, number + 1)).to(target.place)
    return replace(attack_vote(target.model, image, number, plan), label=int(target.images.labels[number]))


def main() -> int:
    parser = make_parser(__doc__, "paper/results/attack-certified-votes.json")
    default = Plan()
    for name, value in asdict(default).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--data", default="cifar10-sample")
    parser.add_argument("--classifier", default=BUNDLED)
    parser.add_argument("--processes", type=int, default=1, help="images attacked side by side")
    given = vars(parser.parse_args())
    plan = Plan(**{name: given[name] for name in asdict(default)})
    where = {name: given[name] for name in ("data", "data_dir", "classifier", "limit", "device")}
    target = loaded_once(**where)
    began, rows = time.perf_counter(), []
    # A process that was forked could not use the GPU.
    with ProcessPoolExecutor(given["processes"], multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(partial(attack_number, plan=plan, where=where), range(len(target.images))):
            rows.append(row)
            print(json.dumps(to_plain(row)), flush=True)
    certified = [row for row in rows if row.radius > 0]
    flipped = sum(row.flipped for row in rows)
    shares = [each.share for row in certified for each in row.attacks.values()]
    record = {
        "what": "certified majority votes, attacked inside their certified L2 radius",
        **described(target),
        "plan": {**asdict(plan), "attacks": plan.attacks(), "inside": INSIDE},
        "environment": environment(target.place),
        "seconds": round(time.perf_counter() - began, 1),
        "images": len(rows),
        "certified": len(certified),
        "certified_right": sum(row.answer == row.label for row in certified),
        "mean_radius": sum(row.radius for row in certified) / max(1, len(certified)),
        "flipped": flipped,
        "lowest_share": min(shares, default=None),
        "rows": rows,
    }
    write_json(given["out"], to_plain(record))
    print(f"{flipped} of {len(certified)} certified votes flipped; see {given['out']}")
    return 1 if flipped else 0


if __name__ == "__main__":
    raise SystemExit(main())

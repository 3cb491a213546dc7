"""Is the gradient of a learned imitation as good as one written by hand? JPEG, median filter, swRD.

Each defense is attacked twice by the same PGD, once with the surrogate that one would write by hand ("ste",
for a quantizer "soft") and once with surrogate=learned; the same images, fresh draws for both. Two ways to
compare: by the standard errors of the two accuracies, as two evaluations would show them, and by that of the
difference image by image, which is smaller, since hard images are hard for both.

    python paper/research/learned_surrogate.py
"""

import math
import time
from dataclasses import dataclass

import torch

from common import described, ending, make_parser
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.evaluation.records import EvaluationRecord
from vqshield.evaluation.study import Evaluation
from vqshield.runs.executors import run_study
from vqshield.runs.target import Target

CASES = (
    ("jpeg", "pgd:steps=20,step=eps/10", "ste"),
    ("median", "pgd:steps=20,step=eps/10", "ste"),
    ("swrd", "pgd:steps=20,step=eps/10,eot=4", "soft"),
)
"""Defense, attack, and the surrogate written by hand; a random defense is attacked over several draws."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Accuracies as fractions, each with its standard error over images; difference: learned less by_hand."""

    defense: str
    attack: str
    by_hand: str
    natural: float
    accuracy_by_hand: float
    error_by_hand: float
    accuracy_learned: float
    error_learned: float
    difference: float
    error_of_difference: float

    @property
    def within_errors(self) -> bool:
        """Whether the learned one leaves at most two standard errors more, by those of the two accuracies."""
        return self.difference <= 2 * math.hypot(self.error_by_hand, self.error_learned)

    @property
    def within_error_of_difference(self) -> bool:
        """The same by the standard error of the difference, image by image."""
        return self.difference <= 2 * self.error_of_difference


def measure(defense: str, attack: str, by_hand: str, *, target: Target, runs: int) -> Row:
    """Both attacks on one defense."""
    texts = tuple(f"{attack},surrogate={each}" for each in (by_hand, "learned"))
    study = Evaluation(target=target, defenses=(defense,), attacks=texts, runs=runs)
    records = [each for each in run_study(study, None).records if each.defense == defense]
    natural, hand, learned = (_right(records, each) for each in ("none", *texts))
    difference = learned - hand
    return Row(
        defense=defense,
        attack=attack,
        by_hand=by_hand,
        natural=float(natural.mean()),
        accuracy_by_hand=float(hand.mean()),
        error_by_hand=_error(hand),
        accuracy_learned=float(learned.mean()),
        error_learned=_error(learned),
        difference=float(difference.mean()),
        error_of_difference=_error(difference),
    )


def _right(records: list[EvaluationRecord], attack: str) -> torch.Tensor:
    """The share of right answers of each image."""
    counted = [
        sum(answer == each.label for answer in each.predictions) / len(each.predictions)
        for each in records
        if each.attack == attack
    ]
    return torch.tensor(counted, dtype=torch.float64)


def _error(values: torch.Tensor) -> float:
    return float(values.std() / len(values) ** 0.5)


def main() -> None:
    parser = make_parser(__doc__, "paper/results/learned-surrogate.json")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--only", nargs="*", help="some of the defenses alone")
    asked = parser.parse_args()
    began = time.perf_counter()
    target = Target(data_dir=asked.data_dir, limit=asked.limit, device=asked.device)
    rows = []
    for case in CASES:
        if not asked.only or case[0] in asked.only:
            rows.append(measure(*case, target=target, runs=asked.runs))
            verdict = rows[-1].within_errors, rows[-1].within_error_of_difference
            print(rows[-1], "within two standard errors, of both and of the difference:", verdict, flush=True)
    record = {
        **described(target), "norm": "linf", "eps": 8 / 255, "runs": asked.runs, "seed": 0,
        "rows": to_plain(rows), **ending(began, target.place),
    }  # fmt: skip
    write_json(asked.out, record)


if __name__ == "__main__":
    main()

"""The red flags: from measured figures to pass or fail, with a sentence of what it means. No network here."""

import math
from collections.abc import Mapping, Sequence

from vqshield.auditing.results import (
    FAIL,
    NOT_RUN,
    PASS,
    Accuracy,
    Agreement,
    Estimate,
    Figure,
    Flag,
    Outcome,
)

TITLES = {
    "R1": "an unbounded attack leaves nothing",
    "R2": "more steps do not help the defense",
    "R3": "a larger budget does not help the defense",
    "R4": "attacks without gradients of the defense do no better than those with them",
    "R5": "robust accuracy does not exceed natural accuracy",
    "R6": "random noise does less harm than the attack",
    "R7": "averaging over twice as many draws changes little",
    "R8": "an attack that knows the defense does no worse than one that ignores it",
    "R9": "the attack finds adversarial images that were planted",
    "R10": "the attack's gradient points where the expected loss really rises",
}


def flag(
    name: str, outcome: Outcome, meaning: str, figures: Mapping[str, Figure | Accuracy] | None = None
) -> Flag:
    """A flag with the title of that name."""
    shown: dict[str, Figure] = {
        key: Estimate.of(value) if isinstance(value, Accuracy) else value
        for key, value in (figures or {}).items()
    }
    return Flag(name, TITLES[name], outcome, meaning, shown)


def not_run(name: str, why: str) -> Flag:
    """A flag that could not be decided; it never counts as passed."""
    return flag(name, NOT_RUN, why)


def unbounded(left: Accuracy, eps: float, limit: float = 0.01) -> Flag:
    """R1."""
    good = left.mean <= limit
    meaning = (
        "with room to paint any image, the attack wins: its gradients are good enough to steer by"
        if good
        else "an attack that may change every pixel by half of its range must win; this one is stuck, so its "
        "figures at the real budget say nothing"
    )
    return flag("R1", _outcome(good), meaning, {f"left at eps={eps:g}": left, "limit": limit})


def monotone(name: str, what: str, curve: Sequence[tuple[float, Accuracy]]) -> Flag:
    """R2 and R3: along a growing effort the accuracy never rises beyond two standard errors."""
    figures = {f"{what} {value:g}": accuracy for value, accuracy in curve}
    rises = [
        (a, b) for i, (a, before) in enumerate(curve) for b, after in curve[i + 1 :] if _beyond(after, before)
    ]
    if not rises:
        return flag(name, PASS, f"accuracy falls, or stays, as {what} grow", figures)
    a, b = rises[0]
    return flag(
        name,
        FAIL,
        f"accuracy rises from {what} {a:g} to {b:g}: the attack loses its way; a better one would win more",
        figures,
    )


def without_gradients(white: Accuracy | None, others: Mapping[str, Accuracy], slack: float = 0.002) -> Flag:
    """R4: black-box and transfer attacks against the strongest that uses the defense's gradients."""
    if white is None:
        return flag(
            "R4", FAIL, "no attack given uses gradients of the defense; these need none, so nothing shows "
            "that the defense resists anything but ignorance", others,
        )  # fmt: skip
    best = min(others, key=lambda name: others[name].mean)
    good = others[best].mean >= white.mean - slack
    meaning = (
        "gradients of the defense lead the attack to more than blind search does"
        if good
        else f"{best} beats the attack with gradients: those are masked, and the true accuracy is lower"
    )
    return flag("R4", _outcome(good), meaning, {"with gradients": white, **others})


def below_natural(robust: Accuracy, natural: Accuracy) -> Flag:
    """R5."""
    good = not _beyond(robust, natural)
    meaning = "attacked images are no easier than natural ones" if good else (
        "attacked images are classified better than natural ones: the attack works against itself"
    )  # fmt: skip
    return flag("R5", _outcome(good), meaning, {"robust": robust, "natural": natural})


def noise_is_weaker(noise: Accuracy, attack: Accuracy) -> Flag:
    """R6."""
    good = not _beyond(attack, noise)
    meaning = "the attack does no less harm than noise of the same size" if good else (
        "noise of the same size does more harm than the attack, which therefore searches in the wrong place"
    )  # fmt: skip
    return flag("R6", _outcome(good), meaning, {"random noise": noise, "attack": attack})


def draws_suffice(usual: Accuracy, doubled: Accuracy, eot: int, slack: float = 0.01) -> Flag:
    """R7."""
    good = abs(usual.mean - doubled.mean) < slack
    meaning = "enough draws are averaged in each step" if good else (
        "the figure still moves with the number of draws: average over more"
    )  # fmt: skip
    return flag("R7", _outcome(good), meaning, {f"eot {eot}": usual, f"eot {2 * eot}": doubled})


def knowing_helps(reported: Accuracy, ignorant: Accuracy, probe: Accuracy, knows: bool) -> Flag:
    """R8: what is reported beside the ignorant attack and beside a probe that knows the defense."""
    figures = {"reported": reported, "ignorant": ignorant, "probe that knows the defense": probe}
    if _beyond(reported, probe):
        who = (
            "it comes from attacks that are too weak"
            if knows
            else "it comes from attacks that ignore the defense"
        )
        return flag(
            "R8", FAIL, f"a short attack that knows the defense leaves {probe}, not {reported}: the reported "
            f"figure flatters the defense, {who}", figures,
        )  # fmt: skip
    good = not _beyond(reported, ignorant)
    meaning = "knowing the defense helps the attack, as it must" if good else (
        "the attack that knows the defense does worse than one that ignores it: it is misled by the defense"
    )  # fmt: skip
    return flag("R8", _outcome(good), meaning, figures)


def planted(found: int, valid: int, total: int, blindly: int, least: float = 0.95) -> Flag:
    """R9."""
    figures = {"planted": total, "confirmed": valid, "found": found, "found blindly": blindly}
    if valid == 0:
        return not_run("R9", "no planted image was confirmed: this test cannot judge the attack here")
    good = found >= least * valid
    meaning = "where adversarial images are known to be, the attack finds them" if good else (
        "adversarial images are there, by construction, and the attack does not find them: it is too weak"
    )  # fmt: skip
    return flag("R9", _outcome(good), meaning, {**figures, "share": found / valid})


def gradients_agree(correlation: float, figures: Mapping[str, Agreement], least: float = 0.8) -> Flag:
    """R10."""
    good = correlation >= least
    meaning = "its gradient predicts how the expected loss changes" if good else (
        "its gradient is a poor guide to the expected loss: a better surrogate would find more"
    )  # fmt: skip
    return flag("R10", _outcome(good), meaning, {"correlation": correlation, **figures})


def in_order(flags: Sequence[Flag]) -> list[Flag]:
    """R1 … R10, those missing as not run."""
    found = {each.name: each for each in flags}
    return [found.get(name) or not_run(name, "not asked for") for name in TITLES]


def _outcome(good: bool) -> Outcome:
    return PASS if good else FAIL


def _beyond(one: Accuracy, other: Accuracy) -> bool:
    """Whether one is the higher by more than two standard errors of the difference."""
    return one.mean > other.mean + 2 * math.hypot(one.error, other.error)

"""The red flags: from measured numbers to an outcome and its meaning. No network is called here.

A check fails where its limit is exceeded by more than luck, and passes where the measurement rules out what
`POWER` says of it. Otherwise it is undecided.

Two attacks are compared image by image. Let d_i be the difference of the shares of draws that are right for
image i. The standard error of the mean difference, if there is none in truth, is sqrt(sum d_i²)/N. An audit
makes about twenty such comparisons, so three of these errors are needed for a failure: with two, one honest
audit in seven would fail by luck. Counts are compared by the binomial tail that is as unlikely.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vqshield.auditing.answers import Answers
from vqshield.auditing.planting import Planted
from vqshield.auditing.results import Agreement, AuditSettings, Figure, Flag, Outcome, Uncertain
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import parse_toml, read_text
from vqshield.core.serialization import from_plain
from vqshield.models.draws import Draws


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a check claims, and what its outcomes mean.

    Attributes:
        title: what ought to hold.
        images, power: the smallest number of images, and what does not pass there in nine of ten audits.
        good, bad: what the outcome says about the model; words in braces are filled in.
        next: what to do where it does not pass.
    """

    title: str
    images: int
    power: str
    good: str
    bad: str
    next: str


_FILE = Path(__file__).with_name("checks.toml")
CHECKS = from_plain(Mapping[str, Check], parse_toml(read_text(_FILE), _FILE), _FILE.name)  # type: ignore[type-abstract]
TITLES = {name: check.title for name, check in CHECKS.items()}
POWER = {name: (check.images, check.power) for name, check in CHECKS.items()}
"""Each check's smallest number of images, and what does not pass there in nine of ten audits.

From that number on, nine of ten honest models pass: those at the limit of R1, R9 and R13; attacks of equal
strength in the comparisons (R2 to R8, R11); gradients with a correlation of 0.92 in R10. R9 counts confirmed
planted images. R9, R10 and R12 to R14 look at 24 images at most. Tests compute all of this.
"""
LEAST_IMAGES = max(check.images for check in CHECKS.values())
"""No audit of fewer images passes."""
ERRORS = 3.0
"""Standard errors of a difference that are taken for more than luck."""
TAIL = 0.00135  # of a normal distribution, beyond three standard errors
_POINTS = 0.25  # of accuracy: a comparison that cannot rule out this difference is undecided
_DOUBT = 0.0228  # of a normal distribution, beyond two: a count this unlikely at its limit does not pass
_MISSED = 0.1  # the chance to pass what POWER names
_BOUND = 1.645  # standard errors: nominally 95 %, so that of few images 90 % remain
_GRADIENT_ERRORS = 2.0  # with three, gradients that are wrong for half of the images would pass
_HALF = 0.5  # of the signs, which a gradient without any meaning gets right
_LEAST_RELIABILITY = 0.3
_LEAST_CORRELATION = 0.8  # of a gradient that R10 does not fail
_LEAST_SIGNS = 0.75  # share that agrees, of such a gradient
_CORRELATION = 0.25  # of a gradient that R10 does not pass
_TOLERANCE = 0.01  # of a probability or a pixel: what rounding in another batch may change
_MORE_NEEDED = "more images or draws decide it"

Figures = Mapping[str, Figure | Draws]


def flag(name: str, outcome: Outcome, meaning: str, figures: Figures | None = None) -> Flag:
    """A flag with the title of that name."""
    shown: dict[str, Figure] = {
        key: Uncertain.of(value) if isinstance(value, Draws) else value
        for key, value in (figures or {}).items()
    }
    return Flag(name, TITLES[name], outcome, meaning, shown)


def not_run(name: str, why: str) -> Flag:
    """A flag that could not be decided; it never counts as passed."""
    return flag(name, "not run", why)


def _judged(
    name: str, outcome: Outcome, figures: Figures, *, needed: str = _MORE_NEEDED, **words: str
) -> Flag:
    """A flag with the meaning of its outcome; words: those in braces, or all of it as "good" or "bad"."""
    check = CHECKS[name]
    if outcome == "undecided":
        return flag(name, outcome, f"these images do not rule out {check.power}; {needed}", figures)
    kind, usual = ("good", check.good) if outcome == "pass" else ("bad", check.bad)
    return flag(name, outcome, words[kind] if kind in words else usual.format(**words), figures)


def unbounded(left: Draws, eps: float, limit: float = 0.01) -> Flag:
    """R1."""
    outcome = _counted(float(_shares(left).sum()), len(left.labels), limit, above=0.1)
    return _judged("R1", outcome, {f"left at eps={eps:g}": left, "limit": limit})


def monotone(name: str, what: str, curve: Sequence[tuple[float, Draws]]) -> Flag:
    """R2 and R3: along a growing effort the accuracy never rises."""
    pairs = {
        f"{what} {a:g} to {b:g}": _higher(after, before)
        for i, (a, before) in enumerate(curve)
        for b, after in curve[i + 1 :]
    }
    figures = {f"{what} {value:g}": draws for value, draws in curve}
    return _judged(name, _worst(pairs.values()), figures, what=what, rise=_first_failed(pairs))


def without_gradients(white: Draws | None, others: Mapping[str, Draws], slack: float = 0.002) -> Flag:
    """R4: black-box and transfer attacks against the strongest that uses the defense's gradients."""
    if white is None:
        return flag(
            "R4", "fail", "no attack given uses gradients of the defense; these need none, so nothing shows "
            "that the defense resists anything but ignorance", others,
        )  # fmt: skip
    outcomes = {name: _higher(white, other, slack) for name, other in others.items()}
    better = [name for name, outcome in outcomes.items() if outcome == "fail"]
    best = min(better, key=lambda name: others[name].mean, default="")
    return _judged("R4", _worst(outcomes.values()), {"with gradients": white, **others}, best=best)


def below_natural(robust: Draws, natural: Draws) -> Flag:
    """R5."""
    return _judged("R5", _higher(robust, natural), {"robust": robust, "natural": natural})


def noise_is_weaker(noise: Draws, attack: Draws) -> Flag:
    """R6."""
    return _judged("R6", _higher(attack, noise), {"random noise": noise, "attack": attack})


def draws_suffice(usual: Draws, doubled: Draws, eot: int, slack: float = 0.01) -> Flag:
    """R7."""
    outcome = _worst([_higher(usual, doubled, slack), _higher(doubled, usual, slack)])
    return _judged("R7", outcome, {f"eot {eot}": usual, f"eot {2 * eot}": doubled})


def knowing_helps(reported: Draws, ignorant: Draws, probe: Draws, knows: bool) -> Flag:
    """R8: the reported accuracy against those under the ignorant attack and under a probe that knows."""
    against = _higher(reported, probe)
    words = {}
    if against == "fail":
        words["bad"] = (
            f"a short attack that knows the defense leaves {Uncertain.of(probe)}, not "
            f"{Uncertain.of(reported)}: the reported accuracy flatters the defense, it comes from attacks "
            f"that {'are too weak' if knows else 'ignore the defense'}"
        )
    figures = {"reported": reported, "ignorant": ignorant, "probe that knows the defense": probe}
    return _judged("R8", _worst([against, _higher(reported, ignorant)]), figures, **words)


def planted(counts: Planted, limit: float = 0.05) -> Flag:
    """R9."""
    if counts.valid == 0:
        return not_run("R9", "no planted image was confirmed: this test cannot judge the attack here")
    outcome = _counted(counts.valid - counts.found, counts.valid, limit, above=0.5)
    figures = {
        "planted": counts.total, "confirmed": counts.valid, "found": counts.found,
        "found blindly": counts.blindly, "share": counts.found / counts.valid,
    }  # fmt: skip
    return _if_enough(_judged("R9", outcome, figures), counts.valid)


def gradients_agree(
    places: Mapping[str, Agreement], signs: Uncertain, others: Mapping[str, Agreement]
) -> Flag:
    """R10: the attack's gradient at the images and where the attack leads, and other surrogates."""
    worst = min(place.estimate() for place in places.values())
    figures: dict[str, Figure] = {"correlation": worst, "signs that agree": signs, **places, **others}
    # Signs count every image alike; where they agree as a good gradient's do, a few large losses decided.
    errors = _GRADIENT_ERRORS if signs.mean < _signs_of(_LEAST_CORRELATION) else ERRORS
    estimates = {name: place.estimate(errors) for name, place in places.items() if _reliable(place)}
    poor = [name for name, estimate in estimates.items() if estimate < _LEAST_CORRELATION]
    if poor:
        return _judged("R10", "fail", figures, place=poor[0])
    if signs.mean + _GRADIENT_ERRORS * signs.standard_error < _LEAST_SIGNS:
        wrong = "where the expected loss rises, its gradient often says that it falls: it is wrong for some "
        return flag("R10", "fail", f"{wrong}images, and a better one would find more", figures)
    if not all(map(_reliable, places.values())):
        meaning = "the measured changes are mostly sampling noise: take more draws"
        return flag("R10", "undecided", meaning, figures)
    good = signs.mean - _BOUND * signs.standard_error > _signs_of(_CORRELATION) and all(
        place.estimate(_GRADIENT_ERRORS) >= _LEAST_CORRELATION and place.estimate(-_BOUND) > _CORRELATION
        for place in places.values()
    )
    return _judged(
        "R10", "pass" if good else "undecided", figures, needed="more directions and draws decide it"
    )


def _signs_of(correlation: float) -> float:
    """The share of signs that agree, of two normal variables with that correlation."""
    return _HALF + math.asin(correlation) / math.pi


def leads_somewhere(signs: Uncertain) -> bool:
    """Whether a gradient predicts the signs of large changes better than a coin does."""
    return signs.mean - _GRADIENT_ERRORS * signs.standard_error > _HALF


def agree_in_small(coarse: Flag, fine: Flag, step: float) -> Flag:
    """R10 if the gradient is right for small steps, and the loss is not a straight line over long ones."""
    meaning = (
        f"its gradient predicts how the expected loss changes in steps of {step:.3g}; over the whole budget "
        "the loss bends, and it still tells the direction better than chance"
    )
    figures = {f"{name}, steps of {step:.3g}": value for name, value in fine.figures.items()}
    return flag("R10", "pass", meaning, {**coarse.figures, **figures})


def nothing_more_to_find(poor: Flag, reported: Draws) -> Flag:
    """R10 if the gradient may be poor and every image is misclassified under attack."""
    if poor.outcome not in ("fail", "undecided") or not poor.figures or bool(reported.right.any()):
        return poor
    meaning = f"{poor.meaning}; no image is right in any draw, so a better gradient has nothing to find"
    return flag("R10", "pass", meaning, poor.figures)


def no_gradient(why: str, others: Mapping[str, Draws] | None = None) -> Flag:
    """R10 of a model without a gradient, or R4 with the accuracies under attacks that need none."""
    meaning = f"{why}: attacks with gradients cannot have attacked anything"
    return flag("R10" if others is None else "R4", "fail", meaning, others)


def as_good_elsewhere(
    how: str, moved: Sequence[tuple[Draws, Draws]], held_out: Sequence[tuple[Draws, Draws]] = (),
    slack: float = 0.05,
) -> Flag:  # fmt: skip
    """R11: accuracies on the images and on others, a pair without an attack, then a pair under it.

    Args:
        how: how the moved images were made.
        moved, held_out: the pairs for moved and for held-out images.
        slack: by how much accuracies may fall.
    """
    figures: dict[str, Draws] = {}
    outcomes: dict[str, Outcome] = {}
    for place, pairs, compare in ((how, moved, _higher), ("held out", held_out, _higher_of_others)):
        for kind, (given, other) in zip(("natural", "attacked"), pairs, strict=False):
            figures |= {kind: given, f"{kind}, {place}": other}
            where = f"when images are {how}" if place == how else "on held-out images"
            outcomes[f"{kind} accuracy falls {where}"] = compare(given, other, slack)
    fall = _first_failed(outcomes)
    return _judged("R11", "suspicious" if fall else _worst(outcomes.values()), figures, fall=fall)


def same_answers(found: Answers) -> Flag:
    """R12: compares accuracies if the model is random, else probabilities."""
    figures: dict[str, Figure | Draws] = {
        f"largest change of a probability {how}": value for how, value in found.differences.items()
    }
    words = {}
    if found.random:
        outcomes = {
            how: _worst([_higher(*pair), _higher(*pair[::-1])]) for how, pair in found.accuracies.items()
        }
        figures |= {f"accuracy {how}": other for how, (_, other) in found.accuracies.items()}
        words["good"] = "the classifier draws at random itself; its accuracy is the same however it is asked"
    else:
        outcomes = {
            how: "pass" if value <= _TOLERANCE else "fail" for how, value in found.differences.items()
        }
    if found.traces:
        figures["changed by being asked"] = ", ".join(found.traces)
    if found.dropout:
        figures["dropout that is on"] = ", ".join(found.dropout)
    outcome = _worst(outcomes.values())
    if outcome != "fail" and found.traces:
        outcome, words["bad"] = "suspicious", (
            f"being asked changes the {found.traces[0]}: so far answers stay the same, but a model that "
            "counts its questions can answer the thousandth differently; look what it is for"
        )  # fmt: skip
    elif outcome != "fail" and found.dropout:
        outcome, words["bad"] = "suspicious", (
            f"{found.dropout[0]} is on in evaluation mode: perhaps by design, perhaps left on "
            "(torch.nn.functional.dropout needs training=self.training); it hides gradients from attacks "
            "that do not average over draws"
        )  # fmt: skip
    return _judged("R12", outcome, figures, how=_first_failed(outcomes), **words)


def not_flat(flat: int, images: int, lead: float, left: tuple[Draws, Draws] | None) -> Flag:
    """R13; left: under the attack on the logits, and on logits divided by a constant, where it was tried."""
    figures: dict[str, Figure | Draws] = {
        "images without a slope": f"{flat} of {images}",
        "median lead of the first logit": lead,
    }
    outcome, words = flat_loss(flat, images), {}
    if outcome == "fail":
        outcome = "suspicious"
        if left is not None:
            figures |= {"attack": left[0], "attack on logits divided by a constant": left[1]}
            if _higher(*left) == "fail":
                outcome, words["bad"] = "fail", (
                    "divided by a constant, which changes no answer, the logits give the attack more: "
                    "their size hides the gradient"
                )  # fmt: skip
    return _judged("R13", outcome, figures, **words)


def flat_loss(flat: int, images: int) -> Outcome:
    """Fail if more answers have no slope than a share of one percent explains."""
    return _counted(flat, images, 0.01, above=_POINTS)


def continuous(jump: float, limit: float = 0.1) -> Flag:
    """R14: how far answers move for an invisible change, as a share of how far they move for the budget."""
    figures = {"share of the budget's effect": jump, "limit": limit}
    return _judged("R14", "suspicious" if jump > limit else "pass", figures)


def check_images(count: int, settings: AuditSettings) -> None:
    """Refuse fewer images than an audit can pass on, unless the settings say that this is a rehearsal."""
    if count < LEAST_IMAGES and not settings.rehearsal:
        name = next(name for name, check in CHECKS.items() if check.images == LEAST_IMAGES)
        raise InvalidInputError(
            f"{count} images cannot pass an audit, since {name} needs {LEAST_IMAGES}; give at least "
            f"{LEAST_IMAGES} (AuditSettings(rehearsal=True) takes fewer, and no such audit passes)"
        )


def in_order(flags: Sequence[Flag], images: int) -> list[Flag]:
    """All flags in turn, those missing as not run; on too few images a flag may fail, never pass."""
    measured = {found.name: found for found in flags}
    ordered = [measured.get(name) or not_run(name, "not asked for") for name in CHECKS]
    return [found if found.name == "R9" else _if_enough(found, images) for found in ordered]


def _if_enough(found: Flag, images: int) -> Flag:
    least = CHECKS[found.name].images
    if found.outcome != "pass" or images >= least:
        return found
    return _judged(found.name, "undecided", found.figures, needed=f"it takes {least}, not {images}")


def _first_failed(outcomes: Mapping[str, Outcome]) -> str:
    return next((name for name, outcome in outcomes.items() if outcome == "fail"), "")


def _reliable(agreement: Agreement) -> bool:
    """Whether the measured and the predicted changes are more than sampling noise."""
    ceilings = (agreement.reliability, agreement.gradient_reliability or 0.0)
    return agreement.pooled == 0.0 or min(ceilings) >= _LEAST_RELIABILITY


def _shares(draws: Draws) -> Tensor:
    return draws.right.double() / len(draws.predictions)


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    found = set(outcomes)
    return "fail" if "fail" in found else "undecided" if "undecided" in found else "pass"


def _higher(one: Draws, other: Draws, slack: float = 0.0) -> Outcome:
    """Fail if one is higher than the other plus slack, image by image; pass if it is not much higher."""
    differences = _shares(one) - _shares(other) - slack
    error = float(differences.square().sum().sqrt())  # N times the standard error
    return _compared(float(differences.sum()), error, len(differences))


def _higher_of_others(one: Draws, other: Draws, slack: float) -> Outcome:
    """As `_higher`, for two sets of images."""
    error = math.hypot(one.standard_error, other.standard_error)
    return _compared(one.mean - other.mean - slack, max(error, 1 / len(one.labels)), 1)


def _compared(higher: float, error: float, whole: int) -> Outcome:
    """By a difference and its standard error, both times `whole`."""
    if higher > ERRORS * error:
        return "fail"
    return "pass" if higher + _BOUND * error <= _POINTS * whole else "undecided"


def _counted(count: float, total: int, limit: float, *, above: float) -> Outcome:
    """Fail if a share of `limit` does not explain the count; pass if it does, and one of `above` does not."""
    low, high = math.floor(count + 1e-9), math.ceil(count - 1e-9)
    if _at_least(low, total, limit) < TAIL:
        return "fail"
    good = _at_least(high, total, limit) >= _DOUBT and 1 - _at_least(high + 1, total, above) <= _MISSED
    return "pass" if good else "undecided"


def _at_least(count: int, total: int, chance: float) -> float:
    """The probability of `count` or more out of `total`, each with that chance."""
    return math.fsum(
        math.comb(total, k) * chance**k * (1 - chance) ** (total - k) for k in range(count, total + 1)
    )

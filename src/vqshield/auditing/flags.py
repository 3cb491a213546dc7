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

from torch import Tensor

from vqshield.auditing.answers import Answers
from vqshield.auditing.gradients import Saturation
from vqshield.auditing.planting import Planted
from vqshield.auditing.results import (
    FAIL,
    NOT_RUN,
    PASS,
    SUSPICIOUS,
    UNDECIDED,
    Agreement,
    AuditSettings,
    Figure,
    Flag,
    Outcome,
    Uncertain,
)
from vqshield.core.errors import InvalidInputError
from vqshield.models.draws import Draws

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
    "R11": "what holds for the images holds for others",
    "R12": "an answer depends on its image alone",
    "R13": "answers are not so certain that the loss is flat",
    "R14": "an image that hardly changes keeps its answer",
}
_POINTS = 0.25  # of accuracy: a comparison that cannot rule out this difference is undecided
POWER: Mapping[str, tuple[int, str]] = {
    "R1": (38, "an attack that 10 % of the images withstand"),
    "R2": (50, "a rise of 25 points"),
    "R3": (50, "a rise of 25 points"),
    "R4": (44, "an attack without gradients that is 25 points stronger"),
    "R5": (35, "a rise of 25 points"),
    "R6": (35, "noise that is 25 points stronger"),
    "R7": (42, "a change of 26 points"),
    "R8": (44, "another attack that is 25 points stronger"),
    "R9": (7, "an attack that misses half of the planted images"),
    "R10": (24, "a gradient with a correlation of 0.25"),
    "R11": (35, "a fall of 30 points"),
    "R12": (22, "other answers about a tenth of the images"),
    "R13": (15, "a flat loss at a quarter of the images"),
    "R14": (7, "jumps at three quarters of the images"),
}
"""Each check's smallest number of images, and what does not pass there in nine of ten audits.

From that number on, nine of ten honest models pass: those at the limit of R1, R9 and R13; attacks of equal
strength in the comparisons (R2 to R8, R11); gradients with a correlation of 0.92 in R10. R9 counts confirmed
planted images. R9, R10 and R12 to R14 look at 24 images at most. Tests compute all of this.
"""
LEAST_IMAGES = max(images for images, _ in POWER.values())
"""No audit of fewer images passes."""
ERRORS = 3.0
"""Standard errors of a difference that are taken for more than luck."""
TAIL = 0.00135  # of a normal distribution, beyond three standard errors
_DOUBT = 0.0228  # and beyond two: a count that is this unlikely at its limit does not pass
_MISSED = 0.1  # the chance to pass what POWER names
_BOUND = 1.645  # standard errors: nominally 95 %, so that of few images 90 % remain
_GRADIENT_ERRORS = 2.0  # with three, gradients that are wrong for half of the images would pass
_HALF = 0.5  # of the signs, which a gradient without any meaning gets right
_LEAST_RELIABILITY = 0.3
_LEAST_CORRELATION = 0.8  # of a gradient that R10 does not fail
_LEAST_SIGNS = 0.75  # share that agrees, of such a gradient
_CORRELATION = 0.25  # of a gradient that R10 does not pass
_TOLERANCE = 0.01  # of a probability or a pixel: what rounding in another batch may change


def flag(
    name: str, outcome: Outcome, meaning: str, figures: Mapping[str, Figure | Draws] | None = None
) -> Flag:
    """A flag with the title of that name."""
    shown: dict[str, Figure] = {
        key: Uncertain.of(value) if isinstance(value, Draws) else value
        for key, value in (figures or {}).items()
    }
    return Flag(name, TITLES[name], outcome, meaning, shown)


def not_run(name: str, why: str) -> Flag:
    """A flag that could not be decided; it never counts as passed."""
    return flag(name, NOT_RUN, why)


def unbounded(left: Draws, eps: float, limit: float = 0.01) -> Flag:
    """R1."""
    return _judged(
        "R1", _counted(float(_shares(left).sum()), len(left.labels), limit, above=0.1),
        "with a budget for any image, the attack wins: its gradients are good enough to steer by",
        "an attack that may change every pixel by half of its range must win; this one is stuck, so its "
        "results at the real budget say nothing",
        {f"left at eps={eps:g}": left, "limit": limit},
    )  # fmt: skip


def monotone(name: str, what: str, curve: Sequence[tuple[float, Draws]]) -> Flag:
    """R2 and R3: along a growing effort the accuracy never rises."""
    pairs = {
        f"{what} {a:g} to {b:g}": _higher(after, before)
        for i, (a, before) in enumerate(curve)
        for b, after in curve[i + 1 :]
    }
    rise = next((pair for pair, outcome in pairs.items() if outcome == FAIL), "")
    return _judged(
        name, _worst(pairs.values()), f"accuracy does not rise with {what}",
        f"accuracy rises from {rise}: the attack loses its way; a better one would win more",
        {f"{what} {value:g}": draws for value, draws in curve},
    )  # fmt: skip


def without_gradients(white: Draws | None, others: Mapping[str, Draws], slack: float = 0.002) -> Flag:
    """R4: black-box and transfer attacks against the strongest that uses the defense's gradients."""
    if white is None:
        return flag(
            "R4", FAIL, "no attack given uses gradients of the defense; these need none, so nothing shows "
            "that the defense resists anything but ignorance", others,
        )  # fmt: skip
    outcomes = {name: _higher(white, other, slack) for name, other in others.items()}
    better = [name for name, outcome in outcomes.items() if outcome == FAIL]
    best = min(better, key=lambda name: others[name].mean, default="")
    return _judged(
        "R4", _worst(outcomes.values()), "attacks that know no gradient win no more than those that do",
        f"{best} beats the attack with gradients: those are masked, and the true accuracy is lower",
        {"with gradients": white, **others},
    )  # fmt: skip


def below_natural(robust: Draws, natural: Draws) -> Flag:
    """R5."""
    return _judged(
        "R5", _higher(robust, natural), "attacked images are not easier than natural ones",
        "attacked images are classified better than natural ones: the attack works against itself",
        {"robust": robust, "natural": natural},
    )  # fmt: skip


def noise_is_weaker(noise: Draws, attack: Draws) -> Flag:
    """R6."""
    return _judged(
        "R6", _higher(attack, noise), "the attack does no less harm than noise of the same size",
        "noise of the same size does more harm than the attack, which therefore searches in the wrong place",
        {"random noise": noise, "attack": attack},
    )  # fmt: skip


def draws_suffice(usual: Draws, doubled: Draws, eot: int, slack: float = 0.01) -> Flag:
    """R7."""
    return _judged(
        "R7", _different(usual, doubled, slack), "enough draws are averaged in each step",
        "the accuracy still changes with the number of draws: average over more",
        {f"eot {eot}": usual, f"eot {2 * eot}": doubled},
    )  # fmt: skip


def knowing_helps(reported: Draws, ignorant: Draws, probe: Draws, knows: bool) -> Flag:
    """R8: the reported accuracy against those under the ignorant attack and under a probe that knows."""
    against = _higher(reported, probe)
    bad = "the attack that knows the defense does worse than one that ignores it: it is misled by the defense"
    if against == FAIL:
        bad = (
            f"a short attack that knows the defense leaves {Uncertain.of(probe)}, not "
            f"{Uncertain.of(reported)}: the reported accuracy flatters the defense, it comes from attacks "
            f"that {'are too weak' if knows else 'ignore the defense'}"
        )
    return _judged(
        "R8", _worst([against, _higher(reported, ignorant)]),
        "neither an attack that ignores the defense nor a probe that knows it wins more", bad,
        {"reported": reported, "ignorant": ignorant, "probe that knows the defense": probe},
    )  # fmt: skip


def planted(counts: Planted, limit: float = 0.05) -> Flag:
    """R9."""
    if counts.valid == 0:
        return not_run("R9", "no planted image was confirmed: this test cannot judge the attack here")
    decided = _judged(
        "R9", _counted(counts.valid - counts.found, counts.valid, limit, above=0.5),
        "where adversarial images are known to be, the attack finds them",
        "adversarial images are there, by construction, and the attack does not find them: it is too weak",
        {
            "planted": counts.total, "confirmed": counts.valid, "found": counts.found,
            "found blindly": counts.blindly, "share": counts.found / counts.valid,
        },
    )  # fmt: skip
    return _if_enough(decided, counts.valid)


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
        return flag(
            "R10", FAIL, f"its gradient ({poor[0]}) is a poor guide to the expected loss: a better surrogate "
            "would find more", figures,
        )  # fmt: skip
    if signs.mean + _GRADIENT_ERRORS * signs.standard_error < _LEAST_SIGNS:
        return flag(
            "R10", FAIL, "where the expected loss rises, its gradient often says that it falls: it is wrong "
            "for some images, and a better one would find more", figures,
        )  # fmt: skip
    if not all(map(_reliable, places.values())):
        meaning = "the measured changes are mostly sampling noise: take more draws"
        return flag("R10", UNDECIDED, meaning, figures)
    good = signs.mean - _BOUND * signs.standard_error > _signs_of(_CORRELATION) and all(
        place.estimate(_GRADIENT_ERRORS) >= _LEAST_CORRELATION and place.estimate(-_BOUND) > _CORRELATION
        for place in places.values()
    )
    meaning = "its gradient predicts how the expected loss changes"
    needed = "more directions and draws decide it"
    return _judged("R10", PASS if good else UNDECIDED, meaning, "", figures, needed)


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
    return flag("R10", PASS, meaning, {**coarse.figures, **figures})


def nothing_more_to_find(poor: Flag, reported: Draws) -> Flag:
    """R10 if the gradient may be poor and every image is misclassified under attack."""
    if poor.outcome not in (FAIL, UNDECIDED) or not poor.figures or bool(reported.right.any()):
        return poor
    meaning = f"{poor.meaning}; no image is right in any draw, so a better gradient has nothing to find"
    return flag("R10", PASS, meaning, poor.figures)


def without_any_gradient(why: str, others: Mapping[str, Draws]) -> list[Flag]:
    """A model without a gradient fails R4 and R10; checks that vary attacks with gradients are not run."""
    failed = [no_gradient(why, "R4", others), no_gradient(why)]
    return [*failed, *(not_run(name, why) for name in ("R1", "R2", "R3", "R6", "R7", "R8", "R9"))]


def no_gradient(why: str, name: str = "R10", others: Mapping[str, Draws] | None = None) -> Flag:
    """R10 or R4 of a model without a gradient."""
    return flag(name, FAIL, f"{why}: attacks with gradients cannot have attacked anything", others)


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
    kinds = ("natural", "attacked")
    figures: dict[str, Draws] = {}
    outcomes: dict[str, Outcome] = {}
    for place, pairs, compare in ((how, moved, _higher), ("held out", held_out, _higher_of_others)):
        for kind, (given, other) in zip(kinds, pairs, strict=False):
            figures |= {kind: given, f"{kind}, {place}": other}
            where = f"when images are {how}" if place == how else "on held-out images"
            outcomes[f"{kind} accuracy falls {where}"] = compare(given, other, slack)
    falls = [fall for fall, outcome in outcomes.items() if outcome == FAIL]
    return _judged(
        "R11", SUSPICIOUS if falls else _worst(outcomes.values()),
        "the model does as well on images that it cannot know by heart",
        f"{''.join(falls[:1])}: either those are harder, or the model knows these images by heart; try "
        "others that it cannot have seen", figures,
    )  # fmt: skip


def same_answers(found: Answers) -> Flag:
    """R12: compares accuracies if the model is random, else probabilities."""
    figures: dict[str, Figure | Draws] = {
        f"largest change of a probability {how}": value for how, value in found.differences.items()
    }
    if found.random:
        outcomes = {how: _different(*pair) for how, pair in found.accuracies.items()}
        figures |= {f"accuracy {how}": other for how, (_, other) in found.accuracies.items()}
        good = "the classifier draws at random itself; its accuracy is the same however it is asked"
    else:
        outcomes = {how: PASS if value <= _TOLERANCE else FAIL for how, value in found.differences.items()}
        good = "once more, alone or in a batch, with gradients or without, the model answers the same"
    if found.traces:
        figures["changed by being asked"] = ", ".join(found.traces)
    if found.dropout:
        figures["dropout that is on"] = ", ".join(found.dropout)
    outcome, bad = _worst(outcomes.values()), ""
    if outcome == FAIL:
        wrong = next(how for how, outcome in outcomes.items() if outcome == FAIL)
        bad = f"the model answers differently {wrong}: what was measured says nothing about how it answers "
        bad += "elsewhere"
    elif found.traces:
        outcome, bad = SUSPICIOUS, (
            f"being asked changes the {found.traces[0]}: so far answers stay the same, but a model that "
            "counts its questions can answer the thousandth differently; look what it is for"
        )  # fmt: skip
    elif found.dropout:
        outcome, bad = SUSPICIOUS, (
            f"{found.dropout[0]} is on in evaluation mode: perhaps by design, perhaps left on "
            "(torch.nn.functional.dropout needs training=self.training); it hides gradients from attacks "
            "that do not average over draws"
        )  # fmt: skip
    return _judged("R12", outcome, good, bad, figures)


def not_flat(found: Saturation, left: tuple[Draws, Draws] | None) -> Flag:
    """R13; left: under the attack on the logits, and on logits divided by a constant, where it was tried."""
    figures: dict[str, Figure | Draws] = {
        "images without a slope": f"{found.flat} of {found.images}",
        "median lead of the first logit": found.lead,
    }
    outcome, good = flat_loss(found), "the cross-entropy has a slope that attacks can follow"
    bad = (
        "the logits are so large that the cross-entropy is exactly zero, and flat: attacks that climb it "
        "(most do) stand still; divide the logits by a constant, which changes no answer"
    )
    if outcome == FAIL:
        outcome = SUSPICIOUS
        if left is not None:
            figures |= {"attack": left[0], "attack on logits divided by a constant": left[1]}
            if _higher(*left) == FAIL:
                outcome = FAIL
                bad = "divided by a constant, which changes no answer, the logits give the attack more: "
                bad += "their size hides the gradient"
    return _judged("R13", outcome, good, bad, figures)


def flat_loss(found: Saturation) -> Outcome:
    """Fail if more answers have no slope than a share of one percent explains."""
    return _counted(found.flat, found.images, 0.01, above=_POINTS)


def continuous(jump: float, limit: float = 0.1) -> Flag:
    """R14: how far answers move for an invisible change, as a share of how far they move for the budget."""
    return _judged(
        "R14", SUSPICIOUS if jump > limit else PASS, "answers change as little as their images do",
        "a ten thousandth of the budget moves the answers nearly as far as all of it: noise that the image "
        "itself seeds, or a hash of it; attacks that average over draws do not average over that, so their "
        "gradients are one noise's", {"share of the budget's effect": jump, "limit": limit},
    )  # fmt: skip


def check_images(count: int, settings: AuditSettings) -> None:
    """Refuse fewer images than an audit can pass on, unless the settings say that this is a rehearsal."""
    if count < LEAST_IMAGES and not settings.rehearsal:
        name = next(name for name, (least, _) in POWER.items() if least == LEAST_IMAGES)
        raise InvalidInputError(
            f"{count} images cannot pass an audit, since {name} needs {LEAST_IMAGES}; give at least "
            f"{LEAST_IMAGES} (AuditSettings(rehearsal=True) takes fewer, and no such audit passes)"
        )


def in_order(flags: Sequence[Flag], images: int) -> list[Flag]:
    """All flags in turn, those missing as not run; on too few images a flag may fail, never pass."""
    measured = {found.name: found for found in flags}
    ordered = [measured.get(name) or not_run(name, "not asked for") for name in TITLES]
    return [found if found.name == "R9" else _if_enough(found, images) for found in ordered]


def _if_enough(found: Flag, images: int) -> Flag:
    if found.outcome != PASS or images >= POWER[found.name][0]:
        return found
    return _judged(
        found.name, UNDECIDED, "", "", found.figures, f"it takes {POWER[found.name][0]}, not {images}"
    )


def _judged(
    name: str, outcome: Outcome, good: str, bad: str, figures: Mapping[str, Figure | Draws],
    needed: str = "more images or draws decide it",
) -> Flag:  # fmt: skip
    if outcome == UNDECIDED:
        meaning = f"these images do not rule out {POWER[name][1]}; {needed}"
    else:
        meaning = good if outcome == PASS else bad
    return flag(name, outcome, meaning, figures)


def _reliable(agreement: Agreement) -> bool:
    """Whether the measured and the predicted changes are more than sampling noise."""
    ceilings = (agreement.reliability, agreement.gradient_reliability or 0.0)
    return agreement.pooled == 0.0 or min(ceilings) >= _LEAST_RELIABILITY


def _shares(draws: Draws) -> Tensor:
    return draws.right.double() / len(draws.predictions)


def _worst(outcomes: Iterable[Outcome]) -> Outcome:
    found = set(outcomes)
    return FAIL if FAIL in found else UNDECIDED if UNDECIDED in found else PASS


def _higher(one: Draws, other: Draws, slack: float = 0.0) -> Outcome:
    """Fail if one is higher than the other plus slack, image by image; pass if it is not much higher."""
    differences = _shares(one) - _shares(other) - slack
    error = float(differences.square().sum().sqrt())  # N times the standard error
    return _compared(float(differences.sum()), error, len(differences))


def _different(one: Draws, other: Draws, slack: float = 0.0) -> Outcome:
    return _worst([_higher(one, other, slack), _higher(other, one, slack)])


def _higher_of_others(one: Draws, other: Draws, slack: float = 0.0) -> Outcome:
    """As `_higher`, for two sets of images."""
    error = math.hypot(one.standard_error, other.standard_error)
    return _compared(one.mean - other.mean - slack, max(error, 1 / len(one.labels)), 1)


def _compared(higher: float, error: float, whole: int) -> Outcome:
    """By a difference and its standard error, both times `whole`."""
    if higher > ERRORS * error:
        return FAIL
    return PASS if higher + _BOUND * error <= _POINTS * whole else UNDECIDED


def _counted(count: float, total: int, limit: float, *, above: float) -> Outcome:
    """Fail if a share of `limit` does not explain the count; pass if it does, and one of `above` does not."""
    low, high = math.floor(count + 1e-9), math.ceil(count - 1e-9)
    if _at_least(low, total, limit) < TAIL:
        return FAIL
    good = _at_least(high, total, limit) >= _DOUBT and 1 - _at_least(high + 1, total, above) <= _MISSED
    return PASS if good else UNDECIDED


def _at_least(count: int, total: int, chance: float) -> float:
    """The probability of `count` or more out of `total`, each with that chance."""
    return math.fsum(
        math.comb(total, k) * chance**k * (1 - chance) ** (total - k) for k in range(count, total + 1)
    )

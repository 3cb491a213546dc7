"""Named, versioned ensembles of threats; a suite's result per image is the minimum over its members.

A released version never changes: a stronger ensemble gets a new number, so that two results with the same
name mean the same attack. How the members were chosen: docs/attacks.md.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from vqshield.attacks import PGD, PRECISIONS, Ball, list_attacks
from vqshield.attacks.losses import TARGETED
from vqshield.attacks.threats import Threat, threat
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec

Suite = Callable[[Ball, int], list[Threat]]


def _member(
    name: str, *, ball: Ball, seed: int, surrogate: str, loss: str, eot: int, steps: int,
    candidates: int = 1, basis: str = "pixels", restarts: int = 1,
) -> Threat:  # fmt: skip
    """PGD with momentum and long first steps that shrink to nothing: the best of those tried."""
    attack = PGD(
        ball=ball, steps=steps, step=ball.eps / 4, schedule="cosine", momentum=0.75, loss=loss,
        candidates=candidates, seed=seed, restarts=restarts,
    )  # fmt: skip
    level = "eot" if surrogate == "ste" and basis == "pixels" else "adaptive"
    return Threat(name=name, level=level, attack=attack, surrogate=surrogate, eot=eot, basis=basis)


def _adaptive_v1(ball: Ball, seed: int, name: str = "adaptive-v1") -> list[Threat]:
    """Soft gradients with either loss, the same in blocks of pixels, and plain straight-through."""
    soft, drawn = "soft:temperature=0.03", "soft:temperature=0.1,noise=drawn"
    make = partial(_member, ball=ball, seed=seed, eot=5, steps=60, candidates=4)
    return [
        make(f"{name}/soft-margin", surrogate=soft, loss="margin"),
        make(f"{name}/soft-entropy", surrogate=drawn, loss="cross-entropy"),
        make(f"{name}/soft-blocks", surrogate=soft, loss="margin", basis="block2"),
        make(f"{name}/ste-margin", surrogate="ste", loss="margin"),
    ]


def _adaptive_v2(ball: Ball, seed: int) -> list[Threat]:
    """All of adaptive-v1, and stronger attacks on hardened classifiers: gradients through rounds of soft
    k-means with twice the draws and more steps, and towards each of three wrong classes in turn.
    """
    name, unrolled = "adaptive-v2", "soft:temperature=0.03,centres=unrolled"
    make = partial(_member, ball=ball, seed=seed, surrogate=unrolled, candidates=4)
    return [
        *_adaptive_v1(ball, seed, name),
        make(f"{name}/unrolled-margin", loss="margin", eot=10, steps=100),
        make(f"{name}/unrolled-targeted", loss=TARGETED, eot=5, steps=60, restarts=3),
    ]


def _adaptive_v1_quick(ball: Ball, seed: int) -> list[Threat]:
    """For a CPU: fewer steps of the two strongest kinds."""
    make = partial(_member, ball=ball, seed=seed, eot=4, steps=20, loss="margin")
    return [
        make("adaptive-v1-quick/soft-margin", surrogate="soft:temperature=0.03"),
        make("adaptive-v1-quick/ste-margin", surrogate="ste"),
    ]


def _queries_v1(ball: Ball, seed: int) -> list[Threat]:
    """10,000 calls per image with draws and judgements: by score and decision, one draw per query or five."""
    members = {
        "square-1": "square:queries=9992", "square-5": "square:queries=1992,eot=5",
        "rays-1": "rays:queries=10000", "rays-5": "rays:queries=2000,eot=5",
    }  # fmt: skip
    return [
        replace(threat(text, ball, seed=seed), name=f"queries-v1/{name}") for name, text in members.items()
    ]


_SUITES: dict[str, Suite] = {
    "adaptive-v1": _adaptive_v1,
    "adaptive-v1-quick": _adaptive_v1_quick,
    "adaptive-v2": _adaptive_v2,
    "queries-v1": _queries_v1,
}


def list_suites() -> list[str]:
    """The names of the suites."""
    return list(_SUITES)


def suite(name: str, ball: Ball, *, seed: int = 0) -> list[Threat]:
    """The members of a suite."""
    return _SUITES[checks.one_of("suite", name, _SUITES)](ball, seed)


def expand(text: str, ball: Ball, *, seed: int = 0) -> list[Threat]:
    """The members of a suite, or the one threat that the text describes.

    Args:
        text: the name of a suite, with a precision if it is not float32 ("adaptive-v1:precision=bf16"), or a
            threat as `vqshield.attacks.threats.threat` takes it.
        ball: the allowed changes.
        seed: the attacks'.

    Example:
        >>> from vqshield.attacks.suites import expand
        >>> [each.level for each in expand("adaptive-v1-quick", vq.attacks.Linf(8 / 255))]
        ['adaptive', 'eot']
        >>> expand("adaptive-v1:precision=bf16", vq.attacks.Linf(8 / 255))[0].name
        'adaptive-v1:precision=bf16/soft-margin'
    """
    name, settings = parse_spec(text)
    checks.one_of("attack", name, [*list_attacks(), *list_suites()])
    if name not in _SUITES:
        return [threat(text, ball, seed=seed)]
    if set(settings) - {"precision"}:
        raise InvalidInputError(f"{text!r} has settings; a suite such as {name} takes none but precision")
    members = suite(name, ball, seed=seed)
    if not settings:
        return members
    precision = checks.one_of("precision", settings["precision"], PRECISIONS)
    named = with_precision(name, precision)
    return [replace(each, precision=precision, name=named + each.name.removeprefix(name)) for each in members]


def with_precision(text: str, precision: str) -> str:
    """The spec string of an attack or suite with that precision; one that names its own keeps it."""
    checks.one_of("precision", precision, PRECISIONS)
    _, settings = parse_spec(text)
    if precision == PRECISIONS[0] or "precision" in settings:
        return text
    return f"{text}{',' if settings else ':'}precision={precision}"

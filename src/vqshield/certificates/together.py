"""Every error bound on the same draws, side by side. A new bound is one function and one line in _BOUNDS."""

from collections.abc import Callable, Iterable

from torch import Tensor

from vqshield.certificates.evidence import Evidence, evidence
from vqshield.certificates.intervals import clopper_pearson, empirical_bernstein, truncated_markov
from vqshield.certificates.proposition1 import proposition1

Bound = Callable[[Evidence, float], Tensor]
"""(evidence, delta) → upper bounds on the error, (B,)."""


def _proposition1(seen: Evidence, delta: float) -> Tensor:
    return proposition1(mean_l1=seen.mean_l1, margin=seen.margin, draws=seen.draws, delta=delta)


def _truncated_markov(seen: Evidence, delta: float) -> Tensor:
    return truncated_markov(mean=seen.mean_truncated, draws=seen.draws, delta=delta)


def _empirical_bernstein(seen: Evidence, delta: float) -> Tensor:
    mean, variance = seen.mean_truncated, seen.variance_truncated
    return empirical_bernstein(mean=mean, variance=variance, draws=seen.draws, delta=delta)


def _clopper_pearson(seen: Evidence, delta: float) -> Tensor:
    return clopper_pearson(errors=seen.errors, draws=seen.draws, delta=delta)


_BOUNDS: dict[str, Bound] = {
    "proposition1": _proposition1,
    "truncated_markov": _truncated_markov,
    "empirical_bernstein": _empirical_bernstein,
    "clopper_pearson": _clopper_pearson,
}


def bounds() -> list[str]:
    """The names of the registered error bounds, the paper's first."""
    return list(_BOUNDS)


def bounds_from(seen: Evidence, *, delta: float) -> dict[str, Tensor]:
    """Every bound by name, (B,) each. Each alone holds with probability 1 − delta; the smallest does not."""
    return {name: bound(seen, delta) for name, bound in _BOUNDS.items()}


def error_bounds(
    *, reference: Tensor, drawn: Iterable[Tensor], labels: Tensor, delta: float
) -> dict[str, Tensor]:
    """Every bound by name from softmax outputs; see `evidence` for their shapes.

    All hold for the given images x' that were drawn from, not for a ball around x.
    """
    return bounds_from(evidence(reference=reference, drawn=drawn, labels=labels), delta=delta)

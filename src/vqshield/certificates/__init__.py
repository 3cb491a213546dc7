"""Certificates: what draws prove about the error of a defended classifier, as pure functions of numbers.

Three kinds, not to be confused. The error bounds (`list_bounds()`: Proposition 1 of the paper, and tighter
ones on the same draws) hold for one given image x' each. The L2 certificate (`certify_vote`,
`accuracy_bound`) holds for every image within a radius, with probability 1 − alpha. The L1 certificate
(`certify_all_shifts`) holds for every 8-bit image within a radius, for certain. docs/certificates.md derives
all of them. Numbers and tensors that are out of range or differ in shape raise an InvalidInputError.
"""

from vqshield.certificates.all_images import (
    Statement,
    allowed_failures,
    binomial_statement,
    per_image_delta,
    union_statement,
)
from vqshield.certificates.bounds import (
    Evidence,
    bounds_from,
    error_bounds,
    evidence,
    l1_distance,
    list_bounds,
    margin,
    proposition1,
)
from vqshield.certificates.coverage import Coverage, effective_sigma
from vqshield.certificates.intervals import (
    clopper_pearson,
    clopper_pearson_lower,
    empirical_bernstein,
    truncated_markov,
)
from vqshield.certificates.splitting import ExactVotes, certify_all_shifts, splitting_radius
from vqshield.certificates.vote import (
    ABSTAIN,
    Votes,
    accuracy_bound,
    certify_vote,
    decided,
    linf_radius,
    look_alphas,
    look_bound,
    looks,
    radius,
    radius_for_linf,
    thresholds_for,
)

__all__ = [
    "ABSTAIN",
    "Coverage",
    "Evidence",
    "ExactVotes",
    "Statement",
    "Votes",
    "accuracy_bound",
    "allowed_failures",
    "binomial_statement",
    "bounds_from",
    "certify_all_shifts",
    "certify_vote",
    "clopper_pearson",
    "clopper_pearson_lower",
    "decided",
    "effective_sigma",
    "empirical_bernstein",
    "error_bounds",
    "evidence",
    "l1_distance",
    "linf_radius",
    "list_bounds",
    "look_alphas",
    "look_bound",
    "looks",
    "margin",
    "per_image_delta",
    "proposition1",
    "radius",
    "radius_for_linf",
    "splitting_radius",
    "thresholds_for",
    "truncated_markov",
    "union_statement",
]

"""Certificates: what draws prove about the error of a shielded classifier, as pure functions of numbers.

Two kinds, not to be confused. The error bounds (`bounds()`: Proposition 1 of the paper, and tighter ones on
the same draws) hold for one given image x' each. The L2 certificate (`certify_vote`, `accuracy_bound`) holds
for every image within a radius. docs/certificates.md derives both. Beside them stands the KL diagnostic
(`diagnose`), which proves nothing and says so.
"""

from vqshield.certificates.assignments import LabelDivergence, label_divergence
from vqshield.certificates.coverage import Coverage, coverage, effective_sigma
from vqshield.certificates.divergence import (
    Diagnostic,
    Estimate,
    diagnose,
    mixture_kl,
    sorted_codebooks,
)
from vqshield.certificates.evidence import Evidence, evidence, l1_distance, margin
from vqshield.certificates.fitting import MixtureFit, MixtureSettings, fit_mixture
from vqshield.certificates.intervals import (
    clopper_pearson,
    clopper_pearson_lower,
    empirical_bernstein,
    truncated_markov,
)
from vqshield.certificates.mixtures import Mixture
from vqshield.certificates.proposition1 import proposition1
from vqshield.certificates.smoothing import (
    ABSTAIN,
    Votes,
    accuracy_bound,
    certify_vote,
    linf_radius,
    radius,
)
from vqshield.certificates.statements import (
    Statement,
    allowed_failures,
    binomial_statement,
    per_image_delta,
    union_statement,
)
from vqshield.certificates.together import Bound, bounds, bounds_from, error_bounds

__all__ = [
    "ABSTAIN",
    "Bound",
    "Coverage",
    "Diagnostic",
    "Estimate",
    "Evidence",
    "LabelDivergence",
    "Mixture",
    "MixtureFit",
    "MixtureSettings",
    "Statement",
    "Votes",
    "accuracy_bound",
    "allowed_failures",
    "binomial_statement",
    "bounds",
    "bounds_from",
    "certify_vote",
    "clopper_pearson",
    "clopper_pearson_lower",
    "coverage",
    "diagnose",
    "effective_sigma",
    "empirical_bernstein",
    "error_bounds",
    "evidence",
    "fit_mixture",
    "l1_distance",
    "label_divergence",
    "linf_radius",
    "margin",
    "mixture_kl",
    "per_image_delta",
    "proposition1",
    "radius",
    "sorted_codebooks",
    "truncated_markov",
    "union_statement",
]

"""Certificates: what draws prove about the error of a defended classifier, as pure functions of numbers.

Three kinds, not to be confused. The error bounds (`list_bounds()`: Proposition 1 of the paper, and tighter
ones on the same draws) hold for one given image x' each. The L2 certificate (`certify_vote`,
`accuracy_bound`) holds for every image within a radius, with probability 1 − alpha. The L1 certificate
(`certify_all_shifts`) holds for every 8-bit image within a radius, for certain. docs/certificates.md derives
all of them. Numbers and tensors that are out of range or differ in shape raise an InvalidInputError.
"""

from vqshield.certificates.all_images import Statement as Statement
from vqshield.certificates.all_images import allowed_failures as allowed_failures
from vqshield.certificates.all_images import binomial_statement as binomial_statement
from vqshield.certificates.all_images import per_image_delta as per_image_delta
from vqshield.certificates.all_images import union_statement as union_statement
from vqshield.certificates.bounds import Evidence as Evidence
from vqshield.certificates.bounds import bounds_from as bounds_from
from vqshield.certificates.bounds import error_bounds as error_bounds
from vqshield.certificates.bounds import evidence as evidence
from vqshield.certificates.bounds import l1_distance as l1_distance
from vqshield.certificates.bounds import list_bounds as list_bounds
from vqshield.certificates.bounds import margin as margin
from vqshield.certificates.bounds import proposition1 as proposition1
from vqshield.certificates.coverage import Coverage as Coverage
from vqshield.certificates.coverage import effective_sigma as effective_sigma
from vqshield.certificates.intervals import clopper_pearson as clopper_pearson
from vqshield.certificates.intervals import clopper_pearson_lower as clopper_pearson_lower
from vqshield.certificates.intervals import empirical_bernstein as empirical_bernstein
from vqshield.certificates.intervals import truncated_markov as truncated_markov
from vqshield.certificates.splitting import ExactVotes as ExactVotes
from vqshield.certificates.splitting import certify_all_shifts as certify_all_shifts
from vqshield.certificates.splitting import splitting_radius as splitting_radius
from vqshield.certificates.vote import ABSTAIN as ABSTAIN
from vqshield.certificates.vote import Votes as Votes
from vqshield.certificates.vote import accuracy_bound as accuracy_bound
from vqshield.certificates.vote import certify_vote as certify_vote
from vqshield.certificates.vote import decided as decided
from vqshield.certificates.vote import linf_radius as linf_radius
from vqshield.certificates.vote import look_alphas as look_alphas
from vqshield.certificates.vote import look_bound as look_bound
from vqshield.certificates.vote import looks as looks
from vqshield.certificates.vote import radius as radius
from vqshield.certificates.vote import radius_for_linf as radius_for_linf
from vqshield.certificates.vote import thresholds_for as thresholds_for

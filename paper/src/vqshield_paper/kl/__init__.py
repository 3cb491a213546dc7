"""The KL diagnostic: how far apart the codebooks of two images lie. It describes, and proves nothing.

Every value is reported with its floor: the same measurement between two sets of codebooks of one image.
"""

from vqshield_paper.kl.divergence import Diagnostic, Estimate, diagnose, mixture_kl, sorted_codebooks
from vqshield_paper.kl.fitting import MixtureFit, MixtureSettings, fit_mixture
from vqshield_paper.kl.labels import LabelDivergence, label_divergence
from vqshield_paper.kl.mixtures import Mixture

__all__ = [
    "Diagnostic",
    "Estimate",
    "LabelDivergence",
    "Mixture",
    "MixtureFit",
    "MixtureSettings",
    "diagnose",
    "fit_mixture",
    "label_divergence",
    "mixture_kl",
    "sorted_codebooks",
]

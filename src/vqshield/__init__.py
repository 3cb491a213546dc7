"""vqshield shields an image classifier by vector quantization, and measures what the shield is worth.

>>> import vqshield as vq
>>> model = vq.defend(classifier, "swrd", size=3)   # doctest: +SKIP
"""

from vqshield import certificates
from vqshield.defended import Defended, defend
from vqshield.defenses import PRD, SWRD, Defense, RandDisc, list_defenses

__version__ = "0.1.0"

__all__ = ["PRD", "SWRD", "Defended", "Defense", "RandDisc", "certificates", "defend", "list_defenses"]

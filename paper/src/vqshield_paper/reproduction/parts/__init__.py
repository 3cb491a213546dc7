"""The kinds of parts. A new one is a Part subclass and one line in KINDS (or VIEWS, if it measures nothing
new).
"""

from vqshield_paper.reproduction.parts.accuracy import AccuracyPart
from vqshield_paper.reproduction.parts.base import Options, Part
from vqshield_paper.reproduction.parts.budgets import CertifiedPart, KLPart
from vqshield_paper.reproduction.parts.pictures import ExamplePart, GalleryPart
from vqshield_paper.reproduction.parts.views import GapPart, TradeoffPart, ViewPart

KINDS: dict[str, type[Part]] = {
    kind.kind: kind for kind in (AccuracyPart, CertifiedPart, KLPart, GalleryPart, ExamplePart)
}
VIEWS: dict[str, type[ViewPart]] = {kind.kind: kind for kind in (GapPart, TradeoffPart)}

__all__ = ["KINDS", "VIEWS", "AccuracyPart", "Options", "Part", "ViewPart"]

"""A search by queries that images leave once they are lost for certain."""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from vqshield.attacks.best import QUARTERS, Best
from vqshield.models.calling import Model, Part, asking_about


class Search(Protocol):
    """Images that are attacked, all asked about as often."""

    @property
    def used(self) -> int | Tensor:
        """How often the model was asked about each of them."""

    def advance(self, stop: int) -> None:
        """Ask until so many evaluations were made."""

    def found(self) -> Tensor:
        """The best images so far."""

    def keep(self, some: Tensor) -> None:
        """Go on with some of the images alone."""


def search_leaving(
    search: Search, best: Best, model: Model, marks: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What `QueryAttack.search_dropping` gives: the search is looked at after a twentieth and each quarter of
    its evaluations; what is lost leaves, and all that was looked at competes in the end.
    """
    whole, last = best.images, marks[-1]
    looks = {math.ceil(share * last) for share in QUARTERS}
    places = torch.arange(len(whole), device=whole.device)  # of the images that are still attacked
    used = torch.zeros_like(places)
    for stop in sorted({*marks, *looks}):
        if len(places):
            with asking_about(Part(places, len(whole))):
                search.advance(stop)
        if len(places) and stop in looks:
            stay = ~best.consider_some(model, search.found(), places)
            used[places] = search.used + best.asked
            places = places[stay]
            search.keep(stay)
        if stop in marks:
            used[places] = search.used + best.asked
            yield best.images.index_copy(0, places, search.found()) if stop < last else best.images, used

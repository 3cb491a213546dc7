"""The implementations by name, ours first."""

from vqshield import checks
from vqshield.bench.implementation import Implementation
from vqshield.bench.ours import Ours
from vqshield.bench.peers import (
    Faiss,
    FastPytorchKMeans,
    FlashKMeans,
    OpenCV,
    ScikitLearn,
    SciPy,
)
from vqshield.bench.plain import Compiled, Eager

# A new implementation: one file or class, one line here.
_IMPLEMENTATIONS: dict[str, Implementation] = {
    each.name: each
    for each in (
        Ours("native"),
        Ours("triton"),
        Ours("torch"),
        Eager(),
        Compiled(),
        ScikitLearn(),
        SciPy(),
        Faiss(),
        OpenCV(),
        FastPytorchKMeans(),
        FlashKMeans(),
    )
}


def list_implementations() -> list[str]:
    """The names of the implementations."""
    return list(_IMPLEMENTATIONS)


def implementation(name: str) -> Implementation:
    """The implementation of that name; an unknown one is answered with the known ones."""
    return _IMPLEMENTATIONS[checks.one_of("implementation", name, _IMPLEMENTATIONS)]

"""What is to be certified: the settings as typed, checked before any work, and written out in full."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vqshield import checks
from vqshield.attacks import Ball, ball
from vqshield.certificates import Coverage
from vqshield.certificates.numbers import chance
from vqshield.defenses import CertificateTerms, Quantizer
from vqshield.defenses.gaussian import GaussianNoise, Shield, shield, shields
from vqshield.errors import InvalidInputError
from vqshield.runs.records import Key
from vqshield.settings import parse_spec
from vqshield.studies.certification_forward import PRECISIONS
from vqshield.studies.specification import NONE, EvaluationSettings
from vqshield.threats import Threat, threat

VOTE, DRAWS, ALL = "vote", "draws", "all"
CERTIFICATES = (VOTE, DRAWS, ALL)
NORM = "linf"
_IMAGES = 16  # draws made at once for each image of a cell, at least: so many more fit without gradients
_BATCHES = 40  # at most about so many batches a cell, after which its records are written


@dataclass(frozen=True, kw_only=True)
class CertificationSettings:
    """Which certificates of which defense, from how many draws.

    defense: as typed; "gaussian:sigma=0.1" is noise without a quantizer, the baseline.
    certificate: "vote", the worst-case L2 certificate of the majority vote; "draws", error bounds that hold
        for given images: the natural ones, and those of an attack; or "all".
    attack, eps: the attack as typed, and its L-inf budgets.
    draws, delta: m, and the chance that an error bound fails.
    n0, n, alpha: draws that choose a vote's answer, fresh draws that bound its probability, and the chance
        that its certificate is wrong.
    batch: draws made at once; it also decides how many images are the unit of work.
    precision: "fp32", or "bf16" for a classifier that computes in bfloat16 wherever it certifies: faster on a
        GPU, and a slightly different classifier. Attacks always see the one in float32.
    """

    defense: str = "prd"
    certificate: str = ALL
    attack: str = "pgd:steps=20,surrogate=none"
    eps: tuple[float, ...] = (8 / 255,)
    draws: int = 1000
    delta: float = 0.005
    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    seed: int = 0
    batch: int = 500
    precision: str = "fp32"

    def __post_init__(self) -> None:
        checks.one_of("certificate", self.certificate, CERTIFICATES)
        checks.one_of("precision", self.precision, PRECISIONS)
        for name in ("draws", "n0", "n", "batch"):
            checks.whole(name, getattr(self, name), least=1)
        for name in ("delta", "alpha"):
            chance(name, getattr(self, name))
        checks.whole("seed", self.seed, least=0, below=2**64)
        for eps in self.eps:
            self._threat(eps)
            if eps == 0 or self.eps.count(eps) > 1:
                found = "0: natural images are certified in any case" if eps == 0 else f"{eps} twice"
                raise InvalidInputError(f"eps holds {found}; give each budget > 0 once")
        created = self.create(seed=0)
        if self.votes:
            coverage_of(created)
        if isinstance(created, GaussianNoise) and any(
            self._threat(eps).surrogate != NONE for eps in self.eps
        ):
            raise InvalidInputError(
                f"attack={self.attack!r} goes through a quantizer, which {self.defense!r} has not; "
                f"give it surrogate={NONE}"
            )

    @property
    def votes(self) -> bool:
        """Is the vote certified?"""
        return self.certificate in (VOTE, ALL)

    @property
    def sources(self) -> tuple[float, ...]:
        """The budgets behind the images that error bounds are for; 0: natural ones."""
        return (0.0, *self.eps) if self.certificate in (DRAWS, ALL) else ()

    def ball(self, eps: float) -> Ball:
        """Where the attack may move an image to."""
        return ball(NORM, eps)

    def create(self, *, seed: int) -> Shield:
        """The defense, with that seed."""
        if parse_spec(self.defense)[0] == NONE:
            raise InvalidInputError(
                f"defense={self.defense!r} draws nothing, which leaves nothing to certify; "
                f"give one of {', '.join(shields())}"
            )
        return shield(self.defense, seed=seed, called="defense")

    def described(self) -> dict[str, Any]:
        """The settings with everything that names and defaults stand for, as JSON can hold it."""
        names = ("certificate", "draws", "delta", "n0", "n", "alpha", "seed", "batch", "precision")
        created = self.create(seed=0)
        backend = {"backend": created.backend} if isinstance(created, Quantizer) else {}
        covered = coverage_of(created) if self.votes else None
        return {
            **{name: getattr(self, name) for name in names},
            "defense": {"name": self.defense, "settings": {**created.settings(), **backend}},
            "coverage": covered and {"sigma_eff": covered.sigma_eff, "copies": covered.copies},
            "sources": [self._source(eps) for eps in self.sources],
        }

    def _threat(self, eps: float) -> Threat:
        return threat(self.attack, self.ball(eps))

    def _source(self, eps: float) -> dict[str, Any]:
        if eps == 0:
            return {"eps": 0.0, "attack": {"name": NONE}}
        full = EvaluationSettings(attacks=(self.attack,), norm=NORM, eps=eps).described()
        return {"eps": eps, "attack": full["attacks"][0]["threats"][0]}


def coverage_of(defense: Shield) -> Coverage:
    """What the worst-case certificate may assume of a defense; InvalidInputError with the reason where none
    holds, and with what would help.
    """
    terms = defense.certificate_terms()
    try:
        return Coverage.of(**terms)
    except InvalidInputError as reason:
        try:
            changed: CertificateTerms = {**terms, "weights_from": "noisy", "noise": "image"}
            Coverage.of(**changed)
        except InvalidInputError:
            raise reason from None
        raise InvalidInputError(
            f"{reason}, or noise='image', which puts the noise on the image before anything sees it"
        ) from reason


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The unit of work: one certificate of some images; eps is None for the vote's."""

    defense: str
    eps: float | None
    images: range

    @property
    def what(self) -> str:
        """The certificate's name in a record's key."""
        return VOTE if self.eps is None else f"{DRAWS} eps={self.eps}"

    @property
    def keys(self) -> list[Key]:
        """What its records are of."""
        return [(self.defense, self.what, image) for image in self.images]


def cells(specification: Mapping[str, Any]) -> list[Cell]:
    """All the work: the votes, then chunk after chunk the error bounds of every budget."""
    count, batch, name = (
        specification["data"]["images"], specification["batch"], specification["defense"]["name"]
    )  # fmt: skip

    def chunks(draws: int) -> list[range]:
        size = max(1, min(batch // _IMAGES, _BATCHES * batch // draws))
        return [range(first, min(first + size, count)) for first in range(0, count, size)]

    votes = chunks(specification["n"]) if specification["coverage"] else []
    budgets = [each["eps"] for each in specification["sources"]]
    return [Cell(defense=name, eps=None, images=images) for images in votes] + [
        Cell(defense=name, eps=eps, images=images)
        for images in chunks(specification["draws"])
        for eps in budgets
    ]

"""What certificates of many images add up to: certified accuracies against the radius, error bounds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vqshield.certificates import (
    Evidence,
    accuracy_bound,
    allowed_failures,
    binomial_statement,
    bounds_from,
    linf_radius,
    list_bounds,
    per_image_delta,
    radius,
    radius_for_linf,
    union_statement,
)
from vqshield.certification.records import (
    CertificateRecord,
    CertificationManifest,
    DrawsRecord,
    SequentialRecord,
    VoteRecord,
)
from vqshield.core import checks
from vqshield.runs.manifests import SourceId, ThreatId
from vqshield.runs.study import Recorded

LINF = 8 / 255
"""The L-inf budget that people ask about, which every summary names beside its radii."""
_RADII = 10  # about this many where none are given


@dataclass(frozen=True, kw_only=True)
class RadiusPoint:
    """Certified accuracy at one L2 radius, as fractions; linf: the radius that it implies in L-inf.

    vote: share of images whose vote is right and certified beyond the radius; draw: mean certified accuracy
    of a single draw. The statements hold for all images at once, and pay for certificates that fail.
    """

    radius: float
    linf: float
    vote: float
    vote_statement: float
    draw: float
    draw_statement: float


@dataclass(frozen=True, kw_only=True)
class LinfLine:
    """What a certificate says of an L-inf budget: the radius it takes, and the share that reaches it."""

    eps: float
    needed: float
    certified: float


@dataclass(frozen=True, kw_only=True)
class VoteSummary:
    """The vote's certificates: shares of images, against the radius.

    accuracy: of single draws; right: share of images whose vote is right; mean_radius: 0 where it is wrong.
    linf: what the certificate says of the L-inf budget that people ask about.
    mean_draws: of an image, where the certificate is sequential; saving: draws / mean_draws.
    """

    images: int
    draws: int
    accuracy: float
    right: float
    abstained: float
    mean_radius: float
    largest_radius: float
    largest_linf: float
    sigma_eff: float
    copies: float
    alpha: float
    confidence: float
    allowed_failures: int
    curve: tuple[RadiusPoint, ...]
    linf: LinfLine | None = field(default=None, metadata={"omit": True})
    mean_draws: float | None = field(default=None, metadata={"omit": True})
    saving: float | None = field(default=None, metadata={"omit": True})


@dataclass(frozen=True, kw_only=True)
class BoundSummary:
    """One error bound: the mean over the images, and two statements that pay for bounds that fail."""

    certified_accuracy: float
    union: float
    binomial: float
    binomial_holding: float


@dataclass(frozen=True, kw_only=True)
class DrawsSummary:
    """The error bounds of the images of one budget, by name, beside the accuracy that was measured."""

    eps: float
    attack: ThreatId
    images: int
    draws: int
    delta: float
    accuracy: float
    bounds: Mapping[str, BoundSummary]


@dataclass(frozen=True, kw_only=True)
class CertificationSummary:
    """What a certification found; of one that is not finished, what there is."""

    title: str
    complete: bool
    vote: VoteSummary | None
    draws: tuple[DrawsSummary, ...]
    seconds: float
    manifest: CertificationManifest

    @classmethod
    def of(
        cls, recorded: Recorded[CertificationManifest, CertificateRecord], *, radii: Sequence[float] = ()
    ) -> "CertificationSummary":
        """From records.

        radii: where the certified accuracies are given, in L2; without any, evenly up to the largest
            possible.
        """
        manifest, records = recorded.manifest, recorded.records
        votes = [record for record in records if isinstance(record, VoteRecord)]
        rows = []
        for source in manifest.sources:
            part = [each for each in records if isinstance(each, DrawsRecord) and each.eps == source.eps]
            if part:
                rows.append(_draws_summary(manifest, source, part))
        return cls(
            title=f"Certificates of {manifest.defense.name} for {manifest.data.images} images of "
            f"{manifest.data.name}, classifier {manifest.classifier.described}",
            complete=len(records) == sum(len(cell.images) for cell in manifest.cells),
            vote=_vote_summary(manifest, votes, radii) if votes else None,
            draws=tuple(rows),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )


def _vote_summary(
    manifest: CertificationManifest, records: Sequence[VoteRecord], radii: Sequence[float]
) -> VoteSummary:
    draws, alpha, values, covered = manifest.n, manifest.alpha, manifest.values, manifest.coverage
    assert covered is not None  # there are votes
    noise = {"sigma_eff": covered.sigma_eff, "copies": covered.copies}
    largest = radius(counts_top=draws, draws=draws, alpha=alpha, **noise)
    reached = torch.tensor([each.radius for each in records], dtype=torch.float64)
    right = torch.tensor([each.answer == each.label for each in records])
    p_y = torch.tensor([each.p_y for each in records], dtype=torch.float64)
    failing = allowed_failures(images=len(records), delta=alpha, eta=alpha)
    curve = []
    for given in radii or even_radii(largest):
        certified = float((right & (reached > checks.real("radius", given))).double().mean())
        single = accuracy_bound(p_y=p_y, radius=given, **noise)
        together = binomial_statement(upper=1 - single, delta=alpha, eta=alpha)
        curve.append(
            RadiusPoint(
                radius=float(given),
                linf=linf_radius(radius=float(given), values=values),
                vote=certified,
                vote_statement=max(0.0, certified - failing / len(records)),
                draw=float(single.mean()),
                draw_statement=together.certified_accuracy,
            )
        )
    needed = radius_for_linf(eps=LINF, values=values, norm="l2")
    drawn = [each.draws if isinstance(each, SequentialRecord) else draws for each in records]
    early = isinstance(records[0], SequentialRecord)
    return VoteSummary(
        images=len(records),
        draws=draws,
        accuracy=(
            sum(each.right / count for each, count in zip(records, drawn, strict=True)) / len(records)
            if early
            else sum(each.right for each in records) / (draws * len(records))
        ),
        right=float(right.double().mean()),
        abstained=sum(each.abstain for each in records) / len(records),
        mean_radius=float((reached * right).mean()),
        largest_radius=largest,
        largest_linf=linf_radius(radius=largest, values=values),
        sigma_eff=covered.sigma_eff,
        copies=covered.copies,
        alpha=alpha,
        confidence=1 - alpha,
        allowed_failures=failing,
        curve=tuple(curve),
        linf=LinfLine(eps=LINF, needed=needed, certified=float((right & (reached > needed)).double().mean())),
        mean_draws=sum(drawn) / len(drawn) if early else None,
        saving=draws * len(drawn) / sum(drawn) if early else None,
    )


def _draws_summary(
    manifest: CertificationManifest, source: SourceId, records: Sequence[DrawsRecord]
) -> DrawsSummary:
    draws, delta = manifest.draws, manifest.delta
    seen = _evidence(records, draws)
    together = bounds_from(seen, delta=per_image_delta(delta=delta, images=len(records)))
    bounds = {}
    for name in list_bounds():
        upper = torch.tensor([each.bounds[name] for each in records], dtype=torch.float64)
        all_but = binomial_statement(upper=upper, delta=delta, eta=delta)
        bounds[name] = BoundSummary(
            certified_accuracy=float((1 - upper).mean()),
            union=union_statement(upper=together[name], delta=delta).certified_accuracy,
            binomial=all_but.certified_accuracy,
            binomial_holding=all_but.holding,
        )
    return DrawsSummary(
        eps=source.eps,
        attack=source.attack,
        images=len(records),
        draws=draws,
        delta=delta,
        accuracy=1 - sum(each.errors for each in records) / (draws * len(records)),
        bounds=bounds,
    )


def _evidence(records: Sequence[DrawsRecord], draws: int) -> Evidence:
    def column(name: str) -> Tensor:
        return torch.tensor([getattr(each, name) for each in records], dtype=torch.float64)

    return Evidence(
        draws=draws,
        margin=column("margin"),
        mean_l1=column("mean_l1"),
        mean_truncated=column("mean_truncated"),
        variance_truncated=column("variance_truncated"),
        errors=column("errors").long(),
    )


def even_radii(largest: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, below the largest radius that the draws can give."""
    if largest <= 0:  # too few draws to certify anything
        return [0.0]
    rough = largest / _RADII
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(number * step, 12) for number in range(math.ceil(largest / step))]

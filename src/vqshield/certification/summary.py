"""What certificates of many images add up to: certified accuracies against the radius, error bounds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from vqshield.attacks import ball
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
from vqshield.certificates.splitting import LEVELS
from vqshield.certification.records import (
    EVIDENCE,
    CertificateRecord,
    CertificationManifest,
    DrawsRecord,
    L1Manifest,
    L1Record,
    SequentialRecord,
    VoteRecord,
)
from vqshield.core import checks
from vqshield.core.display_names import BOUND_NAMES
from vqshield.core.settings import format_value
from vqshield.reports.table import Column, Section, Table
from vqshield.reports.text import percent
from vqshield.runs.manifests import SourceId, ThreatId
from vqshield.runs.study import Recorded

NORM, LINF = "linf", 8 / 255
"""The usual L-inf budget, which every summary compares with its radii."""
_RADII = 10  # about this many where none are given
_UNFINISHED = "The run is not finished: these are the results so far."


@dataclass(frozen=True, kw_only=True)
class LinfLine:
    """What a certificate says of an L-inf budget: the radius it takes, and the share that reaches it."""

    eps: float
    needed: float
    certified: float

    @classmethod
    def of(cls, share: Callable[[float], float], *, values: int, norm: str) -> "LinfLine":
        """share: of the images, certified at a radius in that norm."""
        needed = radius_for_linf(eps=LINF, values=values, norm=norm)
        return cls(eps=LINF, needed=needed, certified=share(needed))

    def caveat(self, norm: str) -> str:
        """The same as a sentence, because an L2 or L1 radius is easily taken for one in L-inf."""
        return (
            f"It is no L-inf certificate: {format_value(self.eps)} in L-inf takes a radius of "
            f"{self.needed:.3g} in {norm}, which {percent(self.certified)} % of the images reach."
        )


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
class VoteSummary:
    """The vote's certificates: shares of images, against the radius.

    accuracy: of single draws; right: share of images whose vote is right; mean_radius: 0 where it is wrong.
    linf: what the certificate says of the usual L-inf budget.
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

    @classmethod
    def of(
        cls, manifest: CertificationManifest, records: Sequence[VoteRecord], radii: Sequence[float]
    ) -> "VoteSummary":
        """From the records of votes, one at least."""
        draws, alpha, values, covered = manifest.n, manifest.alpha, manifest.values, manifest.coverage
        assert covered is not None  # there are votes
        noise = asdict(covered)
        largest = radius(counts_top=draws, draws=draws, alpha=alpha, **noise)
        reached = torch.tensor([each.radius for each in records], dtype=torch.float64)
        right = torch.tensor([each.answer == each.label for each in records])
        p_y = torch.tensor([each.p_y for each in records], dtype=torch.float64)
        failing = allowed_failures(images=len(records), delta=alpha, eta=alpha)

        def share(beyond: float) -> float:
            return float((right & (reached > beyond)).double().mean())

        def point(beyond: float) -> RadiusPoint:
            certified = share(checks.real("radius", beyond))
            single = accuracy_bound(p_y=p_y, radius=beyond, **noise)
            together = binomial_statement(upper=1 - single, delta=alpha, eta=alpha)
            return RadiusPoint(
                radius=float(beyond),
                linf=linf_radius(radius=float(beyond), values=values),
                vote=certified,
                vote_statement=max(0.0, certified - failing / len(records)),
                draw=float(single.mean()),
                draw_statement=together.certified_accuracy,
            )

        drawn = [each.draws if isinstance(each, SequentialRecord) else draws for each in records]
        early = isinstance(records[0], SequentialRecord)
        return cls(
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
            **noise,
            alpha=alpha,
            confidence=1 - alpha,
            allowed_failures=failing,
            curve=tuple(map(point, radii or even_radii(largest))),
            linf=LinfLine.of(share, values=values, norm="l2"),
            mean_draws=sum(drawn) / len(drawn) if early else None,
            saving=draws * len(drawn) / sum(drawn) if early else None,
        )

    def table(self, title: str) -> Table:
        """Certified accuracy against the L2 radius."""
        drawn = "n =" if self.mean_draws is None else "at most n ="
        facts = [
            ("draws right", percent(self.accuracy)),
            ("abstained", percent(self.abstained)),
            ("mean radius", f"{self.mean_radius:.3g}"),
            ("sigma_eff", f"{self.sigma_eff:.3g}"),
            ("copies", f"{self.copies:g}"),
        ]
        if self.mean_draws is not None and self.saving is not None:
            facts += [("draws per image", f"{self.mean_draws:,.0f}"), ("times fewer", f"{self.saving:.1f}")]
        return Table(
            title=f"{title}: worst case in L2",
            columns=[
                Column("radius", "radius L2", "number", format="g"),
                Column("linf", "as L-inf", "number", format=".3f", unit="/255"),
                Column("vote", "vote", "percent"),
                Column("vote_statement", "vote statement", "percent"),
                Column("draw", "draw", "percent"),
                Column("draw_statement", "draw statement", "percent"),
            ],
            rows=[
                [each.radius, 255 * each.linf, each.vote, each.vote_statement, each.draw, each.draw_statement]
                for each in self.curve
            ],
            caption=f"certified accuracy in % of {self.images} images; vote: of infinitely many draws, "
            f"{drawn} {self.draws} drawn, alpha = {self.alpha:g}; draw: of a single one; statement: of all "
            f"images at once, with probability ≥ {self.confidence:g} (all but {self.allowed_failures} hold)",
            facts=facts,
        )

    def caveats(self) -> list[str]:
        """What must be said under the numbers, whatever they are."""
        linf = f"{255 * self.largest_linf:.2g}/255"
        return [
            "The L2 certificate holds for every image within the radius, if the noise is Gaussian and drawn "
            f"afresh; with this many draws it reaches at most {linf} in L-inf. Larger noise reaches farther.",
            *([] if self.linf is None else [self.linf.caveat("L2")]),
        ]


@dataclass(frozen=True, kw_only=True)
class BoundSummary:
    """One error bound: the mean over the images, and two statements that pay for bounds that fail."""

    certified_accuracy: float
    union: float
    binomial: float
    binomial_holding: float


@dataclass(frozen=True, kw_only=True)
class DrawsSummary:
    """The error bounds of the images of one budget, by name, and the measured accuracy."""

    eps: float
    attack: ThreatId
    images: int
    draws: int
    delta: float
    accuracy: float
    bounds: Mapping[str, BoundSummary]

    @classmethod
    def of(
        cls, manifest: CertificationManifest, source: SourceId, records: Sequence[DrawsRecord]
    ) -> "DrawsSummary":
        """From the records of one budget, one at least."""
        draws, delta = manifest.draws, manifest.delta
        columns = {
            name: torch.tensor([getattr(each, name) for each in records], dtype=torch.float64)
            for name in EVIDENCE
        }
        seen = Evidence(draws=draws, **{**columns, "errors": columns["errors"].long()})
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
        return cls(
            eps=source.eps,
            attack=source.attack,
            images=len(records),
            draws=draws,
            delta=delta,
            accuracy=1 - sum(each.errors for each in records) / (draws * len(records)),
            bounds=bounds,
        )

    @property
    def source(self) -> str:
        """Where its images come from."""
        return "natural" if self.eps == 0 else f"{self.attack.name} at {ball(NORM, self.eps).budget}"


def bounds_table(title: str, summaries: Sequence[DrawsSummary]) -> Table:
    """The error bounds of every budget."""
    rows: list[Section | list[str | float]] = []
    for each in summaries:
        rows.append(Section(f"{each.source}: draws right {percent(each.accuracy)}"))
        rows += [
            [BOUND_NAMES.get(name, name), bound.certified_accuracy, bound.union, bound.binomial, each.images]
            for name, bound in each.bounds.items()
        ]
    first = summaries[0]
    return Table(
        title=f"{title}: error bounds for given images",
        columns=[
            Column("bound", "bound"),
            *(Column(name, name, "percent") for name in ("mean", "union", "binomial")),
            Column("images", "N", "count"),
        ],
        rows=rows,
        caption=f"certified accuracy in %, m = {first.draws} draws, delta = {first.delta:g}; mean: of "
        "1 - gamma; union, binomial: a draw's mean accuracy over all images is at least this, with "
        f"probability ≥ {1 - first.delta:g}",
    )


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
        votes = [each for each in records if isinstance(each, VoteRecord)]
        bounds = [each for each in records if isinstance(each, DrawsRecord)]
        parts = ((source, [each for each in bounds if each.eps == source.eps]) for source in manifest.sources)
        return cls(
            title=f"Certificates of {manifest.subject}",
            complete=len(records) == sum(len(cell.images) for cell in manifest.cells),
            vote=VoteSummary.of(manifest, votes, radii) if votes else None,
            draws=tuple(DrawsSummary.of(manifest, source, part) for source, part in parts if part),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )

    def tables(self) -> list[Table]:
        """A table for every kind of certificate that there is."""
        tables = [self.vote.table(self.title)] if self.vote else []
        return tables + ([bounds_table(self.title, self.draws)] if self.draws else [])

    def caveats(self) -> list[str]:
        """What must be said under the numbers, whatever they are."""
        lines = [] if self.complete else [_UNFINISHED]
        lines += self.vote.caveats() if self.vote else []
        if self.draws:
            lines.append(
                "The error bounds hold for the given images alone, not for a ball around them: another "
                "attack needs draws of its own. The smallest of several bounds is no bound: choose one "
                "beforehand."
            )
            caveats = [ball(NORM, each.eps).caveat for each in self.draws]
            lines += [f"WARNING: {each}." for each in caveats if each is not None]
        return lines


@dataclass(frozen=True, kw_only=True)
class L1Point:
    """Certified accuracy at one L1 radius, as fractions; linf: the radius that it implies in L-inf.

    certified: share of images whose vote is right on every 8-bit image within the radius, itself included.
    real: the same for all real-valued images, which the defense rounds to 8 bits.
    """

    radius: float
    linf: float
    certified: float
    real: float


@dataclass(frozen=True, kw_only=True)
class L1Summary:
    """What an exact L1 certification found; of one that is not finished, what there is.

    accuracy: of single draws; right: share of images whose vote is right; mean_radius: 0 where it is wrong.
    """

    title: str
    complete: bool
    images: int
    shifts: int
    scale: float
    accuracy: float
    right: float
    mean_radius: float
    largest_radius: float
    curve: tuple[L1Point, ...]
    linf: LinfLine
    seconds: float
    manifest: L1Manifest

    @classmethod
    def of(cls, recorded: Recorded[L1Manifest, L1Record], *, radii: Sequence[float] = ()) -> "L1Summary":
        """From records; radii: where certified accuracies are given, in L1. Without any, evenly up to the
        largest possible.
        """
        manifest, records = recorded.manifest, recorded.records
        right = [each for each in records if each.answer == each.label]
        count, largest = max(1, len(records)), manifest.shifts // 2 / LEVELS

        def share(within: float) -> float:
            return sum(each.radius >= within for each in right) / count

        def point(within: float) -> L1Point:
            return L1Point(
                radius=float(checks.real("radius", within)),
                linf=linf_radius(radius=float(within), values=manifest.values, norm="l1"),
                certified=share(within),
                real=sum(each.real_radius > within for each in right) / count,
            )

        return cls(
            title=f"Exact certificates of {manifest.subject}",
            complete=len(records) == manifest.data.images,
            images=len(records),
            shifts=manifest.shifts,
            scale=manifest.shifts / (2 * LEVELS),
            accuracy=sum(each.right for each in records) / (manifest.shifts * count),
            right=len(right) / count,
            mean_radius=sum(each.radius for each in right) / count,
            largest_radius=largest,
            curve=tuple(map(point, radii or even_radii(largest))),
            linf=LinfLine.of(share, values=manifest.values, norm="l1"),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )

    def tables(self) -> list[Table]:
        """Certified accuracy against the L1 radius."""
        table = Table(
            title=f"{self.title}: worst case in L1",
            columns=[
                Column("radius", "radius L1", "number", format="g"),
                Column("linf", "as L-inf", "number", format=".4f", unit="/255"),
                Column("certified", "8-bit", "percent"),
                Column("real", "real-valued", "percent"),
            ],
            rows=[[each.radius, 255 * each.linf, each.certified, each.real] for each in self.curve],
            caption=f"certified accuracy in % of {self.images} images; the vote of all {self.shifts} shifts, "
            "each asked once: nothing is estimated. 8-bit: on every 8-bit image within the radius; "
            "real-valued: on every image",
            facts=[
                ("votes right", percent(self.right)),
                ("draws right", percent(self.accuracy)),
                ("mean radius", f"{self.mean_radius:.3g}"),
                ("largest radius", f"{self.largest_radius:.3g}"),
                ("scale", f"{self.scale:.3g}"),
            ],
        )
        return [table]

    def caveats(self) -> list[str]:
        """What must be said under the numbers, whatever they are."""
        return [
            *([] if self.complete else [_UNFINISHED]),
            "The L1 certificate holds for certain, for the vote of all shifts of this very pattern, if the "
            "classifier gives one image one answer, whatever the batch around it.",
            self.linf.caveat("L1"),
        ]


def even_radii(largest: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, below the largest radius that the draws can give."""
    if largest <= 0:  # too few draws to certify anything
        return [0.0]
    rough = largest / _RADII
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(number * step, 12) for number in range(math.ceil(largest / step))]

"""What certificates of many images add up to: certified accuracies against the radius, error bounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from vqshield import certificates
from vqshield.attacks import ball
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
from vqshield.reports.table import Column, Section, Table, Tabular
from vqshield.reports.text import UNFINISHED, percent
from vqshield.runs.arguments import tuning_note
from vqshield.runs.manifests import SourceId, ThreatId
from vqshield.runs.study import Recorded
from vqshield.voting.counting import even_radii

NORM, LINF = "linf", 8 / 255
"""The usual L-inf budget, which every summary compares with its radii."""


@dataclass(frozen=True, kw_only=True)
class LinfLine:
    """An L-inf budget, the L1 or L2 radius that it takes, and the share of images certified there."""

    eps: float
    needed: float
    certified: float

    @classmethod
    def of(cls, certified: Callable[[float], float], *, values: int, norm: str) -> "LinfLine":
        """The usual budget; certified: the share of images at a radius in that norm."""
        needed = certificates.radius_for_linf(eps=LINF, values=values, norm=norm)
        return cls(eps=LINF, needed=needed, certified=certified(needed))

    def caveat(self, norm: str) -> str:
        """The same as a sentence, because an L2 or L1 radius is easily taken for one in L-inf."""
        return (
            f"It is not an L-inf certificate: {format_value(self.eps)} in L-inf takes a radius of "
            f"{self.needed:.3g} in {norm}, which {percent(self.certified)} % of the images reach."
        )


@dataclass(frozen=True, kw_only=True)
class RadiusPoint:
    """Certified accuracy at one L2 radius, as fractions.

    The statements hold for all images at once, and pay for certificates that fail.
    """

    radius: float
    linf: float  # the radius that it implies in L-inf
    vote: float  # share of images whose vote is right and certified beyond the radius
    vote_statement: float
    draw: float  # mean certified accuracy of a single draw
    draw_statement: float


@dataclass(frozen=True, kw_only=True)
class VoteSummary:
    """The vote's certificates: shares of images, against the radius."""

    images: int
    draws: int
    accuracy: float  # of single draws
    right: float  # share of images whose vote is right
    abstained: float
    mean_radius: float  # with 0 for images whose vote is wrong
    largest_radius: float
    largest_linf: float
    sigma_eff: float
    copies: float
    alpha: float
    confidence: float
    allowed_failures: int
    curve: tuple[RadiusPoint, ...]
    linf: LinfLine | None = field(default=None, metadata={"omit": True})
    mean_draws: float | None = field(default=None, metadata={"omit": True})  # where it is sequential
    saving: float | None = field(default=None, metadata={"omit": True})  # draws / mean_draws

    @classmethod
    def of(
        cls, manifest: CertificationManifest, records: Sequence[VoteRecord], radii: Sequence[float]
    ) -> "VoteSummary":
        """From the records of votes, one at least."""
        draws, alpha, values, images = manifest.n, manifest.alpha, manifest.values, len(records)
        assert manifest.coverage is not None  # there are votes
        noise = asdict(manifest.coverage)
        largest = certificates.radius(counts_top=draws, draws=draws, alpha=alpha, **noise)
        reached = torch.tensor([record.radius for record in records], dtype=torch.float64)
        right = torch.tensor([record.answer == record.label for record in records])
        p_y = torch.tensor([record.p_y for record in records], dtype=torch.float64)
        failing = certificates.allowed_failures(images=images, delta=alpha, eta=alpha)

        def certified(beyond: float) -> float:
            return float((right & (reached > beyond)).double().mean())

        def point(beyond: float) -> RadiusPoint:
            vote = certified(checks.real("radius", beyond))
            single = certificates.accuracy_bound(p_y=p_y, radius=beyond, **noise)
            together = certificates.binomial_statement(upper=1 - single, delta=alpha, eta=alpha)
            return RadiusPoint(
                radius=float(beyond),
                linf=certificates.linf_radius(radius=float(beyond), values=values),
                vote=vote,
                vote_statement=max(0.0, vote - failing / images),
                draw=float(single.mean()),
                draw_statement=together.certified_accuracy,
            )

        stopped = [record for record in records if isinstance(record, SequentialRecord)]
        drawn = sum(record.draws for record in stopped)
        accuracy = sum(record.right for record in records) / (draws * images)
        if stopped:
            accuracy = sum(record.right / record.draws for record in stopped) / images
        return cls(
            images=images,
            draws=draws,
            accuracy=accuracy,
            right=float(right.double().mean()),
            abstained=sum(record.abstain for record in records) / images,
            mean_radius=float((reached * right).mean()),
            largest_radius=largest,
            largest_linf=certificates.linf_radius(radius=largest, values=values),
            **noise,
            alpha=alpha,
            confidence=1 - alpha,
            allowed_failures=failing,
            curve=tuple(map(point, radii or even_radii(largest))),
            linf=LinfLine.of(certified, values=values, norm="l2"),
            mean_draws=drawn / images if stopped else None,
            saving=draws * images / drawn if stopped else None,
        )

    def table(self, title: str) -> Table:
        """Certified accuracy against the L2 radius."""
        limit = "" if self.mean_draws is None else "at most "
        shares = ("vote", "vote_statement", "draw", "draw_statement")
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
                *(Column(name, name.replace("_", " "), "percent") for name in shares),
            ],
            rows=[
                [point.radius, 255 * point.linf, *(getattr(point, name) for name in shares)]
                for point in self.curve
            ],
            caption=f"certified accuracy in % of {self.images} images; vote: of infinitely many draws, "
            f"{limit}n = {self.draws} drawn, alpha = {self.alpha:g}; draw: of a single one; statement: of "
            f"all images at once, with probability ≥ {self.confidence:g} "
            f"(all but {self.allowed_failures} hold)",
            facts=facts,
        )

    def caveats(self) -> list[str]:
        """What a reader of these numbers must know."""
        return [
            "The L2 certificate holds for every image within the radius, if the noise is Gaussian and drawn "
            f"afresh; with this many draws it reaches at most {255 * self.largest_linf:.2g}/255 in L-inf. "
            "Larger noise reaches farther.",
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
        draws, delta, images = manifest.draws, manifest.delta, len(records)
        columns = {
            name: torch.tensor([getattr(record, name) for record in records], dtype=torch.float64)
            for name in EVIDENCE
        }
        evidence = certificates.Evidence(draws=draws, **{**columns, "errors": columns["errors"].long()})
        shared = certificates.per_image_delta(delta=delta, images=images)
        together = certificates.bounds_from(evidence, delta=shared)
        bounds = {}
        for name in certificates.list_bounds():
            upper = torch.tensor([record.bounds[name] for record in records], dtype=torch.float64)
            all_but = certificates.binomial_statement(upper=upper, delta=delta, eta=delta)
            bounds[name] = BoundSummary(
                certified_accuracy=float((1 - upper).mean()),
                union=certificates.union_statement(upper=together[name], delta=delta).certified_accuracy,
                binomial=all_but.certified_accuracy,
                binomial_holding=all_but.holding,
            )
        return cls(
            eps=source.eps,
            attack=source.attack,
            images=images,
            draws=draws,
            delta=delta,
            accuracy=1 - sum(record.errors for record in records) / (draws * images),
            bounds=bounds,
        )

    @property
    def source(self) -> str:
        """Where its images come from."""
        return "clean" if self.eps == 0 else f"{self.attack.name} at {ball(NORM, self.eps).budget}"


def bounds_table(title: str, summaries: Sequence[DrawsSummary]) -> Table:
    """The error bounds of every budget."""
    rows: list[Section | list[str | float]] = []
    for summary in summaries:
        rows.append(Section(f"{summary.source}: draws right {percent(summary.accuracy)}"))
        rows += [
            [
                BOUND_NAMES.get(name, name),
                bound.certified_accuracy,
                bound.union,
                bound.binomial,
                summary.images,
            ]
            for name, bound in summary.bounds.items()
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
class CertificationSummary(Tabular):
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
        """From records; radii: of the votes' curve, in L2 (default: evenly up to the largest possible)."""
        manifest, records = recorded.manifest, recorded.records
        votes = [record for record in records if isinstance(record, VoteRecord)]
        bounds = [record for record in records if isinstance(record, DrawsRecord)]
        parts = ((source, [each for each in bounds if each.eps == source.eps]) for source in manifest.sources)
        kinds = len(manifest.sources) + (manifest.coverage is not None)
        return cls(
            title=f"Certificates of {manifest.subject}",
            complete=len(records) == kinds * manifest.data.images,
            vote=VoteSummary.of(manifest, votes, radii) if votes else None,
            draws=tuple(DrawsSummary.of(manifest, source, part) for source, part in parts if part),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )

    @property
    def table(self) -> Table:
        """The votes' curve and the error bounds, one below the other where there are both."""
        nothing = Table(title=self.title, columns=[Column("radius", "radius L2", "number")], rows=[])
        return Table.joined(self.tables() or [nothing])

    def tables(self) -> list[Table]:
        """A table for every kind of certificate that there is."""
        tables = [self.vote.table(self.title)] if self.vote else []
        return tables + ([bounds_table(self.title, self.draws)] if self.draws else [])

    def caveats(self) -> list[str]:
        """What a reader of these numbers must know."""
        lines = _opening(self)
        lines += self.vote.caveats() if self.vote else []
        if self.draws:
            lines.append(
                "The error bounds hold for the given images alone, not for a ball around them: another "
                "attack needs draws of its own. The smallest of several bounds is not a bound: choose one "
                "beforehand."
            )
            caveats = [ball(NORM, summary.eps).caveat for summary in self.draws]
            lines += [f"WARNING: {caveat}." for caveat in caveats if caveat is not None]
        return lines


@dataclass(frozen=True, kw_only=True)
class L1Point:
    """Certified accuracy at one L1 radius, as fractions."""

    radius: float
    linf: float  # the radius that it implies in L-inf
    certified: float  # share of images whose vote is right on every 8-bit image within the radius, inclusive
    real: float  # the same for all real-valued images, which the defense rounds to 8 bits


@dataclass(frozen=True, kw_only=True)
class L1Summary(Tabular):
    """What an exact L1 certification found; of one that is not finished, what there is."""

    title: str
    complete: bool
    images: int
    shifts: int
    scale: float
    accuracy: float  # of single draws
    right: float  # share of images whose vote is right
    mean_radius: float  # with 0 for images whose vote is wrong
    largest_radius: float
    curve: tuple[L1Point, ...]
    linf: LinfLine
    seconds: float
    manifest: L1Manifest

    @classmethod
    def of(cls, recorded: Recorded[L1Manifest, L1Record], *, radii: Sequence[float] = ()) -> "L1Summary":
        """From records; radii: of the curve, in L1 (default: evenly up to the largest possible)."""
        manifest, records = recorded.manifest, recorded.records
        right = [record for record in records if record.answer == record.label]
        count, largest = max(1, len(records)), manifest.shifts // 2 / LEVELS

        def certified(within: float) -> float:
            return sum(record.radius >= within for record in right) / count

        def point(within: float) -> L1Point:
            return L1Point(
                radius=float(checks.real("radius", within)),
                linf=certificates.linf_radius(radius=float(within), values=manifest.values, norm="l1"),
                certified=certified(within),
                real=sum(record.real_radius > within for record in right) / count,
            )

        return cls(
            title=f"Exact certificates of {manifest.subject}",
            complete=len(records) == manifest.data.images,
            images=len(records),
            shifts=manifest.shifts,
            scale=manifest.shifts / (2 * LEVELS),
            accuracy=sum(record.right for record in records) / (manifest.shifts * count),
            right=len(right) / count,
            mean_radius=sum(record.radius for record in right) / count,
            largest_radius=largest,
            curve=tuple(map(point, radii or even_radii(largest))),
            linf=LinfLine.of(certified, values=manifest.values, norm="l1"),
            seconds=round(sum(recorded.seconds.values()), 1),
            manifest=manifest,
        )

    @property
    def table(self) -> Table:
        """Certified accuracy against the L1 radius."""
        return Table(
            title=f"{self.title}: worst case in L1",
            columns=[
                Column("radius", "radius L1", "number", format="g"),
                Column("linf", "as L-inf", "number", format=".4f", unit="/255"),
                Column("certified", "8-bit", "percent"),
                Column("real", "real-valued", "percent"),
            ],
            rows=[[point.radius, 255 * point.linf, point.certified, point.real] for point in self.curve],
            caption=f"certified accuracy in % of {self.images} images; the vote of all {self.shifts} shifts, "
            "each classified once: nothing is estimated. 8-bit: on every 8-bit image within the radius; "
            "real-valued: on every image",
            facts=[
                ("votes right", percent(self.right)),
                ("draws right", percent(self.accuracy)),
                ("mean radius", f"{self.mean_radius:.3g}"),
                ("largest radius", f"{self.largest_radius:.3g}"),
                ("scale", f"{self.scale:.3g}"),
            ],
        )

    def tables(self) -> list[Table]:
        """The table alone."""
        return [self.table]

    def caveats(self) -> list[str]:
        """What a reader of these numbers must know."""
        return [
            *_opening(self),
            "The L1 certificate holds for certain, for the vote of all shifts of this very pattern, if the "
            "classifier gives one image one answer, whatever the batch around it.",
            self.linf.caveat("L1"),
        ]


def _opening(summary: CertificationSummary | L1Summary) -> list[str]:
    """The lines that come before those of a certificate."""
    notes = tuning_note(summary.manifest.classifier, [summary.manifest.defense])
    return [*([] if summary.complete else [UNFINISHED]), *(f"WARNING: {note}." for note in notes)]

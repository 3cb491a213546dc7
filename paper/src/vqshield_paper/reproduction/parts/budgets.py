"""Values against the attack's budget: certified accuracy (F7) and the KL diagnostic (F8)."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from vqshield.certification.study import Certification
from vqshield.certification.summary import CertificationSummary
from vqshield.core import checks
from vqshield.core.display_names import BOUND_NAMES, display_defense, display_name
from vqshield.core.settings import format_value
from vqshield.runs.target import Target
from vqshield_paper.kl.measurement import DivergenceSettings
from vqshield_paper.kl.study import KLStudy, KLSummary
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Unit, Value
from vqshield_paper.reproduction.parts.base import Options, Part, is_begun, paper_value, quantity
from vqshield_paper.reproduction.published import PublishedValue
from vqshield_paper.shared_images import SharedCertification

_DRAWS_AT_ONCE = {True: 8000, False: 500}
"""By whether there is a GPU."""
_PRECISION = {True: "bf16", False: "float32"}
_CODEBOOKS_AT_ONCE = {True: 10_000, False: 1000}
_STUDY = "study"
_LABEL_IMAGES = 10
_LABEL_CODEBOOKS, _LABEL_LINES = 8, 64
"""Few: the second term takes most of the time, and the plot leaves it out."""


@dataclass(frozen=True, kw_only=True)
class BudgetPart(Part):
    """A row for every defense and budget.

    eps: the budgets as the paper plots them, in units of `unit`: "1/255", or 1.
    attack: a spec string; one that ignores the defense, as the paper's. count: images.
    """

    defenses: tuple[str, ...]
    attack: str
    eps: tuple[float, ...]
    unit: float | str = 1.0
    count: int
    shown_unit: ClassVar[Unit]
    measure: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "unit", quantity("unit", self.unit))
        checks.whole("count", self.count, least=1)

    @property
    def budgets(self) -> dict[float, float]:
        """Every budget, by where it is plotted."""
        return {x: x * float(self.unit) for x in self.eps}

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """What is shown."""

    def _rows(
        self,
        ours: Mapping[tuple[str, float], Mapping[str, Value]],
        published: Sequence[PublishedValue],
    ) -> tuple[Row, ...]:
        """ours: by defense and budget, the values by column."""
        rows = []
        for defense in self.defenses:
            for x, eps in self.budgets.items():
                values = dict(ours.get((defense, eps), {self.measure: Value()}))
                paper = paper_value(published, data=self.data, defense=defense, measure=self.measure, x=x)
                values[self.measure] = replace(
                    values[self.measure], paper=paper.paper, paper_std=paper.paper_std
                )
                shown = format(eps, "g") if self.unit == 1 else format_value(eps)
                rows.append(
                    Row(
                        defense=defense,
                        title=f"{display_defense(defense)}, ε={shown}",
                        series=display_name(defense),
                        x=x,
                        values=values,
                    )
                )
        return tuple(rows)

    def _summary(
        self,
        found: Sequence[CertificationSummary] | Sequence[KLSummary],
        rows: tuple[Row, ...],
        precision: str | None = None,
    ) -> PartSummary:
        first = found[0].manifest if found else None
        return PartSummary(
            name=self.name,
            title=self.title,
            status="complete" if found and all(each.complete for each in found) else "partial",
            data=first.data if first else None,
            classifier=first.classifier if first else None,
            norm="linf",
            x_title="ε" if self.unit == 1 else "ε · 255",
            unit=self.shown_unit,
            columns=self.columns,
            rows=rows,
            precision=precision,
            seconds=sum(each.seconds for each in found),
        )


@dataclass(frozen=True, kw_only=True)
class CertifiedPart(BudgetPart):
    """Certified accuracy of given images: every bound compared with Proposition 1.

    draws, delta: m, and the chance that a bound fails.
    """

    kind = "certified"
    shown_unit = "%"
    measure = "certified"
    draws: int = 1000
    delta: float = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        self.studies(Options(), Target())

    @property
    def columns(self) -> tuple[Column, ...]:
        """The paper's bound, the others, and what they bound."""
        others = [
            Column(key=name, title=title) for name, title in BOUND_NAMES.items() if name != "proposition1"
        ]
        measured = f"measured, {self.attack.partition(':')[0]}"
        return (
            Column(key="certified", title=BOUND_NAMES["proposition1"]),
            *others,
            Column(key="accuracy", title=measured, level="ignorant"),
        )

    def studies(self, options: Options, target: Target) -> dict[str, Certification]:
        """One for each defense."""
        return {
            _folder(text): SharedCertification(
                target=replace(target, limit=options.images(self.count)),
                defense=text,
                certificate="draws",
                attack=self.attack,
                eps=tuple(eps for eps in self.budgets.values() if eps),
                draws=options.runs or self.draws,
                delta=self.delta,
                seed=options.seed,
                batch=_DRAWS_AT_ONCE[options.on_gpu],
                precision=_PRECISION[options.on_gpu],
                shared=options.shared,
            )
            for text in self.defenses
        }

    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        found = {
            text: CertificationSummary.of(Certification.read(home / _folder(text)))
            for text in self.defenses
            if is_begun(home / _folder(text))
        }
        ours = {}
        for defense, summary in found.items():
            for row in summary.draws:
                shares = {name: bound.certified_accuracy for name, bound in row.bounds.items()}
                shares = {"certified": shares.pop("proposition1"), **shares, "accuracy": row.accuracy}
                ours[defense, row.eps] = {
                    name: Value(ours=share, n=row.images, runs=row.draws) for name, share in shares.items()
                }
        precision = next((each.manifest.precision for each in found.values()), None)
        return self._summary(list(found.values()), self._rows(ours, published), precision)


@dataclass(frozen=True, kw_only=True)
class KLPart(BudgetPart):
    """The KL diagnostic, with its floor; codebooks: drawn of every image."""

    kind = "divergence"
    shown_unit = "nats"
    measure = "kl"
    codebooks: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.studies(Options(), Target())

    @property
    def columns(self) -> tuple[Column, ...]:
        """The estimate means nothing without its floor."""
        return (
            Column(key="kl", title="KL estimate"),
            Column(key="floor", title="floor: the same image twice"),
            Column(key="excess", title="above the floor"),
        )

    def studies(self, options: Options, target: Target) -> dict[str, KLStudy]:
        """One study of all defenses."""
        images = options.images(self.count)
        study = KLStudy(
            target=replace(target, limit=images),
            defenses=self.defenses,
            eps=tuple(self.budgets.values()),
            attack=self.attack,
            images=images,
            label_images=_LABEL_IMAGES,
            divergence=DivergenceSettings(
                codebooks=self.codebooks,
                label_codebooks=min(_LABEL_CODEBOOKS, self.codebooks),
                lines=_LABEL_LINES,
                batch=_CODEBOOKS_AT_ONCE[options.on_gpu],
                seed=options.seed,
            ),
            seed=options.seed,
            shared=options.shared,
        )
        return {_STUDY: study}

    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        """Means over the images; the spread is that between images. No column shows the second term."""
        begun = is_begun(home / _STUDY)
        found = [KLSummary.of(KLStudy.read(home / _STUDY))] if begun else []
        ours = {}
        for row in found[0].rows if found else ():
            means = {"kl": row.kl, "floor": row.floor, "excess": row.excess}
            ours[row.defense, row.eps] = {
                name: Value(ours=mean.mean, standard_error=mean.standard_error, n=row.images)
                for name, mean in means.items()
            }
            if row.second is not None:
                ours[row.defense, row.eps]["second"] = Value(
                    ours=row.second.mean, standard_error=row.second.standard_error, n=row.second_images
                )
        return self._summary(found, self._rows(ours, published))


def _folder(defense: str) -> str:
    return defense.replace(":", "-").replace(",", "-").replace("=", "").replace("/", "of")

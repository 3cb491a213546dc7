"""Accuracy of defended classifiers under the paper's attacks, and under attacks that know of the defense."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vqshield.attacks.suites import list_suites, with_precision
from vqshield.core import checks
from vqshield.core.display_names import NONE, display_defense, display_name
from vqshield.core.errors import InvalidInputError
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import EvaluationSummary
from vqshield.runs.target import Target
from vqshield_paper.batch_statistics import BATCH, BatchEvaluation, BatchSettings
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Value
from vqshield_paper.reproduction.parts.base import (
    Options,
    Part,
    is_begun,
    literature_rows,
    paper_value,
    quantity,
)
from vqshield_paper.reproduction.published import PublishedValue
from vqshield_paper.shared_images import SharedEvaluation

PROTOCOL, ADAPTIVE = "protocol", "adaptive"
"""The two studies: the paper's attacks on all images, and ours on some."""
_SUITES = {True: "adaptive-v1", False: "adaptive-v1-quick"}
"""By whether there is a GPU."""
_CHUNKS = {True: 250, False: 32}
"""Images at a time, by the same."""
_PLACE = "{x}"
_TITLES = {
    "pgd": "PGD", "autoattack": "AutoAttack", "ste_pgd": "STE, PGD", "ste_autoattack": "STE, AutoAttack",
    "eot_pgd": "EOT, PGD", "eot_autoattack": "EOT, AutoAttack",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AccuracyPart(Part):
    """A row for each defense, a column for each attack.

    defenses: spec strings, with {x} where they run over the values of x (x_title: what those are).
    attacks: the paper's, by the name of their column; eps, norm: their budget. count: images; runs: draws of
    the defense. adaptive_count: images for the attacks that know of it; 0: none. suite: which attacks, where
    those that the device decides would take too long.
    """

    kind = "accuracy"
    defenses: tuple[str, ...]
    attacks: Mapping[str, str] = field(default_factory=dict)
    eps: float | str
    norm: str = "linf"
    count: int
    runs: int = 10
    adaptive_count: int = 0
    suite: str | None = None
    x: tuple[float, ...] = ()
    x_title: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", quantity("eps", self.eps))
        checks.whole("count", self.count, least=1)
        checks.whole("adaptive_count", self.adaptive_count, least=0)
        if self.suite is not None:
            checks.one_of("suite", self.suite, list_suites())
        named = list(self.defenses) if self.x else [NONE, *self.defenses]  # a table shows it in any case
        for text in self.defenses:
            if named.count(text) > 1:
                raise InvalidInputError(f"defenses={list(self.defenses)} holds {text!r} twice; give it once")
        if not self.defenses:
            raise InvalidInputError("defenses=[] holds no defense; give at least one")
        if bool(self.x) != any(_PLACE in text for text in self.defenses):
            raise InvalidInputError(
                f"x={list(self.x)} and defenses={list(self.defenses)}: values of x and {_PLACE} in a defense "
                "belong together; give both or none"
            )
        for key in ("natural", ADAPTIVE):
            if key in self.attacks:
                raise InvalidInputError(f"attacks has the key {key!r}, which is another column's; rename it")
        self._study(Options(), Target(), tuple(self.attacks.values()), protocol=True)

    @property
    def settled(self) -> list[tuple[float | None, str]]:
        """The value of x, and the defense with it filled in; a table begins with no defense at all."""
        if not self.x:
            return [(None, text) for text in (NONE, *self.defenses)]
        return [(x, text.replace(_PLACE, f"{x:g}")) for text in self.defenses for x in self.x]

    def studies(self, options: Options, target: Target) -> dict[str, Evaluation]:
        """The paper's protocol, and the adaptive suite on the first images."""
        plan = {PROTOCOL: (options.images(self.count), tuple(self.attacks.values()))}
        suite = options.adaptive or self.suite or _SUITES[options.on_gpu]
        if suite != NONE and self.adaptive_count:
            chosen = with_precision(suite, options.precision)
            plan[ADAPTIVE] = (options.images(self.adaptive_count), (chosen,))
        return {
            name: self._study(options, replace(target, limit=count), attacks, protocol=name == PROTOCOL)
            for name, (count, attacks) in plan.items()
        }

    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        stored = {
            name: Evaluation.read(home / name) for name in (PROTOCOL, ADAPTIVE) if is_begun(home / name)
        }
        found = {name: EvaluationSummary.of(recorded) for name, recorded in stored.items()}
        protocol, adaptive, paired = found.get(PROTOCOL), found.get(ADAPTIVE), None
        if protocol and adaptive:  # what is compared is compared on the same images
            whole, most = stored[PROTOCOL], _most_images(adaptive)
            seen = [record for record in whole.records if record.image < most]
            paired = EvaluationSummary.of(replace(whole, records=seen, seconds={}))
        columns = self._columns(protocol, adaptive)
        rows = [] if self.x else literature_rows(published, self.data, columns)
        for x, defense in self.settled:
            values = {
                column.key: self._value(x, defense, column, protocol, adaptive, paired, published)
                for column in columns
            }
            rows.append(
                Row(
                    defense=defense,
                    title=display_defense(defense),
                    series=display_name(defense),
                    x=x,
                    values=values,
                )
            )
        finished = protocol is not None and all(summary.complete for summary in found.values())
        return PartSummary(
            name=self.name,
            title=self.title,
            status="complete" if finished else "partial",
            data=protocol.manifest.data if protocol else None,
            classifier=protocol.manifest.classifier if protocol else None,
            eps=float(self.eps),
            norm=self.norm,
            x_title=self.x_title,
            columns=tuple(columns),
            rows=tuple(rows),
            seconds=sum(summary.seconds for summary in found.values()),
        )

    def _study(
        self, options: Options, target: Target, attacks: tuple[str, ...], *, protocol: bool
    ) -> Evaluation:
        own_batches = options.batch_norm.partition(":")[0] == BATCH
        kind = BatchEvaluation if own_batches else SharedEvaluation
        batch = BatchSettings.of(options.batch_norm).size if own_batches else _CHUNKS[options.on_gpu]
        defenses = dict.fromkeys(text for _, text in self.settled if protocol or text != NONE)
        return kind(
            target=target,
            defenses=tuple(defenses),
            attacks=attacks,
            norm=self.norm,
            eps=float(self.eps),
            runs=options.runs or self.runs,
            selection=1 if protocol else None,  # nothing is chosen among the paper's attacks
            seed=options.seed,
            batch=batch,
            batch_norm=options.batch_norm,
            shared=options.shared,
        )

    def _columns(
        self, protocol: EvaluationSummary | None, adaptive: EvaluationSummary | None
    ) -> list[Column]:
        levels = {threat.name: threat.level for threat in protocol.manifest.threats} if protocol else {}
        columns = [Column(key="natural", title="natural")]
        columns += [
            Column(key=key, title=_TITLES.get(key, key), level=levels.get(text))
            for key, text in self.attacks.items()
        ]
        if adaptive:
            columns.append(Column(key=ADAPTIVE, title=adaptive.manifest.attacks[0].name, level="adaptive"))
        return columns

    def _value(
        self,
        x: float | None,
        defense: str,
        column: Column,
        protocol: EvaluationSummary | None,
        adaptive: EvaluationSummary | None,
        paired: EvaluationSummary | None,
        published: Sequence[PublishedValue],
    ) -> Value:
        of_suite = column.key == ADAPTIVE
        attack = {"natural": NONE, ADAPTIVE: column.title}.get(column.key) or self.attacks[column.key]
        value = paper_value(published, data=self.data, defense=defense, measure=column.key, x=x)
        summary = adaptive if of_suite else protocol
        row = summary and summary.row(defense, attack)
        if row:
            value = replace(
                value, ours=row.mean, std=row.std, standard_error=row.standard_error, n=row.n, runs=row.runs
            )
        if paired and not of_suite and (same := paired.row(defense, attack)):
            value = replace(value, paired=same.mean, paired_n=same.n)
        return value


def _most_images(summary: EvaluationSummary) -> int:
    """How many images a row of attacks is over, at most."""
    return max((row.n for row in summary.rows if row.attack != NONE), default=0)

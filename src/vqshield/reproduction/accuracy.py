"""Accuracy of defended classifiers under the paper's attacks, and under attacks that know of the defense."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vqshield import checks
from vqshield.errors import InvalidInputError
from vqshield.reproduction.part import (
    Options,
    Part,
    Row,
    about,
    beside,
    given,
    literature,
    quantity,
    row_of,
    series,
    shown,
)
from vqshield.reproduction.published import Figure
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.studies.specification import NONE, EvaluationSettings
from vqshield.studies.summary import read_evaluation, summarise
from vqshield.suites import list_suites

PROTOCOL, ADAPTIVE = "protocol", "adaptive"
"""The two jobs: the paper's attacks on all images, and ours on some."""
PAIRED = "paired"
"""The first job's figures over the images of the second alone."""
SUITES = {True: "adaptive-v1", False: "adaptive-v1-quick"}
"""By whether there is a GPU."""
CHUNKS = {True: 250, False: 32}
"""Images at a time, by the same."""
PLACE = "{x}"


@dataclass(frozen=True, kw_only=True)
class AccuracyPart(Part):
    """defenses: as typed, with {x} where they run over the values of x (x_title: what those are).

    attacks: the paper's, by the name of their column; eps, norm: their budget. count: images; runs: draws of
    the defense. adaptive_count: images for the attacks that know of it; 0: none. suite: which attacks, where
    those that the device decides would take too long.
    """

    kind = "accuracy"
    defenses: tuple[str, ...]
    attacks: Mapping[str, str] = field(default_factory=dict)
    eps: float
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
        if bool(self.x) != any(PLACE in text for text in self.defenses):
            raise InvalidInputError(
                f"x={list(self.x)} and defenses={list(self.defenses)}: values of x and {PLACE} in a defense "
                "belong together; give both or none"
            )
        for key in ("natural", ADAPTIVE):
            if key in self.attacks:
                raise InvalidInputError(f"attacks has the key {key!r}, which is another column's; rename it")
        self._settings(Options(), tuple(self.attacks.values()), protocol=True)

    @property
    def settled(self) -> list[tuple[float | None, str]]:
        """The value of x, and the defense with it filled in; a table begins with no defense at all."""
        if not self.x:
            return [(None, text) for text in (NONE, *self.defenses)]
        return [(x, text.replace(PLACE, f"{x:g}")) for text in self.defenses for x in self.x]

    def jobs(self, options: Options, subject: SubjectRequest) -> dict[str, Job]:
        """The paper's protocol, and the adaptive suite on the first images."""
        plan = {PROTOCOL: (options.images(self.count), tuple(self.attacks.values()))}
        suite = options.adaptive or self.suite or SUITES[options.on_gpu]
        if suite != NONE and self.adaptive_count:
            plan[ADAPTIVE] = (options.images(self.adaptive_count), (suite,))
        return {
            name: Job(
                kind="evaluation",
                settings=self._settings(options, attacks, protocol=name == PROTOCOL),
                subject=replace(subject, limit=count),
                shared=options.shared,
            )
            for name, (count, attacks) in plan.items()
        }

    def summary(self, home: Path, figures: Sequence[Figure]) -> dict[str, Any]:
        """A row for each defense, a column for each attack."""
        begun = [name for name in (PROTOCOL, ADAPTIVE) if given(home / name)]
        stored = {name: read_evaluation(home / name) for name in begun}
        found = {name: summarise(what, seen, seconds=took) for name, (what, seen, took) in stored.items()}
        if len(found) == 2:  # what is compared is compared on the same images
            specification, seen, _ = stored[PROTOCOL]
            most = _most_images(found[ADAPTIVE])
            found[PAIRED] = summarise(specification, [record for record in seen if record.image < most])
        columns = self._columns(found)
        assert self.data is not None
        rows = [] if self.x else literature(figures, self.data, columns)
        for x, defense in self.settled:
            rows.append(self._row(x, defense, columns, found, figures))
        return {
            **(about(found[PROTOCOL]["specification"]) if PROTOCOL in found else {}),
            "eps": self.eps,
            "norm": self.norm,
            "x_title": self.x_title,
            "unit": "%",
            "columns": columns,
            "rows": rows,
            "complete": PROTOCOL in found and all(found[name]["complete"] for name in begun),
            "seconds": sum(found[name]["seconds"] for name in begun),
        }

    def _settings(self, options: Options, attacks: tuple[str, ...], *, protocol: bool) -> EvaluationSettings:
        defenses = dict.fromkeys(text for _, text in self.settled if protocol or text != NONE)
        return EvaluationSettings(
            defenses=tuple(defenses),
            attacks=attacks,
            norm=self.norm,
            eps=self.eps,
            runs=options.runs or self.runs,
            selection=1 if protocol else None,  # nothing is chosen among the paper's attacks
            seed=options.seed,
            batch=CHUNKS[options.on_gpu],
        )

    def _columns(self, found: Mapping[str, Any]) -> list[dict[str, Any]]:
        columns = [{"key": "natural", "title": "natural", "level": None}]
        levels = {
            threat["name"]: threat["level"]
            for name, summary in found.items()
            if name != PAIRED
            for entry in summary["specification"]["attacks"]
            for threat in entry["threats"]
        }
        columns += [
            {"key": key, "title": TITLES.get(key, key), "level": levels.get(text)}
            for key, text in self.attacks.items()
        ]
        if ADAPTIVE in found:
            suite = found[ADAPTIVE]["specification"]["attacks"][0]["name"]
            columns.append({"key": ADAPTIVE, "title": suite, "level": "adaptive"})
        return columns

    def _row(
        self,
        x: float | None,
        defense: str,
        columns: Sequence[Mapping[str, Any]],
        found: Mapping[str, Any],
        figures: Sequence[Figure],
    ) -> Row:
        assert self.data is not None
        cells = {}
        for column in columns:
            key = column["key"]
            name = ADAPTIVE if key == ADAPTIVE else PROTOCOL
            attack = {"natural": NONE, ADAPTIVE: column["title"]}.get(key) or self.attacks[key]
            cells[key] = {
                **beside(figures, data=self.data, defense=defense, measure=key, x=x),
                **_ours(found.get(name), defense, attack),
            }
            if name == PROTOCOL and PAIRED in found:
                same = _ours(found[PAIRED], defense, attack)
                cells[key] |= {"paired": same["ours"], "paired_n": same.get("n")}
        return row_of(defense, shown(defense), cells, x=x, of=series(defense))


TITLES = {
    "pgd": "PGD", "autoattack": "AutoAttack", "ste_pgd": "STE, PGD", "ste_autoattack": "STE, AutoAttack",
    "eot_pgd": "EOT, PGD", "eot_autoattack": "EOT, AutoAttack",
}  # fmt: skip


def _ours(summary: Mapping[str, Any] | None, defense: str, attack: str) -> dict[str, Any]:
    for row in summary["rows"] if summary else ():
        if (row["defense"], row["attack"]) == (defense, attack):
            return {
                "ours": row["mean"],
                **{name: row[name] for name in ("std", "standard_error", "n", "runs")},
            }
    return {"ours": None}


def _most_images(summary: Mapping[str, Any]) -> int:
    """How many images every figure of a job is over, at most."""
    return max((row["n"] for row in summary["rows"] if row["attack"] != NONE), default=0)

"""A part of an experiment: one data set and one way of measuring; subclasses are the ways."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vqshield import checks
from vqshield.errors import InvalidInputError
from vqshield.reproduction.published import DATA, Figure, find
from vqshield.runs.jobs import Job, SubjectRequest
from vqshield.runs.manifests import read_manifest
from vqshield.runs.records import AnyLine, RecordFolder
from vqshield.runs.study import Keyed
from vqshield.settings import Setting, format_value, parse_number, parse_spec
from vqshield.studies.specification import NONE
from vqshield.suites import list_suites

Row = dict[str, Any]
NAMES = {"randdisc": "RandDisc", "prd": "pRD", "swrd": "swRD", "none": "no defense"}
SYMBOLS = {"size": "s", "codes": "k", "beta": "β", "sigma": "σ", "tau": "τ"}
_NAME = re.compile(r"[\w-][\w.-]*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose of any experiment.

    limit: at most so many images of every part, runs: instead of those in the file; None: as it says.
    adaptive: the suite beside the paper's attacks; None: that of the device, "none": no such figure.
    """

    limit: int | None = None
    runs: int | None = None
    adaptive: str | None = None
    seed: int = 0
    on_gpu: bool = False
    shared: Path | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "runs"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        if self.adaptive is not None:
            checks.one_of("adaptive", self.adaptive, [*list_suites(), NONE])

    def images(self, planned: int) -> int:
        """How many images, where a file plans so many."""
        return planned if self.limit is None else min(planned, self.limit)


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """name: its folder. title: for people. data: of which data set; None: it needs none."""

    kind: ClassVar[str]
    needs_data: ClassVar[bool] = True
    name: str
    title: str
    data: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInputError(
                f"name={self.name!r} should be a folder's name: letters, digits, '-', '_' and '.'"
            )
        if self.data is not None or self.needs_data:
            checks.one_of("data", self.data, DATA)

    def home(self, out: Path, id: str) -> Path:
        """The folder of its records, below which every job has one."""
        return out / id / self.name

    @abstractmethod
    def jobs(self, options: Options, subject: SubjectRequest) -> dict[str, Job]:
        """What is to be done, by the name of its folder."""

    @abstractmethod
    def summary(self, home: Path, figures: Sequence[Figure]) -> dict[str, Any]:
        """What its records say so far, beside the published figures: what reports call a part.

        At least columns, rows and complete; data and classifier where there are records.
        """


def given(records: Path) -> bool:
    """Has a job begun?"""
    return (records / "manifest.json").is_file()


def recorded(
    folder: Path,
    cells: Callable[[Mapping[str, Any]], Sequence[Keyed]],
    parse: Callable[[bytes], AnyLine],
    summarise: Callable[[Mapping[str, Any], list[AnyLine]], dict[str, Any]],
) -> dict[str, Any]:
    """The summary of a job's records so far, and how long they took."""
    specification = read_manifest(folder)
    records = RecordFolder(folder, [cell.keys for cell in cells(specification)], parse)
    found = records.read()
    seconds = sum(records.seconds(found).values())
    return {**summarise(specification, found), "seconds": round(seconds, 1)}


def about(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Whose records these are, as a report shows it."""
    return {name: specification[name] for name in ("data", "classifier", "machine", "seed")}


def beside(
    figures: Iterable[Figure], *, data: str, defense: str, measure: str, x: float | None = None
) -> dict[str, Any]:
    """The paper's figure of a defense, as a row's figure holds it. The paper gives β in the text alone."""
    name, settings = parse_spec(defense)
    settings.pop("beta", None)
    found = find(figures, data=data, defense=typed(name, settings), measure=measure, x=x)
    return {"paper": found and found.value, "paper_std": found and found.std}


def typed(name: str, settings: Mapping[str, Setting]) -> str:
    """A defense as one types it."""
    pairs = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{name}:{pairs}" if pairs else name


def shown(defense: str) -> str:
    """A defense as the paper writes it: swRD (s=3, k=25)."""
    name, settings = parse_spec(defense)
    pairs = ", ".join(f"{SYMBOLS.get(key, key)}={format_value(value)}" for key, value in settings.items())
    return f"{NAMES.get(name, name)} ({pairs})" if pairs else NAMES.get(name, name)


def series(defense: str) -> str:
    """The curve that a defense belongs to."""
    return NAMES.get(parse_spec(defense)[0], defense)


def row_of(
    defense: str, title: str, figures: dict[str, Any], *, x: float | None = None, of: str | None = None
) -> Row:
    """A row of a report; of: the curve it belongs to."""
    return {"defense": defense, "title": title, "series": of, "x": x, "literature": False, "figures": figures}


def literature(figures: Iterable[Figure], data: str, columns: Sequence[Mapping[str, Any]]) -> list[Row]:
    """What others were published with, one row each."""
    rows: dict[str, Row] = {}
    keys = {column["key"] for column in columns}
    for each in figures:
        if each.literature is not None and each.data == data and each.measure in keys:
            row = rows.setdefault(each.literature, {**row_of("", each.literature, {}), "literature": True})
            row["figures"][each.measure] = {"paper": each.value, "paper_std": each.std, "ours": None}
    return list(rows.values())


def quantity(name: str, value: Any) -> float:
    """A number of a file: 0.31, or a fraction as text, "8/255"."""
    if isinstance(value, str):
        value = parse_number(name, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInputError(f'{name}={value!r} should be a number, or a fraction such as "8/255"')
    return float(value)

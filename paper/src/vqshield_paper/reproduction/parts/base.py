"""Part: one data set of an experiment and one way of measuring it; subclasses are the ways."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import list_suites
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting, parse_number, parse_spec
from vqshield.runs.batch_norm import RUNNING
from vqshield.runs.manifests import MANIFEST
from vqshield.runs.study import AnyStudy
from vqshield.runs.target import Target
from vqshield_paper.batch_statistics import check_batch_norm
from vqshield_paper.reproduction.model import Column, PartSummary, Row, Value
from vqshield_paper.reproduction.published import DATA, PublishedValue, find

_NAME = re.compile(r"[\w-][\w.-]*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose of any experiment.

    Attributes:
        limit: use at most N images of every data set (default: as the experiment says).
        runs: samples of the defense (default: as the experiment says, 10 in the paper).
        adaptive: suite in addition to the paper's attacks, or none (default: adaptive-v1 on a GPU, the quick
            one on a CPU).
        precision: precision of that suite's gradients; the paper's own attacks are float32 in any case.
        seed: seed of every sample of defenses and attacks.
        batch_norm: batch-norm statistics behind the defenses, of parts that measure accuracy alone: running
            (the checkpoint's), batch:size=100 (each batch's own; with attack=running the attacks use the
            checkpoint's), or calibrated (`vqshield calibrate`, on the training images or those of
            calibrated:data=cifar10,data_dir=DIR).
        on_gpu: whether the work runs on a GPU.
        shared: folder for images found against bare classifiers, for all parts.
    """

    limit: int | None = None
    runs: int | None = None
    adaptive: str | None = None
    precision: str = PRECISIONS[0]
    seed: int = 0
    batch_norm: str = RUNNING
    on_gpu: bool = False
    shared: Path | None = None

    def __post_init__(self) -> None:
        for name in ("limit", "runs"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)
        checks.one_of("precision", self.precision, PRECISIONS)
        check_batch_norm(self.batch_norm)
        if self.adaptive is not None:
            checks.one_of("adaptive", self.adaptive, [*list_suites(), NONE])

    def images(self, planned: int) -> int:
        """How many images, where a file plans that many."""
        return planned if self.limit is None else min(planned, self.limit)


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """name: its folder. title: for people. data: its data set; None: it needs none."""

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
        """The folder of its records, below which every study has one."""
        return out / id / self.name

    @abstractmethod
    def studies(self, options: Options, target: Target) -> Mapping[str, AnyStudy]:
        """What is to be measured, by the name of its folder."""

    @abstractmethod
    def summarise(self, home: Path, published: Sequence[PublishedValue]) -> PartSummary:
        """The results of its records so far, with the published values.

        Its status says whether the started studies are finished; the runner adds the rest.
        """


def is_begun(records: Path) -> bool:
    """Whether a folder holds a study."""
    return (records / MANIFEST).is_file()


def paper_value(
    published: Iterable[PublishedValue], *, data: str | None, defense: str, measure: str, x: float | None
) -> Value:
    """The paper's value of a defense; ours is still to come. The paper gives β in the text alone."""
    name, settings = parse_spec(defense)
    settings.pop("beta", None)
    found = find(published, data=str(data), defense=as_text(name, settings), measure=measure, x=x)
    return Value(paper=found.value, paper_std=found.std) if found else Value()


def as_text(name: str, settings: Mapping[str, Setting]) -> str:
    """A defense as one writes it."""
    pairs = ",".join(f"{key}={value}" for key, value in settings.items())
    return f"{name}:{pairs}" if pairs else name


def literature_rows(
    published: Iterable[PublishedValue], data: str | None, columns: Sequence[Column]
) -> list[Row]:
    """What others were published with, one row each."""
    found: dict[str, dict[str, Value]] = {}
    keys = {column.key for column in columns}
    for each in published:
        if each.literature is not None and each.data == data and each.measure in keys:
            value = Value(paper=each.value, paper_std=each.std)
            found.setdefault(each.literature, {})[each.measure] = value
    return [Row(defense="", title=name, literature=True, values=values) for name, values in found.items()]


def quantity(name: str, value: float | str) -> float:
    """A number of a file: 0.31, or a fraction as text, "8/255"."""
    return parse_number(name, value) if isinstance(value, str) else float(value)

"""Work as a description that fits into a message: any process can make the work itself from it.

A new kind of work is one line in _KINDS.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

from vqshield import checks
from vqshield.classifiers import is_source
from vqshield.data import SAMPLE_NAME
from vqshield.runs.study import Report, ResumableWork, Work
from vqshield.runs.target import BUNDLED, Subject, load_subject
from vqshield.studies.certification import Certification
from vqshield.studies.evaluation import Evaluation
from vqshield.studies.gallery import Gallery
from vqshield.studies.kl import DivergenceStudy
from vqshield.studies.worked_example import Example

Kind = Callable[..., Work[Any, Any]]
"""Makes work from settings, subject, folder and report; `shared`, too, where it has such a parameter."""

_KINDS: dict[str, Kind] = {
    "evaluation": Evaluation,
    "certification": Certification,
    "divergence": DivergenceStudy,
    "gallery": Gallery,
    "example": Example,
}


def kinds() -> list[str]:
    """The names of the kinds of work."""
    return list(_KINDS)


@dataclass(frozen=True, kw_only=True)
class SubjectRequest:
    """What load_subject takes. Paths become absolute: another process may stand in another folder."""

    data: str = SAMPLE_NAME
    data_dir: Path | None = None
    classifier: str = BUNDLED
    limit: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir).absolute())
        if not is_source(self.classifier):
            object.__setattr__(self, "classifier", str(Path(self.classifier).absolute()))

    def load(self) -> Subject:
        """The classifier and the images."""
        return load_subject(
            data=self.data,
            data_dir=self.data_dir,
            classifier=self.classifier,
            limit=self.limit,
            device=self.device,
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work: its kind, its settings, what it is about.

    shared: a folder of adversarial images for all work that can use the same ones, where the kind has any.
    """

    kind: str
    settings: Any
    subject: SubjectRequest
    shared: Path | None = None

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, _KINDS)
        if self.shared is not None:
            object.__setattr__(self, "shared", Path(self.shared).absolute())

    def work(self, subject: Subject | None, folder: Path, report: Report = lambda *_: None) -> Work[Any, Any]:
        """The work, on a subject that is loaded already, if it has one; its records are in the folder."""
        make = _KINDS[self.kind]
        takes_shared = "shared" in signature(make).parameters
        made = make(
            self.settings, subject, folder, report, **({"shared": self.shared} if takes_shared else {})
        )
        if isinstance(made, ResumableWork):
            made.recipe = self
        return made

    def rebuild(self, folder: Path) -> Work[Any, Any]:
        """The work with all that it needs, in whichever process this is."""
        return self.work(self.subject.load(), folder)

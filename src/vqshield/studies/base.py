"""What every study of a target shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

from torch import nn

from vqshield.plain import Json
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, Study
from vqshield.runs.target import ClassifierId, Target


class TargetManifest(Protocol):
    """What the manifest of a study of a target says, whatever else it says."""

    @property
    def classifier(self) -> ClassifierId:
        """Which classifier."""
        ...

    @property
    def machine(self) -> Mapping[str, Json]:
        """On which machine."""
        ...


AnyTargetManifest = TypeVar("AnyTargetManifest", bound=TargetManifest)


@dataclass(frozen=True, kw_only=True)
class TargetStudy(Study[AnyTargetManifest, AnyCell, AnyRecord]):
    """A study of a classifier and images.

    Attributes:
        target: the classifier and the images.
        shared: a folder that keeps images found against the bare classifier for other runs and processes.
    """

    target: Target = field(default_factory=Target)
    shared: Path | None = None

    def __post_init__(self) -> None:
        if self.shared is not None:  # other processes may stand in other folders
            object.__setattr__(self, "shared", Path(self.shared).absolute())

    @property
    def module(self) -> nn.Module:
        return self.target.model

    @property
    def travels(self) -> bool:
        return self.target.travels

    @cached_property
    def store(self) -> AdversarialStore:
        """The images that attacks on the bare classifier have found."""
        manifest = self.manifest
        return AdversarialStore(classifier=manifest.classifier, machine=manifest.machine, folder=self.shared)

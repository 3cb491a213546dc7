"""What every study of a target shares: its manifest, its defenses, and how forward passes are counted."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from torch import Tensor, nn

import vqshield
from vqshield.core.environment import environment
from vqshield.defenses import Defense
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.arguments import defense_from
from vqshield.runs.code import CodeId
from vqshield.runs.manifests import DefenseId, TargetManifest
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, CellProgress, Study
from vqshield.runs.target import Target

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
    package: ClassVar[str] = vqshield.__name__  # whose code measures

    def __post_init__(self) -> None:
        if self.shared is not None:  # other processes may stand in other folders
            object.__setattr__(self, "shared", Path(self.shared).absolute())

    @property
    def specs(self) -> tuple[str, ...]:
        """The spec strings of its defenses: its field `defenses`, or `defense`."""
        fields_of_study = vars(self)
        return fields_of_study.get("defenses") or (fields_of_study["defense"],)

    def build(self, spec: str) -> Defense | None:
        """The defense of a spec string, None for "none"; refuses those that the study is not for."""
        return defense_from(spec, seed=0)

    @cached_property
    def built(self) -> Mapping[str, Defense | None]:
        """Every defense by its spec string, built once for checks and the manifest.

        Samples come from others, with seeds of their own.
        """
        return {spec: self.build(spec) for spec in self.specs}

    @cached_property
    def manifest(self) -> AnyTargetManifest:
        """The study's own fields, and what `described` gives for the others."""
        self.target.check()
        image = self.target.images.floats(slice(1))
        for defense in filter(None, self.built.values()):
            defense.streams(image)  # refuses patches that do not fit into the images
        ids = [DefenseId.of(spec, defense, self.target) for spec, defense in self.built.items()]
        values = {
            "data": self.target.data_id,
            "classifier": self.target.classifier_id,
            "machine": environment(self.target.place),
            "defense": ids[0],
            "defenses": tuple(ids),
            "code": CodeId.of(list(self.built.values()), self.target.place, package=self.package),
            **self.described(),
        }
        names = [each.name for each in fields(self.manifest_type)]
        found = {name: values[name] if name in values else getattr(self, name) for name in names}
        return cast("AnyTargetManifest", self.manifest_type(**found))

    def described(self) -> Mapping[str, Any]:
        """Values of the manifest that are no field of the study, or another one than the study's."""
        return {}

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


@contextmanager
def counted(title: str, progress: CellProgress, *models: nn.Module) -> Iterator[None]:
    """Tell of every image that one of the models is asked about."""
    done = 0

    def count(_: object, __: object, logits: Tensor) -> None:
        nonlocal done
        done += len(logits)
        progress(title, done)

    with ExitStack() as hooks:
        for model in models:
            hooks.callback(model.register_forward_hook(count).remove)
        yield

"""What every study of a target shares."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor, nn

from vqshield.core.serialization import Json
from vqshield.defended import Defended
from vqshield.models.calling import check_rows, differ
from vqshield.models.draws import Draws, draw_predictions, outputs
from vqshield.runs.adversarial import AdversarialStore
from vqshield.runs.arguments import defense_from
from vqshield.runs.randomness import torch_seeded
from vqshield.runs.records import AnyRecord
from vqshield.runs.study import AnyCell, CellProgress, Study
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

    def classifier_behind(self, defense: str) -> nn.Module:
        """The classifier that answers behind a defense, by spec string."""
        return self.target.model

    def draws_behind(
        self, defense: str, images: Tensor, labels: Tensor, *, runs: int, seed: int, batch: int
    ) -> Draws:
        """The classifier's answers behind a defense, by text, in several runs; two, where those agree and the
        classifier is not known to be random.
        """
        model, shield = self.classifier_behind(defense), defense_from(defense, seed=seed)
        if shield is None and not self.manifest.classifier.random:
            with torch_seeded(seed):
                first, again = outputs(model, images, runs=2, batch=batch)
            if not differ(first, again):  # every run would say the same
                check_rows(first, len(images))
                return Draws(first.argmax(-1).cpu().expand(runs, -1), labels.cpu())
        if shield is not None:
            model = Defended(model, shield.to(images.device))
        with torch_seeded(seed):
            return draw_predictions(model, images, labels, runs=runs, batch=batch)


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

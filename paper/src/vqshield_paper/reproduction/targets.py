"""The images and the classifier for a data set of the paper: given, found in the cache, or bundled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vqshield.classifiers import BUNDLED
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.data import SAMPLE_NAME, cache_folder, list_datasets, load
from vqshield.runs.target import Target
from vqshield_paper.reproduction.published import DATA

_SAMPLED = "cifar10"
"""The data set whose sample and classifier are bundled."""
_WEIGHTS = {
    "mnist": "resnet18-mnist.safetensors",
    "cifar10": "resnet18-cifar10.safetensors",
    "cifar100": "wrn28_10-cifar100.safetensors",
}
"""What classifiers are called in the cache folder, as vqshield train names them."""


@dataclass(frozen=True, kw_only=True)
class ChosenTarget:
    """The target of a data set. stand_in: what is not the paper's, as text. missing: what is missing, in
    words; then nothing can be run.
    """

    target: Target
    stand_in: str | None = None
    missing: str | None = None


@dataclass(frozen=True, kw_only=True)
class TargetChoices:
    """By a data set of the paper: the reader's name, its folder, the classifier. What is not given is looked
    for in the cache folder; for CIFAR-10 the bundled sample and classifier are used, and reports say so.
    """

    readers: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    classifiers: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"

    @classmethod
    def from_options(
        cls,
        *,
        data: Iterable[str] = (),
        data_dir: Iterable[str] = (),
        classifier: Iterable[str] = (),
        needed: Iterable[str],
        device: str = "auto",
    ) -> "TargetChoices":
        """The choices as they are typed, NAME=VALUE.

        Args:
            data: other images for a data set, as in imagenet=nips17.
            data_dir: folder of the images: cifar10=DIR, or DIR where there is one data set.
            classifier: classifier, as for evaluate: cifar10=FILE, imagenet=timm:NAME.
            needed: the data sets that are needed.
            device: cpu, cuda, or auto: the GPU where there is one.
        """
        wanted = list(needed)
        readers = by_data("--data", data, wanted)
        for reader in readers.values():
            checks.one_of("--data", reader, list_datasets())
        folders = {name: Path(text) for name, text in by_data("--data-dir", data_dir, wanted).items()}
        for folder in folders.values():
            if not folder.is_dir():
                raise InvalidInputError(
                    f"--data-dir {folder} is not a folder; give the one that holds the files"
                )
        classifiers = by_data("--classifier", classifier, wanted)
        return cls(readers=readers, folders=folders, classifiers=classifiers, device=device)

    def choose(self, data: str | None) -> ChosenTarget:
        """The images and the classifier for a data set."""
        if data is None:
            return ChosenTarget(target=Target(device=self.device))
        reader, folder = self.readers.get(data, data), self.folders.get(data)
        classifier = self.classifiers.get(data) or _cached(data)
        standing, missing = [], []
        if folder is None and not _present(reader):
            if data == _SAMPLED and data not in self.readers:
                reader = SAMPLE_NAME
            else:
                missing.append(f"the images of {data} are missing; give --data-dir {data}=FOLDER")
        if classifier is None and data != _SAMPLED:
            missing.append(f"no classifier for {data}; give --classifier {data}=FILE")
        # Also for data that were asked for by name: a report outlives the command.
        if data == _SAMPLED and reader == SAMPLE_NAME:
            standing.append("the bundled sample replaces the test images of CIFAR-10")
        elif reader != data:
            standing.append(f"the images of {reader} replace those of {data}")
        if data == _SAMPLED and classifier in (None, BUNDLED):
            standing.append("the bundled small classifier replaces ResNet18")
        return ChosenTarget(
            target=Target(data=reader, data_dir=folder, classifier=classifier or BUNDLED, device=self.device),
            stand_in=("; ".join(standing) + ": expect other values than the paper's") if standing else None,
            missing="; ".join(missing) or None,
        )


def by_data(option: str, values: Iterable[str], needed: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE, several times; a VALUE alone is meant for the only data set that is needed."""
    found: dict[str, str] = {}
    only = list(needed)
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            if len(only) != 1:
                raise InvalidInputError(
                    f"{option}={text!r} does not say for which data set; write {option} NAME={text} with one "
                    f"of {', '.join(only or DATA)}"
                )
            name, value = only[0], text
        checks.one_of(f"the data set in {option}", name, DATA)
        if name not in only:
            raise InvalidInputError(
                f"{option} is given for {name}, which nothing here is about; give it for "
                f"{' or '.join(only) or 'experiments that have data'}, or leave it out"
            )
        if name in found:
            raise InvalidInputError(f"{option} is given twice for {name}; give it once")
        found[name] = value
    return found


def _cached(data: str) -> str | None:
    path = cache_folder() / _WEIGHTS.get(data, "none")
    return str(path) if path.is_file() else None


def _present(reader: str) -> bool:
    """Are there files in the cache folder? Damaged ones are: reading them says what is wrong."""
    try:
        load(reader, "test")
    except InvalidInputError:
        return False
    except VqshieldError:
        return True
    return True

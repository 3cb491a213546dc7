"""Which images and which classifier stand for a data set of the paper: given, found in the cache, bundled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vqshield import checks
from vqshield.data import SAMPLE_NAME, cache_folder, list_datasets, load
from vqshield.errors import InvalidInputError, VqshieldError
from vqshield.reproduction.published import DATA
from vqshield.runs.jobs import SubjectRequest
from vqshield.runs.target import BUNDLED

SAMPLED = "cifar10"
"""The data set of which a sample and a classifier are bundled."""
WEIGHTS = {
    "mnist": "resnet18-mnist.safetensors",
    "cifar10": "resnet18-cifar10.safetensors",
    "cifar100": "wrn28_10-cifar100.safetensors",
}
"""What classifiers are called in the cache folder, as vqshield train names them."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """By a data set of the paper: the reader's name, its folder, the classifier. What is not given is looked
    for in the cache folder; for CIFAR-10 the bundled sample and classifier stand in, and it is said.
    """

    readers: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    classifiers: Mapping[str, str] = field(default_factory=dict)
    device: str = "auto"

    def request(self, data: str | None) -> "Source":
        """What stands for a data set."""
        if data is None:
            return Source(request=SubjectRequest(device=self.device))
        reader, folder = self.readers.get(data, data), self.folders.get(data)
        classifier = self.classifiers.get(data) or _cached(data)
        standing, missing = [], []
        if folder is None and not _present(reader):
            if data == SAMPLED and data not in self.readers:
                reader = SAMPLE_NAME
            else:
                missing.append(f"the images of {data} are missing; give --data-dir {data}=FOLDER")
        if classifier is None and data != SAMPLED:
            missing.append(f"there is no classifier for {data}; give --classifier {data}=FILE")
        # Said of what somebody asked for, too: a report outlives the command.
        if data == SAMPLED and reader == SAMPLE_NAME:
            standing.append("the bundled sample stands in for the test images of CIFAR-10")
        elif reader != data:
            standing.append(f"the images of {reader} stand in for those of {data}")
        if data == SAMPLED and classifier in (None, BUNDLED):
            standing.append("the bundled small classifier stands in for ResNet18")
        return Source(
            request=SubjectRequest(
                data=reader, data_dir=folder, classifier=classifier or BUNDLED, device=self.device
            ),
            stand_in=("; ".join(standing) + ": expect other figures than the paper's") if standing else None,
            why="; ".join(missing) or None,
        )


@dataclass(frozen=True, kw_only=True)
class Source:
    """stand_in: what is not the paper's, in words. why: what is missing; then nothing can be run."""

    request: SubjectRequest
    stand_in: str | None = None
    why: str | None = None


def by_data(option: str, values: Iterable[str], needed: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE as typed, several times; a VALUE alone is meant for the only data set that is needed."""
    found: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals:
            only = list(needed)
            if len(only) != 1:
                raise InvalidInputError(
                    f"{option}={text!r} does not say for which data set; write {option} NAME={text} with one "
                    f"of {', '.join(only or DATA)}"
                )
            name, value = only[0], text
        checks.one_of(f"the data set in {option}", name, DATA)
        if name in found:
            raise InvalidInputError(f"{option} is given twice for {name}; give it once")
        found[name] = value
    return found


def sources(
    *,
    data: Iterable[str] = (),
    data_dir: Iterable[str] = (),
    classifier: Iterable[str] = (),
    needed: Iterable[str],
    device: str = "auto",
) -> Sources:
    """Sources as typed on the command line."""
    wanted = list(needed)
    readers = by_data("--data", data, wanted)
    for reader in readers.values():
        checks.one_of("--data", reader, list_datasets())
    folders = {name: Path(text) for name, text in by_data("--data-dir", data_dir, wanted).items()}
    for folder in folders.values():
        if not folder.is_dir():
            raise InvalidInputError(f"--data-dir {folder} is no folder; give the one that holds the files")
    return Sources(
        readers=readers,
        folders=folders,
        classifiers=by_data("--classifier", classifier, wanted),
        device=device,
    )


def _cached(data: str) -> str | None:
    path = cache_folder() / WEIGHTS.get(data, "none")
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

"""The files of a run: their names, the weights, the card that describes them, and how they come back."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vqshield.classifiers import Network, Normalised, is_source, load_classifier, save_classifier
from vqshield.core.environment import environment
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically, write_json
from vqshield.core.serialization import Json
from vqshield.core.tensors import tensors_to_bytes


@dataclass(frozen=True)
class RunFiles:
    """Where a run keeps its files: STEM.safetensors, its card STEM.json, and its checkpoint."""

    folder: Path
    stem: str

    @property
    def weights(self) -> Path:
        """The trained classifier."""
        return self.folder / f"{self.stem}.safetensors"

    @property
    def card(self) -> Path:
        """What the weights are, and how they were made."""
        return self.folder / f"{self.stem}.json"

    @property
    def checkpoint(self) -> Path:
        """What an interrupted run resumes from."""
        return self.folder / f"{self.stem}.checkpoint.safetensors"

    def save(self, model: Normalised, described: Mapping[str, str]) -> None:
        """Write a network of ours with all that rebuilds it, one from elsewhere as its weights alone."""
        if isinstance(model.network, Network):
            save_classifier(self.weights, model, described)
        else:
            write_atomically(self.weights, tensors_to_bytes(model.network.state_dict(), described))

    def saved(self, model: Normalised, device: torch.device) -> Normalised:
        """The model as the file gives it back: convolutions of networks of ours are rounded to fp16 there."""
        if not isinstance(model.network, Network):
            return model
        return load_classifier(self.weights, device=device)

    def write_card(
        self,
        model: Normalised,
        facts: Mapping[str, Json],
        *,
        device: torch.device,
        seconds: float,
        history: Sequence[Json] = (),
    ) -> dict[str, Json]:
        """Write the facts, the network, the size of its file, how long it took and where, and the epochs."""
        network, described = model.network, dict[str, Json](arch=type(model.network).__name__, options=None)
        if isinstance(network, Network):
            described = {"arch": network.arch, "options": network.options}
        card: dict[str, Json] = {
            **facts,
            "network": described,
            "bytes": self.weights.stat().st_size,
            "seconds": round(seconds, 3),
            **environment(device),
            **({"history": history} if history else {}),
        }
        write_json(self.card, card)
        return card

    def how_to_load(self, source: str, model: Normalised) -> str:
        """What loads the weights of a classifier that came from that source."""
        if isinstance(model.network, Network):
            return str(self.weights)
        source = source.partition("@")[0]
        if ":" in source:
            return f"{source}@{self.weights}"
        return f"load_state_dict of the network of {source}, with the tensors of {self.weights}"


def checkpoint_path(name: str, out: str | Path) -> Path:
    """Where the run that writes NAME.safetensors keeps its checkpoint."""
    return RunFiles(Path(out), name).checkpoint


def without_folders(text: str) -> str:
    """The name of a classifier, without the folder of its file."""
    if not is_source(text):
        return Path(text).name
    source, at, file = text.partition("@")
    return f"{source}@{Path(file).name}" if at else source


def file_stem(name: str | None, classifier: str, ending: str) -> str:
    """The stem of a run's files: the name given, or the classifier's without a folder and with an ending."""
    if name is None:
        source = without_folders(classifier)
        name = f"{re.sub(r'[^A-Za-z0-9_.]+', '-', source.removesuffix('.safetensors')).strip('-')}-{ending}"
    if not name or name != Path(name).name or name.startswith("."):
        raise InvalidInputError(f"name={name!r} should be the start of a file's name, without a folder")
    return name

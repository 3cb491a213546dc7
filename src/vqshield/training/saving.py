"""The weights of a finished run in a file, and how they come back from it."""

from collections.abc import Mapping
from pathlib import Path

import torch

from vqshield.classifiers import Network, Normalised, load_classifier, save_classifier
from vqshield.core.errors import VqshieldError
from vqshield.core.files import write_atomically
from vqshield.core.serialization import Json
from vqshield.core.tensors import tensors_to_bytes


def save_trained(path: Path, model: Normalised, described: Mapping[str, str]) -> None:
    """Write a network of ours with all that rebuilds it, one from elsewhere as its weights alone."""
    if isinstance(model.network, Network):
        save_classifier(path, model, described)
        return
    # Copies: layers may share a tensor, which safetensors does not store.
    weights = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in model.network.state_dict().items()
    }
    write_atomically(path, tensors_to_bytes(weights, described))


def as_saved(path: Path, model: Normalised, device: torch.device) -> Normalised:
    """The classifier that the file gives back: convolutions of networks of ours are rounded to fp16 there."""
    return load_classifier(path, device=device) if isinstance(model.network, Network) else model


def network_card(model: Normalised) -> dict[str, Json]:
    """What a card says of the network."""
    network = model.network
    if isinstance(network, Network):
        return {"arch": network.arch, "options": network.options}
    return {"arch": type(network).__name__, "options": None}


def check_finite_weights(tensors: Mapping[str, torch.Tensor], *, epoch: int, peak_lr: float) -> None:
    """Refuse to keep weights that the last steps made nan or infinite: no run could go on from them."""
    wrong = [name for name, held in tensors.items() if held.is_floating_point() and not held.isfinite().all()]
    if wrong:
        raise VqshieldError(
            f"after epoch {epoch} the weights {wrong[0]!r} hold nan or infinity; lower peak_lr={peak_lr} and "
            "start over"
        )

"""Classifiers in and out of safetensors files, the only format read: no pickle, nothing executed.

A file holds the network's weights (convolutions in fp16, everything else in fp32) and, as strings
in its metadata: mean and std (needed), arch, options and classes (inferred where absent), input (size, crop
and resize, for a classifier that has a size), and whatever the card adds.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from vqshield.classifiers.base import Network
from vqshield.classifiers.normalised import Normalised
from vqshield.classifiers.registry import build, list_classifiers
from vqshield.errors import FileFormatError, InvalidInputError
from vqshield.files import write_atomically

# A counter that only training without momentum reads; published files leave it out.
COUNTER = "num_batches_tracked"
# Files without an arch are known by a key that only that network has.
TELLTALES = {
    "layers.0.conv1.weight": "small",
    "layer4.0.conv1.weight": "resnet18",
    "layer1.0.shortcut.weight": "wrn28_10",
}


def save_classifier(path: str | Path, model: Normalised, card: Mapping[str, str] | None = None) -> None:
    """Write the classifier whole or not at all; ``card`` adds metadata such as the data set's name."""
    network = model.network
    if not isinstance(network, Network):
        raise InvalidInputError(
            f"{type(network).__name__} cannot be saved; it must be one of {', '.join(list_classifiers())}"
        )
    metadata = {
        **(card or {}),
        "arch": network.arch,
        "options": json.dumps(network.options),
        "classes": str(network.classes),
        "mean": json.dumps([round(value, 8) for value in model.mean.flatten().tolist()]),
        "std": json.dumps([round(value, 8) for value in model.std.flatten().tolist()]),
    }
    if model.size is not None:
        metadata["input"] = json.dumps({"size": model.size, "crop": model.crop, "resize": model.resize})
    write_atomically(Path(path), save(_stored_weights(network), metadata))


def read_classifier(path: str | Path, arch: str | None, device: str | torch.device) -> Normalised:
    """Return the classifier of a file: images in [0,1] -> logits, float32, frozen, in eval mode."""
    weights, metadata = read_weights(Path(path))
    mean, std = (_numbers(metadata, key, path) for key in ("mean", "std"))
    if "fc.weight" not in weights:
        raise FileFormatError(f"{path} has no 'fc.weight'; it holds {_some(sorted(weights))}")
    with torch.device("meta"):  # no memory and, above all, no random numbers for weights that are replaced
        network = build(
            arch or metadata.get("arch") or _guess_arch(weights, path),
            classes=len(weights["fc.weight"]),
            in_channels=len(mean),
            **_object(metadata, "options", path),
        )
    _fill(network, weights, path)
    try:
        model = Normalised(network, mean=mean, std=std, **_object(metadata, "input", path))
    except TypeError as error:
        raise FileFormatError(f"{path}: input={metadata['input']!r} is not size, crop and resize") from error
    return model.eval().requires_grad_(False).to(device)


def _stored_weights(network: nn.Module) -> dict[str, Tensor]:
    convolutions = {
        f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Conv2d)
    }
    stored = {}
    for key, value in network.state_dict().items():
        if key.endswith(COUNTER):
            continue
        stored[key] = (
            value.detach().cpu().to(torch.float16 if key in convolutions else torch.float32).contiguous()
        )
        if not stored[key].isfinite().all():
            raise InvalidInputError(
                f"weight {key!r} is not finite (after rounding to {stored[key].dtype}); not saved"
            )
    return stored


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    if not path.is_file():
        raise InvalidInputError(f"there is no weight file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise FileFormatError(f"{path} is not a safetensors file: {error}") from error


def _numbers(metadata: Mapping[str, str], key: str, path: str | Path) -> list[float]:
    if key not in metadata:
        raise FileFormatError(f"{path} has no {key!r} in its metadata; it has {_some(sorted(metadata))}")
    numbers = _json(metadata[key], key, path)
    if not isinstance(numbers, list) or not all(isinstance(number, int | float) for number in numbers):
        raise FileFormatError(f"{path}: {key}={metadata[key]!r} is not a list of numbers")
    return [float(number) for number in numbers]


def _object(metadata: Mapping[str, str], key: str, path: str | Path) -> dict[str, Any]:
    found = _json(metadata.get(key, "{}"), key, path)
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: {key}={metadata[key]!r} is not a JSON object")
    return found


def _json(text: str, key: str, path: str | Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}: {key}={text!r} is not JSON") from error


def _guess_arch(weights: Mapping[str, Tensor], path: str | Path) -> str:
    for key, arch in TELLTALES.items():
        if key in weights:
            return arch
    raise FileFormatError(
        f"{path} names no 'arch' and its keys tell none ({_some(sorted(weights))}); "
        f"give arch=, one of {', '.join(list_classifiers())}"
    )


def _fill(network: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    wanted = {key: value for key, value in network.state_dict().items() if not key.endswith(COUNTER)}
    given = {key: value for key, value in weights.items() if not key.endswith(COUNTER)}
    if missing := sorted(wanted.keys() - given.keys()):
        raise FileFormatError(f"{path} lacks {_some(missing)}")
    if surplus := sorted(given.keys() - wanted.keys()):
        raise FileFormatError(f"{path} has weights of another network: {_some(surplus)}")
    for key, value in given.items():
        if value.shape != wanted[key].shape:
            raise FileFormatError(
                f"{path}: {key!r} has shape {tuple(value.shape)}, expected {tuple(wanted[key].shape)}"
            )
    counters = {key: torch.tensor(0) for key in network.state_dict() if key.endswith(COUNTER)}
    network.to_empty(device="cpu")
    network.load_state_dict({key: value.float() for key, value in given.items()} | counters)


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3]) or "nothing"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"

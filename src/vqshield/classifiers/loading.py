"""Classifiers in and out of safetensors files, the only format read: no pickle, nothing executed.

A file holds the network's weights (convolutions in fp16, everything else in fp32) and, as strings
in its metadata: mean and std (needed), arch, options and classes (inferred where absent), input (size, crop
and resize, for a classifier that has a size), and whatever the card adds. Equal weights and equal metadata
give equal bytes, so that the SHA-256 of a file stands for its content.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vqshield.classifiers.base import Network
from vqshield.classifiers.normalised import Normalised
from vqshield.classifiers.registry import build, list_classifiers
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import parse_json, write_atomically
from vqshield.core.tensors import read_tensors, tensors_to_bytes

# A counter that only training without momentum reads; published files leave it out.
COUNTER = "num_batches_tracked"
# Buffers that take part in the arithmetic as weights do.
STATISTICS = ("mean", "std", "running_mean", "running_var")
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
    write_atomically(Path(path), tensors_to_bytes(_stored_weights(network), metadata))


def read_classifier(path: str | Path, arch: str | None, device: str | torch.device) -> Normalised:
    """The classifier of a file: images in [0,1] -> logits, float32, frozen, in eval mode."""
    weights, metadata = read_tensors(Path(path))
    mean, std = (_numbers(metadata, key, path) for key in ("mean", "std"))
    options, size = (_object(metadata, key, path) for key in ("options", "input"))
    if "fc.weight" not in weights:
        raise FileFormatError(f"{path} has no 'fc.weight'; it holds {_some(sorted(weights))}")
    if weights["fc.weight"].ndim != 2:
        raise FileFormatError(
            f"{path}: 'fc.weight' has shape {tuple(weights['fc.weight'].shape)}, expected (classes, features)"
        )
    if taken := options.keys() & {"name", "classes", "in_channels"}:
        raise FileFormatError(f"{path}: options set {_some(sorted(taken))}, which the weights decide")
    named, classes = arch or metadata.get("arch") or _guess_arch(weights, path), len(weights["fc.weight"])
    try:
        with torch.device("meta"):  # no memory and no random numbers for weights that are replaced
            network = build(named, classes=classes, in_channels=len(mean), **options)
        _fill(network, weights, path)
        model = Normalised(network, mean=mean, std=std, **size)
    except InvalidInputError as error:  # the settings that do not fit are the file's
        raise FileFormatError(f"{path}: {error}") from error
    except TypeError as error:
        said = metadata.get("input", "")[:200]
        raise FileFormatError(f"{path}: input={said!r} is not size, crop and resize") from error
    check_finite(model, str(path))
    return model.eval().requires_grad_(False).to(device)


def check_finite(model: nn.Module, what: str) -> None:
    """Refuse weights that hold nan or infinity: every image would get the same class, unnoticed.

    Raises:
        FileFormatError: naming the tensor. Attention masks may hold -infinity; they are buffers, not weights.
    """
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(values) or values.is_meta or not values.is_floating_point():
            continue
        wrong = ~values.detach().isfinite()
        if isinstance(values, nn.Parameter) or name.rpartition(".")[2] in STATISTICS:
            bad = int(wrong.sum())
        else:
            bad = int((wrong & ~values.isneginf()).sum())
        if bad:
            raise FileFormatError(
                f"{what}: {name!r} holds nan or infinity ({bad} of {values.numel()} values); "
                "all weights should be finite"
            )


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


def _numbers(metadata: Mapping[str, str], key: str, path: str | Path) -> list[float]:
    if key not in metadata:
        raise FileFormatError(f"{path} has no {key!r} in its metadata; it has {_some(sorted(metadata))}")
    numbers = parse_json(metadata[key], f"{path}: {key}")
    if not isinstance(numbers, list) or not all(map(_is_number, numbers)):
        raise FileFormatError(f"{path}: {key}={metadata[key][:200]!r} is not a list of finite numbers")
    return [float(number) for number in numbers]


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _object(metadata: Mapping[str, str], key: str, path: str | Path) -> dict[str, Any]:
    found = parse_json(metadata.get(key, "{}"), f"{path}: {key}")
    if not isinstance(found, dict):
        raise FileFormatError(f"{path}: {key}={metadata[key][:200]!r} is not a JSON object")
    return found


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
        if not value.is_floating_point():
            raise FileFormatError(f"{path}: {key!r} holds {value.dtype}; weights are floating-point numbers")
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

"""Write and read classifiers as safetensors files: no pickle, nothing executed.

A file holds the network's weights (convolutions in fp16, everything else in float32) and, as strings in its
metadata: mean and std (required), arch, options and classes (inferred where absent), input (size, crop and
resize, for a classifier that has a size), and what the card adds. Equal weights and equal metadata give equal
bytes, so the SHA-256 of a file identifies its content.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from vqshield.classifiers.folding import is_folded
from vqshield.classifiers.networks import Network, build, list_classifiers
from vqshield.classifiers.normalised import Normalised
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import parse_json, write_atomically
from vqshield.core.serialization import Json, from_plain
from vqshield.core.tensors import read_tensors, tensors_to_bytes

COUNTER = "num_batches_tracked"  # only training without momentum reads it; published files leave it out
STATISTICS = ("mean", "std", "running_mean", "running_var")  # buffers that logits are computed with
_NUMBERS = (tuple[float, ...], "a list of finite numbers")
_OBJECT = (Mapping[str, Json], "a JSON object")
ARCH_BY_KEY = {  # for files without an arch: keys that only one network has
    "layers.0.conv1.weight": "small",
    "layer4.0.conv1.weight": "resnet18",
    "layer1.0.shortcut.weight": "wrn28_10",
}


def save_classifier(path: str | Path, model: Normalised, card: Mapping[str, str] | None = None) -> None:
    """Write the classifier atomically; ``card`` adds metadata such as the data set's name."""
    network = model.network
    if not isinstance(network, Network):
        raise InvalidInputError(
            f"{type(network).__name__} cannot be saved; it must be one of {', '.join(list_classifiers())}"
        )
    if is_folded(network):
        raise InvalidInputError(
            "the batch norms of this classifier are folded into its convolutions, so that its file could not "
            "be loaded; save the classifier that it came from"
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
    mean, std = (_value(_NUMBERS, metadata.get(key), key, path) for key in ("mean", "std"))
    options, size = (_value(_OBJECT, metadata.get(key, "{}"), key, path) for key in ("options", "input"))
    if "fc.weight" not in weights:
        raise FileFormatError(f"{path} has no 'fc.weight'; it holds {_some(sorted(weights))}")
    if weights["fc.weight"].ndim != 2:
        raise FileFormatError(
            f"{path}: 'fc.weight' has shape {tuple(weights['fc.weight'].shape)}, expected (classes, features)"
        )
    if taken := options.keys() & {"name", "classes", "in_channels"}:
        raise FileFormatError(f"{path}: options set {_some(sorted(taken))}, which the weights decide")
    named = arch or metadata.get("arch") or _guess_arch(weights, path)
    try:
        with torch.device("meta"):  # no memory and no random numbers for weights that are replaced
            network = build(named, classes=len(weights["fc.weight"]), in_channels=len(mean), **options)
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
    """Raise FileFormatError where weights hold nan or infinity; attention masks may hold -infinity."""
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(values) or values.is_meta or not values.is_floating_point():
            continue
        wrong = ~values.detach().isfinite()
        if not isinstance(values, nn.Parameter) and name.rpartition(".")[2] not in STATISTICS:
            wrong &= ~values.isneginf()
        if bad := int(wrong.sum()):
            raise FileFormatError(
                f"{what}: {name!r} holds nan or infinity ({bad} of {values.numel()} values); "
                "all weights should be finite"
            )


def _stored_weights(network: nn.Module) -> dict[str, Tensor]:
    convolutions = {
        f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Conv2d)
    }
    stored = {}
    for key, value in _without_counters(network.state_dict()).items():
        dtype = torch.float16 if key in convolutions else torch.float32
        stored[key] = value.detach().cpu().to(dtype).contiguous()
        if not stored[key].isfinite().all():
            raise InvalidInputError(f"weight {key!r} is not finite (after rounding to {dtype}); not saved")
    return stored


def _without_counters(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in tensors.items() if not key.endswith(COUNTER)}


def _value(kind: tuple[Any, str], text: str | None, key: str, path: str | Path) -> Any:
    """A value of the metadata, of that type."""
    shape, called = kind
    if text is None:
        raise FileFormatError(f"{path} has no {key!r} in its metadata")
    value = parse_json(text, f"{path}: {key}")
    try:
        return from_plain(shape, value, key)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {key}={text[:200]!r} is not {called}") from error


def _guess_arch(weights: Mapping[str, Tensor], path: str | Path) -> str:
    for key, arch in ARCH_BY_KEY.items():
        if key in weights:
            return arch
    raise FileFormatError(
        f"{path} names no 'arch' and its keys fit no network ({_some(sorted(weights))}); "
        f"give arch=, one of {', '.join(list_classifiers())}"
    )


def _fill(network: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    expected, stored = _without_counters(network.state_dict()), _without_counters(weights)
    if missing := sorted(expected.keys() - stored.keys()):
        raise FileFormatError(f"{path} lacks {_some(missing)}")
    if surplus := sorted(stored.keys() - expected.keys()):
        raise FileFormatError(f"{path} has weights of another network: {_some(surplus)}")
    for key, value in stored.items():
        if not value.is_floating_point():
            raise FileFormatError(f"{path}: {key!r} holds {value.dtype}; weights are floating-point numbers")
        if value.shape != expected[key].shape:
            raise FileFormatError(
                f"{path}: {key!r} has shape {tuple(value.shape)}, expected {tuple(expected[key].shape)}"
            )
    counters = {key: torch.tensor(0) for key in network.state_dict().keys() - expected.keys()}
    network.to_empty(device="cpu")
    network.load_state_dict({key: value.float() for key, value in stored.items()} | counters)


def _some(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3]) or "nothing"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"

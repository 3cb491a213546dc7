"""Classifiers from elsewhere: timm, torchvision, or a user's own function, each imported when asked for.

``timm:NAME`` and ``torchvision:NAME`` take the library's pretrained weights, which it downloads and reads
its own way (timm mostly from safetensors, torchvision from torch files, tensors only). With ``@FILE`` behind
the name the weights come from that safetensors file instead, and nothing is downloaded; ``module:function``
takes the same.
"""

import difflib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from vqshield.classifiers.normalised import Normalised
from vqshield.core.entry_points import call_function, find_function
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.tensors import read_tensors
from vqshield.data.pictures import RESIZES


def from_timm(name: str, weights: Path | None) -> Normalised:
    """A model of timm, with the size, crop, mean and std of its pretrained configuration."""
    timm = _library("timm", name)
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    network = _made(f"timm:{name}", lambda: timm.create_model(name, pretrained=weights is None))
    _fill(network, weights)
    config = _library("timm.data", name).resolve_model_data_config(network)
    return Normalised(
        network,
        mean=list(config["mean"]),
        std=list(config["std"]),
        size=config["input_size"][1:],
        crop=float(config["crop_pct"]),
        resize=_known(config["interpolation"]),
    )


def from_torchvision(name: str, weights: Path | None) -> Normalised:
    """A model of torchvision, with the size, crop, mean and std of its default weights."""
    models = _library("torchvision.models", name)
    known = models.list_models(module=models)  # classifiers alone: the others live in modules below
    if name not in known:
        raise _unknown("torchvision", name, known)
    default = models.get_model_weights(name).DEFAULT
    network = _made(
        f"torchvision:{name}", lambda: models.get_model(name, weights=default if weights is None else None)
    )
    _fill(network, weights)
    way = default.transforms()
    side = way.crop_size[0]
    return Normalised(
        network,
        mean=list(way.mean),
        std=list(way.std),
        size=(side, side),
        crop=min(1.0, side / way.resize_size[0]),
        resize=_known(str(way.interpolation.value)),
    )


def from_function(module: str, function: str, weights: Path | None = None) -> Normalised:
    """What a function without arguments returns: a module that maps images in [0,1] to logits.

    Its preparation is its own affair; a ``Normalised`` brings its input size along.
    """
    text = f"{module}:{function}"
    make = find_function(text, called="classifier")
    model = call_function(make, text, called="classifier")
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"{module}:{function} returned {type(model).__name__}; it should return a torch.nn.Module"
        )
    ready = model if isinstance(model, Normalised) else Normalised(model, mean=[0.0], std=[1.0])
    _fill(ready.network, weights)
    return ready


def _unknown(library: str, name: str, known: Sequence[str]) -> InvalidInputError:
    near = difflib.get_close_matches(name, known, n=3) or sorted(known)[:3]
    return InvalidInputError(
        f"classifier={library}:{name}: {library} has no classifier {name!r} among {len(known)}; "
        f"near are {', '.join(near)}"
    )


def _library(package: str, name: str) -> ModuleType:
    try:
        return import_module(package)
    except (ImportError, RuntimeError) as error:  # torchvision beside a torch of another kind: RuntimeError
        first = package.partition(".")[0]
        raise InvalidInputError(
            f"classifier={first}:{name} needs {first}, which cannot be imported ({error}); "
            f"get it with: pip install {first}, in the version and kind that fit torch {torch.__version__}"
        ) from error


def _made(what: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn from the global generator
            return make()
    except Exception as error:  # whatever the library's downloader lets out
        raise InvalidInputError(
            f"{what} could not be made with its pretrained weights ({type(error).__name__}: {error}); "
            f"without a network, give them as a safetensors file: {what}@FILE"
        ) from error


def _fill(network: nn.Module, weights: Path | None) -> None:
    if weights is None:
        return
    try:
        network.load_state_dict(read_tensors(weights)[0])
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise FileFormatError(f"{weights} holds weights of another network: {said}") from error


def _known(interpolation: str) -> str:
    return interpolation if interpolation in RESIZES else RESIZES[0]

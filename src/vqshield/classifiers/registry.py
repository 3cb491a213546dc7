"""The networks by name."""

from typing import Any

from vqshield.classifiers.base import Network
from vqshield.classifiers.resnet import ResNet18
from vqshield.classifiers.small import SmallResNet
from vqshield.classifiers.wide_resnet import WideResNet28x10
from vqshield.core.checks import one_of
from vqshield.core.errors import InvalidInputError

# A new network: one file, one line here.
_NETWORKS: dict[str, type[Network]] = {
    network.arch: network for network in (SmallResNet, ResNet18, WideResNet28x10)
}


def list_classifiers() -> tuple[str, ...]:
    """The names that ``build`` knows."""
    return tuple(_NETWORKS)


def build(name: str, *, classes: int, in_channels: int = 3, **options: Any) -> Network:
    """A new network with random weights; ``options`` are the network's own settings."""
    one_of("classifier", name, _NETWORKS)
    try:
        return _NETWORKS[name](classes=classes, in_channels=in_channels, **options)
    except TypeError as error:
        raise InvalidInputError(f"options {options} do not fit classifier {name!r}: {error}") from error

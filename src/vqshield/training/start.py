"""The weights that a run begins with: drawn from the seed, or those of a file."""

import torch

from vqshield.classifiers import Network, Normalised, build, load_classifier
from vqshield.core.errors import InvalidInputError
from vqshield.data import ImageSet
from vqshield.training.measures import channel_statistics
from vqshield.training.settings import TrainSettings


def first_model(settings: TrainSettings, training: ImageSet) -> Normalised:
    """The classifier before the first step, on the CPU."""
    network = _fresh_network(settings, classes=len(training.classes), in_channels=training.images.shape[1])
    if settings.start is None:
        channels = training.images.shape[1]
        mean, std = [0.0] * channels, [1.0] * channels
        if settings.normalise:
            mean, std = channel_statistics(training.images)
        return Normalised(network, mean=mean, std=std)
    started = load_classifier(settings.start)
    assert isinstance(started.network, Network)
    found, wanted = _described(started.network), _described(network)
    if found != wanted:
        raise InvalidInputError(
            f"start={settings.start_name!r} holds {found}, this run trains {wanted}; "
            "give a file of that network, or the network of that file"
        )
    return started.requires_grad_(True)  # with its own mean and std: its weights are used to them


def _described(network: Network) -> str:
    options = "".join(f", {name}={value}" for name, value in network.options.items())
    return f"{network.arch} ({network.in_channels} channels, {network.classes} classes{options})"


def _fresh_network(settings: TrainSettings, *, classes: int, in_channels: int) -> Network:
    # Initialisers read the global CPU generator: fork it, and seed only it (torch.manual_seed
    # would seed the GPUs too).
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        return build(settings.arch, classes=classes, in_channels=in_channels, **settings.options)

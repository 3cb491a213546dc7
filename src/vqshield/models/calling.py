"""Calling a model that a user wrote: anything from images (B, q, h, w) to logits, with helpful errors."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError, NoGradientError
from vqshield.core.gradients import pass_gradient

_ROUNDING = 1e-4  # of the largest logit

Model = Callable[[Tensor], Tensor]
"""Images (B, q, h, w) → logits (B, classes), or (draws, B, classes) of a model that averages over draws."""

Value = TypeVar("Value")


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put a module into eval mode, and every submodule back into its own mode afterwards.

    In training mode logits depend on the other images of the batch, and every call changes the running
    statistics. A plain function has no mode.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


@contextmanager
def repeatable(model: object) -> Iterator[None]:
    """As `evaluating`, with arithmetic that gives the same bits every time: cuDNN may otherwise choose a
    faster way at every call, whose last bits differ.
    """
    cudnn = torch.backends.cudnn
    flags = {"enabled": cudnn.enabled, "allow_tf32": cudnn.allow_tf32}
    with cudnn.flags(benchmark=False, deterministic=True, **flags), evaluating(model):
        yield


@dataclass(frozen=True)
class Part:
    """Some images of a batch: their places in it, (b,), and how many images the whole batch has."""

    places: Tensor
    whole: int


_PART: ContextVar[Part | None] = ContextVar("part", default=None)
_EXACTLY: ContextVar[bool] = ContextVar("exactly", default=False)


def asking_about(part: Part) -> AbstractContextManager[None]:
    """A context where models get this part of a batch alone, or of the outer context's part. A random model
    that numbers its draws, as `Defended` does, gives every image the draw that it has in the whole batch.
    """
    outer = _PART.get()
    return _set(_PART, part if outer is None else Part(outer.places[part.places], outer.whole))


def asked_part() -> Part | None:
    """The part of a batch that models get; None: all of it."""
    return _PART.get()


def asking_exactly() -> AbstractContextManager[None]:
    """A context where a model that has faster, rounded logits gives the exact ones."""
    return _set(_EXACTLY, True)


def asked_exactly() -> bool:
    """Whether models should give exact logits."""
    return _EXACTLY.get()


@contextmanager
def _set(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


class Normalising(nn.Module):
    """images in [0, 1] → what a network gives for (images − mean) / std, channel by channel.

    mean and std are of each channel, in units of [0, 1].
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, network: Callable[[Tensor], object], *, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise InvalidInputError(f"mean={list(mean)} and std={list(std)} must be of one length, not 0")
        self.network = network
        for name, channels in (("mean", mean), ("std", std)):
            values = torch.tensor(channels, dtype=torch.float32)
            if not bool(values.isfinite().all()):
                raise InvalidInputError(f"{name}={values.tolist()} must be finite in every channel")
            self.register_buffer(name, values.reshape(1, -1, 1, 1))
        if not bool((self.std > 0).all()):
            raise InvalidInputError(f"std={list(std)} must be positive in every channel")

    def forward(self, images: Tensor) -> Any:
        given, expected = images.shape[-3], self.mean.shape[1]
        if expected not in (1, given):  # torch would silently make three channels of a grey image
            raise InvalidInputError(
                f"images of {given} channels cannot be normalised by a mean and std of {expected}"
            )
        if images.requires_grad and torch.is_grad_enabled():
            images = pass_gradient(images, images.detach())
        return self.network((images - self.mean) / self.std)


def fold_norms(network: nn.Module) -> None:
    """Fold batch norms into the convolutions before them, in place: the same function in eval mode, up to
    rounding. A module names its own pairs as `folds`: (convolution, norm).
    """
    for module in list(network.modules()):
        for conv_name, norm_name in getattr(module, "folds", ()):
            conv, norm = getattr(module, conv_name), getattr(module, norm_name)
            done = isinstance(norm, nn.Identity)
            if done or norm.training or norm.running_mean is None:  # the last two follow the batch
                continue
            with torch.no_grad():
                fused = fuse_conv_bn_eval(conv, norm)
            setattr(module, conv_name, fused.requires_grad_(conv.weight.requires_grad))
            setattr(module, norm_name, nn.Identity())


def ask(model: Model, images: Tensor) -> Tensor:
    """The model's output, a floating-point tensor, or the output's `.logits`, as of transformers' models."""
    if torch.compiler.is_compiling():
        traced: Tensor = _logits_in(model(images))
        return traced
    try:
        found = _logits_in(model(images))
    except RuntimeError as error:
        _explain_mismatch(model, images, error)
        raise
    if not isinstance(found, Tensor):
        raise InvalidInputError(
            f"the classifier gives a {type(found).__name__}; it should give its logits, a tensor (B, classes)"
        )
    if not found.is_floating_point():
        raise InvalidInputError(f"the classifier gives values of dtype {found.dtype}; logits are floats")
    return found


def _logits_in(answer: object) -> Any:
    return answer if isinstance(answer, Tensor) else getattr(answer, "logits", answer)


def ask_for_logits(model: Model, images: Tensor) -> Tensor:
    """As `ask`; the output must be (…, B, classes), finite, and have a gradient where the images need one."""
    logits = ask(model, images)
    check_rows(logits, len(images))
    check_finite(logits)
    if images.requires_grad and torch.is_grad_enabled() and not logits.requires_grad:
        raise _no_gradient(" (does it call detach, numpy or torch.no_grad?)")
    return logits


def differ(first: Tensor, second: Tensor) -> bool:
    """Whether two outputs for the same images differ by more than rounding: then the model is random."""
    return float((first - second).abs().max()) > _ROUNDING * max(float(first.abs().max()), 1.0)


def check_rows(logits: Tensor, count: int) -> None:
    """Refuse what is not (…, B, classes) for B = count images."""
    if logits.dim() < 2 or logits.shape[-2] != count or logits.shape[-1] == 0:
        raise InvalidInputError(
            f"logits of shape {tuple(logits.shape)} should be (..., {count}, classes): a row per image"
        )


def check_finite(logits: Tensor) -> None:
    """Refuse logits (…, B, classes) with nan or infinity."""
    if torch.compiler.is_compiling() or bool(torch.isfinite(logits).all()):
        return
    rows = (~torch.isfinite(logits)).any(-1)
    images = rows.reshape(-1, rows.shape[-1]).any(0)
    raise InvalidInputError(
        f"logits of {int(images.sum())} of {len(images)} images contain nan or infinity, image "
        f"{int(images.nonzero()[0])} the first; are the classifier's weights, mean and std all finite?"
    )


def gradient(values: Tensor, images: Tensor) -> Tensor:
    """The gradient of the sum of the values towards the images."""
    slope: Tensor | None = None
    if values.requires_grad:
        (slope,) = torch.autograd.grad(values.sum(), images, allow_unused=True)
    if slope is None:
        raise _no_gradient(": they do not depend on them as far as torch can tell")
    return slope


def _no_gradient(why: str) -> NoGradientError:
    return NoGradientError(
        f"the classifier's logits have no gradient towards the images{why}; an attack that follows gradients "
        "needs one, square and noise do not"
    )


def own_dtype(classifier: object, usual: torch.dtype) -> torch.dtype:
    """The dtype of the classifier's parameters, or the usual one if it has none."""
    parameters = classifier.parameters() if isinstance(classifier, nn.Module) else ()
    return next((weight.dtype for weight in parameters if weight.is_floating_point()), usual)


class InOwnDtype(nn.Module):
    """A network that computes in the dtype of its parameters and gives logits in float32 at least."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = network.training

    def forward(self, images: Tensor) -> Tensor:
        logits = ask(self.network, images.to(own_dtype(self.network, images.dtype)))
        return logits.to(torch.promote_types(images.dtype, torch.float32))


def taking(model: nn.Module, images: Tensor) -> nn.Module:
    """The model; `InOwnDtype` where it cannot take the images' dtype itself. Checks its weights first."""
    check_weights(model)
    if own_dtype(model, images.dtype) == images.dtype:
        return model
    try:
        with torch.no_grad(), evaluating(model):
            ask(model, images)
    except InvalidInputError:
        return InOwnDtype(model)
    return model


def check_weights(model: nn.Module) -> None:
    """Refuse a model whose weights have no values, or are quantized: attacks would see a zero gradient."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch.ao.nn.") and "quantized" in type(module).__module__:
            raise InvalidInputError(
                f"the classifier's layer {name!r} is a quantized {type(module).__name__}, which has no "
                "gradient; give the network from before its quantization"
            )
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InvalidInputError(
                f"the classifier's {name} is on the device meta, which holds no values; load its weights "
                "first: classifier.to_empty(device='cpu'), then load_state_dict"
            )


def _explain_mismatch(model: Model, images: Tensor, error: RuntimeError) -> None:
    """Raise instead of torch's message where dtype or device of images and classifier differ."""
    for parameter in model.parameters() if isinstance(model, nn.Module) else ():
        if parameter.is_floating_point() and parameter.dtype != images.dtype:
            full = parameter.dtype in checks.IMAGE_DTYPES
            which, dtype = ("images", parameter.dtype) if full else ("classifier", images.dtype)
            raise InvalidInputError(
                f"images of dtype {images.dtype} cannot be given to a classifier of dtype {parameter.dtype}; "
                f"convert the {which}: {which}.to({dtype})"
            ) from error
        if parameter.device != images.device:
            raise InvalidInputError(
                f"images on {images.device} cannot be given to a classifier on {parameter.device}; "
                "move one of them with .to(device)"
            ) from error

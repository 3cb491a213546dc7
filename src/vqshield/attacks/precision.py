"""Classifiers in less than full precision: wrappers for attacks that ask thousands of times.

An attack needs thousands of directions, or of answers to choose its next question by; the answers that choose
between attacks and are reported are few, and have to be exact. So one wrapper computes in less precision only
where a gradient is asked for, and the other is for attacks without gradients alone.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vqshield.attacks import PRECISIONS
from vqshield.core import checks
from vqshield.models.calling import Model, ask, asked_exactly, differ, fold_norms

_WARM_UPS = 2  # passes before a capture: libraries choose and set up their kernels in the first ones
_LEAST_ROWS = 32  # of a captured pass
_SMALL = 2**19  # pixels: a GPU gains little by computing fewer in bfloat16 (512 images of 32×32)


class _Fast(nn.Module):
    """A classifier, and its layers in the precision given."""

    def __init__(self, classifier: Model, precision: str) -> None:
        super().__init__()
        self.classifier = classifier
        self.precision = checks.one_of("precision", precision, PRECISIONS)
        self.training = getattr(classifier, "training", False)
        self._layers: dict[str, _Layers] = {}

    def _layers_in(self, precision: str) -> "_Layers":
        if precision not in self._layers:
            self._layers[precision] = _prepared(self.classifier, precision)
        return self._layers[precision]


class FastGradients(_Fast):
    """A classifier with the same answers, whose gradients are computed faster.

    Where images ask for no gradient it is the classifier as it is. Where they do, its layers run in the
    precision given, channels last, norms folded into convolutions where it says how, and on a GPU small
    batches as a captured sequence of kernels (a CUDA graph). The gradient, and the logits that the loss is
    taken of, are float32 again.

    Args:
        classifier: images in [0, 1] → logits. Changes of its weights after the first gradient are not seen.
        precision: "tf32" rounds the factors of matrix products and convolutions to 10 bits on GPUs that can,
            "bf16" computes in bfloat16 (torch.autocast), but for small batches on a GPU, which are tf32,
            since they gain nothing by more rounding. "float32" changes nothing. Beware: torch lets cuDNN's
            convolutions use tf32 by default, so that "float32" is that on a GPU, unless
            torch.backends.cudnn.allow_tf32 is False.
        most_captured: pixels of the largest batch that is captured on a GPU, 256 images of 32×32 by default;
            0: none is. What a captured pass works in stays reserved as long as the classifier lives.

    Example:
        >>> fast = vq.attacks.FastGradients(classifier, "bf16")
        >>> torch.equal(fast(images), classifier(images))
        True
        >>> attack = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=10)
        >>> found = attack(fast, images, labels)
        >>> int((classifier(found).argmax(1) == labels).sum())
        0
    """

    def __init__(self, classifier: Model, precision: str, *, most_captured: int = 2**18) -> None:
        super().__init__(classifier, precision)
        self._most_captured = checks.whole("most_captured", most_captured, least=0)

    def forward(self, images: Tensor) -> Tensor:
        """The classifier's logits."""
        if not (images.requires_grad and torch.is_grad_enabled()) or self.precision == PRECISIONS[0]:
            return ask(self.classifier, images)
        small = images.is_cuda and images[:, 0].numel() <= _SMALL
        layers = self._layers_in("tf32" if small else self.precision)
        rows, logits = _rounded_up(len(images)), None
        if images.is_cuda and rows * images[0, 0].numel() <= self._most_captured:
            logits = layers.graphs.logits(images, rows)
        if logits is None:
            logits = layers.compute(images)
        return _after_hooks(self.classifier, images, logits)


class FastAnswers(_Fast):
    """A classifier whose answers are computed faster, for attacks that ask for answers alone.

    Its layers are those of `FastGradients`; the logits are float32 again, and differ by rounding. Where
    images ask for a gradient, or an attack for exact answers, it is the classifier as it is. Square and RayS
    ask exactly where they choose between what they found, and always of a model that is not random, whose
    small differences mean something.

    Args:
        classifier: images in [0, 1] → logits. Changes of its weights after the first answer are not seen.
        precision: as of `FastGradients`; "bf16" is bfloat16 for small batches too.

    Example:
        >>> fast = vq.attacks.FastAnswers(classifier, "bf16")
        >>> torch.allclose(fast(images), classifier(images), atol=0.2)
        True
        >>> attack = vq.attacks.Square(ball=vq.attacks.Linf(8 / 255), queries=20)
        >>> attack(fast, images, labels).shape
        torch.Size([8, 3, 32, 32])
    """

    def forward(self, images: Tensor) -> Tensor:
        """The classifier's logits."""
        gradient = images.requires_grad and torch.is_grad_enabled()
        if gradient or asked_exactly() or self.precision == PRECISIONS[0]:
            return ask(self.classifier, images)
        return _after_hooks(self.classifier, images, self._layers_in(self.precision).compute(images))


class _Layers:
    """A classifier as its kernels read it fastest, and the passes through it that were captured."""

    def __init__(self, classifier: Model, precision: str) -> None:
        self._classifier, self._precision = _laid_out(classifier, precision), precision
        self.graphs = _Graphs(self.compute)

    def compute(self, images: Tensor) -> Tensor:
        """The logits."""
        with _reduced(self._precision, images.device.type):
            answer = self._classifier(images.contiguous(memory_format=torch.channels_last))
        # Not about the classifier: where it fails, its weights of another dtype are not why.
        return ask(lambda _: answer, images).to(images.dtype)


_LAYERS: WeakKeyDictionary[nn.Module, dict[str, tuple[object, _Layers]]] = WeakKeyDictionary()
"""By classifier and precision, with what its weights were then: attack follows attack on the same one."""


def _prepared(classifier: Model, precision: str) -> _Layers:
    if not isinstance(classifier, nn.Module):
        return _Layers(classifier, precision)
    weights = [(each.data_ptr(), each._version) for each in classifier.parameters()]
    # By value: every attack puts buffers back where they were, which counts as a change of them.
    sums = [each.double().sum() for each in classifier.buffers()]
    now = classifier.training, weights, torch.stack(sums).tolist() if sums else []
    known = _LAYERS.setdefault(classifier, {})
    if precision not in known or known[precision][0] != now:
        known[precision] = now, _Layers(classifier, precision)
    return known[precision][1]


def _laid_out(classifier: Model, precision: str) -> Model:
    """A copy with its weights channels last; the classifier itself where it is none that can be copied."""
    if not isinstance(classifier, nn.Module):
        return classifier
    # What has no weights is not copied: a random layer goes on counting its draws, and none is made twice.
    kept = {id(each): each for each in classifier.modules() if not each.state_dict()}
    try:
        copied = copy.deepcopy(classifier, kept)
    except (TypeError, RuntimeError):  # something in it holds a lock, a file or a tensor with a history
        return classifier.forward
    copied.requires_grad_(False)
    copied._forward_hooks.clear()  # those of the classifier are run, whoever is registered by then
    if not copied.training:
        fold_norms(copied)
    for module in copied.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        # autocast would round these at every call; norms and whatever else it leaves alone stay as they are.
        if precision == "bf16" and isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)
    return copied


def _after_hooks(classifier: Model, images: Tensor, logits: Tensor) -> Tensor:
    """What the classifier's own forward hooks make of the logits; one counts images for a progress bar."""
    for number, hook in list(getattr(classifier, "_forward_hooks", {}).items()):
        takes_more = number in getattr(classifier, "_forward_hooks_with_kwargs", {})
        found = hook(classifier, (images,), {}, logits) if takes_more else hook(classifier, (images,), logits)
        logits = logits if found is None else found
    return logits


@contextmanager
def _reduced(precision: str, device: str) -> Iterator[None]:
    """Products in that precision meanwhile."""
    if precision == "bf16":
        with torch.autocast(device, dtype=torch.bfloat16):
            yield
        return
    if device != "cuda":  # a CPU has no tf32
        yield
        return
    flags, before = torch.backends.cudnn, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with flags.flags(
            enabled=flags.enabled,
            benchmark=flags.benchmark,
            deterministic=flags.deterministic,
            allow_tf32=True,
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _rounded_up(count: int) -> int:
    """The next of 32, 48, 64, 96, 128, 192, …: few sizes to capture, and at most a third of them padding."""
    size = _LEAST_ROWS
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


@dataclass(frozen=True)
class _Graph:
    """The two captured passes of one size of batch, and the tensors that they read and write."""

    forward: Any
    backward: Any
    images: Tensor
    logits: Tensor
    slopes: Tensor
    found: Tensor


class _Graphs:
    """A pass through a classifier and back, captured once for each size of batch, and replayed.

    All captures share their memory: a replay overwrites what another left there. So it is known which pass
    the memory holds, and a backward pass that finds another one there repeats its own forward pass first.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self._compute = compute
        self._captured: dict[tuple[object, ...], _Graph | None] = {}
        self._pool: Any = None
        self.holds = 0  # the number of the forward pass whose values the memory holds; 0: none's
        self.passes = 0

    def logits(self, images: Tensor, rows: int) -> Tensor | None:
        """The logits, of a batch padded to that many rows; None where this classifier cannot be captured."""
        key = (rows, images.shape[1:], images.dtype, images.device)
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(images, rows)
            except RuntimeError:  # it is random, looks at values, or does what else no capture allows
                self._captured[key] = None
        graph = self._captured[key]
        if graph is None:
            return None
        found: Tensor = _Replayed.apply(images, self, graph)  # type: ignore[no-untyped-call]
        return found

    def _capture(self, images: Tensor, rows: int) -> _Graph:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self.holds = 0
        held = torch.zeros((rows, *images.shape[1:]), dtype=images.dtype, device=images.device)
        held[: len(images)] = images.detach()
        held.requires_grad_()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside), torch.enable_grad():
            answers = []
            for _ in range(_WARM_UPS):
                logits = self._compute(held)
                answers.append(logits.detach())
                slopes = torch.zeros_like(logits)
                torch.autograd.grad(logits, held, slopes)
            if differ(*answers):
                raise RuntimeError("a model that is random would repeat the draw that was captured")
            torch.cuda.synchronize()
            with _capturing(forward, self._pool):
                logits = self._compute(held)
            with _capturing(backward, self._pool):
                (found,) = torch.autograd.grad(logits, held, slopes)
        torch.cuda.current_stream().wait_stream(aside)
        return _Graph(forward, backward, held.detach(), logits.detach(), slopes, found)


@contextmanager
def _capturing(graph: Any, pool: Any) -> Iterator[None]:
    """As torch.cuda.graph, which also empties the allocator's cache: that costs more than a capture saves."""
    graph.capture_begin(pool=pool)
    try:
        yield
    finally:
        graph.capture_end()


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, graphs: _Graphs, graph: _Graph) -> Tensor:
        ctx.save_for_backward(images)
        ctx.graphs, ctx.graph = graphs, graph
        graphs.passes += 1
        ctx.number = graphs.holds = graphs.passes
        _ask_again(graph, images)
        return graph.logits[: len(images)].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *slopes: Any) -> tuple[Tensor, None, None]:
        graphs, graph, (images,) = ctx.graphs, ctx.graph, ctx.saved_tensors
        if graphs.holds != ctx.number:
            _ask_again(graph, images)
        graphs.holds = 0  # a backward pass takes its memory back from the forward pass
        graph.slopes.zero_()[: len(images)].copy_(slopes[0])
        graph.backward.replay()
        return graph.found[: len(images)].clone(), None, None


def _ask_again(graph: _Graph, images: Tensor) -> None:
    graph.images[: len(images)].copy_(images.detach())
    graph.forward.replay()

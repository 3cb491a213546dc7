"""Classifiers in less than full precision, for attacks that make thousands of queries.

The few logits that choose between attacks and are reported have to be exact. So `FastGradients` is less
precise only where a gradient is needed, and `FastAnswers` is for attacks without gradients.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
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
    """A classifier, and its layers by precision."""

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
    """A classifier with the same logits and faster gradients.

    For images that need a gradient, its layers run in less precision, channels last, with folded norms, and
    on a GPU small batches as a CUDA graph. The gradient, and the logits of the loss, are float32 again.

    Args:
        classifier: images in [0, 1] → logits. Changes of its weights after the first gradient have no effect.
        precision: "tf32" rounds the factors of matrix products and convolutions to 10 bits on GPUs that can,
            "bf16" computes in bfloat16 (torch.autocast), except small batches on a GPU, which are tf32 and
            would gain nothing. "float32" changes nothing; torch lets cuDNN's convolutions use tf32 by
            default, unless torch.backends.cudnn.allow_tf32 is False.
        most_captured: pixels of the largest batch that is captured on a GPU, 256 images of 32×32 by default;
            0: none. The memory of captured passes stays reserved as long as the classifier lives.

    Example:
        >>> fast = vq.attacks.FastGradients(classifier, "bf16")
        >>> torch.equal(fast(images), classifier(images))
        True
    """

    def __init__(self, classifier: Model, precision: str, *, most_captured: int = 2**18) -> None:
        super().__init__(classifier, precision)
        self._most_captured = checks.whole("most_captured", most_captured, least=0)

    def forward(self, images: Tensor) -> Tensor:
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
    """A classifier with faster logits, for attacks without gradients.

    Its layers are those of `FastGradients`; the logits are float32 again, up to rounding. Images that need a
    gradient, or attacks that need exact logits, get the classifier itself. Square and RayS need exact logits
    where they judge candidates, and always of a deterministic model, whose small differences count.

    Args:
        classifier: images in [0, 1] → logits. Changes of its weights after the first call have no effect.
        precision: as of `FastGradients`; "bf16" is bfloat16 for small batches too.

    Example:
        >>> fast = vq.attacks.FastAnswers(classifier, "bf16")
        >>> torch.allclose(fast(images), classifier(images), atol=0.2)
        True
    """

    def forward(self, images: Tensor) -> Tensor:
        gradient = images.requires_grad and torch.is_grad_enabled()
        if gradient or asked_exactly() or self.precision == PRECISIONS[0]:
            return ask(self.classifier, images)
        return _after_hooks(self.classifier, images, self._layers_in(self.precision).compute(images))


class _Layers:
    """A classifier in its fastest memory layout, and its captured passes."""

    def __init__(self, classifier: Model, precision: str) -> None:
        self._classifier, self._precision = _laid_out(classifier, precision), precision
        self.graphs = _Graphs(self.compute)

    def compute(self, images: Tensor) -> Tensor:
        with _reduced(self._precision, images.device.type):
            answer = self._classifier(images.contiguous(memory_format=torch.channels_last))
        return ask(lambda _: answer, images).to(images.dtype)  # its errors are not about weights' dtypes


_LAYERS: WeakKeyDictionary[nn.Module, dict[str, tuple[object, _Layers]]] = WeakKeyDictionary()
"""By classifier and precision, with the state of its weights then."""


def _prepared(classifier: Model, precision: str) -> _Layers:
    if not isinstance(classifier, nn.Module):
        return _Layers(classifier, precision)
    weights = [(weight.data_ptr(), weight._version) for weight in classifier.parameters()]
    # By value: every attack restores buffers, which torch counts as a change.
    sums = [buffer.double().sum() for buffer in classifier.buffers()]
    now = classifier.training, weights, torch.stack(sums).tolist() if sums else []
    known = _LAYERS.setdefault(classifier, {})
    if precision not in known or known[precision][0] != now:
        known[precision] = now, _Layers(classifier, precision)
    return known[precision][1]


def _laid_out(classifier: Model, precision: str) -> Model:
    """A copy with its weights channels last; the classifier itself if it cannot be copied."""
    if not isinstance(classifier, nn.Module):
        return classifier
    # Modules without weights are shared, so that a random layer continues to count its draws.
    kept = {id(module): module for module in classifier.modules() if not module.state_dict()}
    try:
        copied = copy.deepcopy(classifier, kept)
    except (TypeError, RuntimeError):  # something in it holds a lock, a file or a tensor with a history
        return classifier.forward
    copied.requires_grad_(False)
    copied._forward_hooks.clear()  # the classifier's own hooks run, as registered at each call
    if not copied.training:
        fold_norms(copied)
    for module in copied.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        # autocast would round these at every call; it does not round norms.
        if precision == "bf16" and isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)
    return copied


def _after_hooks(classifier: Model, images: Tensor, logits: Tensor) -> Tensor:
    """The logits after the classifier's own forward hooks; one counts images for a progress bar."""
    for number, hook in list(getattr(classifier, "_forward_hooks", {}).items()):
        takes_more = number in getattr(classifier, "_forward_hooks_with_kwargs", {})
        found = hook(classifier, (images,), {}, logits) if takes_more else hook(classifier, (images,), logits)
        logits = logits if found is None else found
    return logits


@contextmanager
def _reduced(precision: str, device: str) -> Iterator[None]:
    """A context where matrix products have that precision."""
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
        kept = {name: getattr(flags, name) for name in ("enabled", "benchmark", "deterministic")}
        with flags.flags(**kept, allow_tf32=True):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _rounded_up(count: int) -> int:
    """The next of 32, 48, 64, 96, 128, 192, …: few sizes to capture, at most a third of padding."""
    size = _LEAST_ROWS
    while size < count:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return size


class _Graph(NamedTuple):
    """The two captured passes of one size of batch, and the tensors that they read and write."""

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    images: Tensor
    logits: Tensor
    slopes: Tensor
    found: Tensor

    def evaluate(self, images: Tensor) -> None:
        self.images[: len(images)].copy_(images.detach())
        self.forward.replay()


class _Graphs:
    """Passes through a classifier and back, captured once for each size of batch, and replayed.

    All captures share their memory, and a replay overwrites it. So a backward pass repeats its own forward
    pass first if the memory holds another one.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        self._compute = compute
        self._captured: dict[tuple[object, ...], _Graph | None] = {}
        self._pool: Any = None
        self.holds = 0  # the number of the forward pass whose values the memory holds; 0: none's
        self.passes = 0

    def logits(self, images: Tensor, rows: int) -> Tensor | None:
        """The logits, by a batch padded to that many rows; None if the classifier cannot be captured."""
        key = (rows, images.shape[1:], images.dtype, images.device)
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(images, rows)
            except RuntimeError:  # it is random, depends on values, or is not allowed in a capture
                self._captured[key] = None
        graph = self._captured[key]
        if graph is None:
            return None
        replayed: Tensor = _Replayed.apply(images, self, graph)  # type: ignore[no-untyped-call]
        return replayed

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
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """As torch.cuda.graph, without emptying the allocator's cache, which costs more than a capture saves."""
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
        graph.evaluate(images)
        return graph.logits[: len(images)].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        graphs, graph, (images,) = ctx.graphs, ctx.graph, ctx.saved_tensors
        if graphs.holds != ctx.number:
            graph.evaluate(images)
        graphs.holds = 0  # a backward pass takes its memory back from the forward pass
        graph.slopes.zero_()[: len(images)].copy_(slopes[0])
        graph.backward.replay()
        return graph.found[: len(images)].clone(), None, None

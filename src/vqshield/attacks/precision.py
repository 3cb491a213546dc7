"""Gradients in less than full precision: a wrapper around a classifier, for attacks that follow gradients.

An attack needs a direction, and thousands of them; the answers that choose between images and are reported
are few, and have to be exact. So the wrapper computes in less precision only where a gradient is asked for.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vqshield import checks
from vqshield.models import Model, ask, fold_norms

PRECISIONS = ("float32", "tf32", "bf16")
"""What gradients may be computed in; the first is the default, and changes nothing."""

_WARM_UPS = 2  # passes before a capture: libraries choose and set up their kernels in the first ones
_LEAST_ROWS = 32  # of a captured pass


class FastGradients(nn.Module):
    """A classifier with the same answers, whose gradients are computed faster.

    Where images ask for no gradient it is the classifier as it is. Where they do, its layers run in the
    precision given, channels last, norms folded into convolutions where it says how, and on a GPU small
    batches as a captured sequence of kernels (a CUDA graph). The gradient, and the logits that the loss is
    taken of, are float32 again.

    Args:
        classifier: images in [0, 1] → logits. It is copied at the first gradient: later changes of its
            weights are not seen.
        precision: "tf32" rounds the factors of matrix products and convolutions to 10 bits on GPUs that can,
            "bf16" computes in bfloat16 (torch.autocast), "float32" changes nothing. Beware: torch lets
            cuDNN's convolutions use tf32 by default, so that "float32" is that on a GPU, unless
            torch.backends.cudnn.allow_tf32 is False.
        most_captured: images of the largest batch that is captured on a GPU; 0: none is.

    Raises:
        InvalidInputError: an unknown precision.

    Example:
        >>> fast = vq.attacks.FastGradients(classifier, "bf16")
        >>> torch.equal(fast(images), classifier(images))
        True
        >>> attack = vq.attacks.PGD(ball=vq.attacks.Linf(8 / 255), steps=10)
        >>> found = attack(fast, images, labels)
        >>> int((classifier(found).argmax(1) == labels).sum())
        0
    """

    def __init__(self, classifier: Model, precision: str, *, most_captured: int = 512) -> None:
        super().__init__()
        self.classifier = classifier
        self.precision = checks.one_of("precision", precision, PRECISIONS)
        self._most_captured = checks.whole("most_captured", most_captured, least=0)
        self.training = getattr(classifier, "training", False)
        self._layers: list[Model] = []  # a list: no submodule, whose parameters would be counted twice
        self._graphs: _Graphs | None = None

    def forward(self, images: Tensor) -> Tensor:
        """The classifier's logits."""
        if not (images.requires_grad and torch.is_grad_enabled()) or self.precision == PRECISIONS[0]:
            return ask(self.classifier, images)
        if not self._layers:
            self._layers.append(_prepared(self.classifier, self.precision))
        rows = _rounded_up(len(images))
        if images.is_cuda and rows <= self._most_captured:
            if self._graphs is None:
                self._graphs = _Graphs(self._compute)
            captured = self._graphs.logits(images, rows)
            if captured is not None:
                return captured
        return self._compute(images)

    def _compute(self, images: Tensor) -> Tensor:
        with _reduced(self.precision, images.device.type):
            last = images.contiguous(memory_format=torch.channels_last)
            logits = ask(self._layers[0], last)
        return logits.to(images.dtype)


def _prepared(classifier: Model, precision: str) -> Model:
    """A copy whose weights lie as its kernels read them; the classifier itself where it cannot be copied."""
    if not isinstance(classifier, nn.Module):
        return classifier
    try:
        copied = copy.deepcopy(classifier)
    except (TypeError, RuntimeError):  # something in it holds a lock, a file or a tensor with a history
        return classifier
    copied.requires_grad_(False)
    if not copied.training:
        fold_norms(copied)
    for module in copied.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        # autocast would round these at every call; norms and whatever else it leaves alone stay as they are.
        if precision == "bf16" and isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)
    return copied


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


class _Graphs:
    """A pass through a classifier and back, captured once for each size of batch, and replayed.

    All captures share their memory: a replay overwrites what another left there. So each says which pass the
    memory holds, and a backward pass that finds another one there repeats its own forward pass first.
    """

    def __init__(self, compute: Any) -> None:
        self._compute = compute
        self._captured: dict[tuple[int, ...], _Graph] = {}
        self._pool: Any = None
        self._usable = True
        self.holds = 0  # the number of the forward pass whose values the memory holds; 0: none's
        self.passes = 0

    def logits(self, images: Tensor, rows: int) -> Tensor | None:
        """The logits, of a batch padded to that many rows; None where this classifier cannot be captured."""
        if not self._usable:
            return None
        key = (rows, *images.shape[1:])
        if key not in self._captured:
            try:
                self._captured[key] = self._capture(images, rows)
            except RuntimeError:  # it looks at values, or does something else that no capture allows
                self._usable = False
                return None
        found: Tensor = _Replayed.apply(images, self, self._captured[key])  # type: ignore[no-untyped-call]
        return found

    def _capture(self, images: Tensor, rows: int) -> "_Graph":
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        self.holds = 0
        held = images.new_zeros(rows, *images.shape[1:]).requires_grad_()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside), torch.enable_grad():
            for _ in range(_WARM_UPS):
                logits = self._compute(held)
                torch.autograd.grad(logits, held, torch.zeros_like(logits))
        torch.cuda.current_stream().wait_stream(aside)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.enable_grad(), torch.cuda.graph(forward, pool=self._pool):
            logits = self._compute(held)
        slopes = torch.zeros_like(logits)
        with torch.cuda.graph(backward, pool=self._pool):
            (found,) = torch.autograd.grad(logits, held, slopes)
        return _Graph(forward, backward, held.detach(), logits.detach(), slopes.detach(), found)


class _Graph:
    """The two captured passes of one size of batch, and the tensors that they read and write."""

    def __init__(
        self, forward: Any, backward: Any, images: Tensor, logits: Tensor, slopes: Tensor, found: Tensor
    ) -> None:
        self.forward, self.backward = forward, backward
        self.images, self.logits, self.slopes, self.found = images, logits, slopes, found


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

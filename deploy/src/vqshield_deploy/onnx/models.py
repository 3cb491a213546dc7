"""The graph of a defended model: the shield's, and behind it the classifier's, which torch exports."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from vqshield.core import checks
from vqshield.core.entry_points import require
from vqshield.core.errors import InvalidInputError
from vqshield.defended import Defended, alteration_of
from vqshield.defenses import Defense
from vqshield.models.calling import evaluating
from vqshield.voting import Voting
from vqshield_deploy.onnx import DEFAULT_OPSET
from vqshield_deploy.onnx.graph import FLOAT, INT64, Graph, Proto, onnx, tensor
from vqshield_deploy.onnx.quantizers import shielded

_MOST_BYTES = 2**31  # of a protobuf message


def encoded(model: Defended | Defense | Voting, shape: tuple[int, int, int], opset: int) -> tuple[bytes, int]:
    """The file's content, and how many operators it has."""
    samples: int | None = None
    if isinstance(model, Voting):
        samples = model.samples
        model = _voted_model(model)
    defense = model.defense if isinstance(model, Defended) else model
    if not isinstance(defense, Defense):
        raise InvalidInputError(
            f"model should be a Defended model or a Defense, not {type(defense).__name__}; "
            "vqshield.defend makes one"
        )
    alteration = alteration_of(model if isinstance(model, Defended) else Defended(nn.Identity(), defense))
    if alteration is not None:
        raise InvalidInputError(
            f"the file would hold another model, as {alteration}; export a model as vq.defend made it"
        )
    checks.whole("opset", opset, least=DEFAULT_OPSET, below=onnx.defs.onnx_opset_version() + 1)
    sizes = tuple(checks.whole("shape", each, least=1) for each in shape)
    if len(sizes) != 3:
        raise InvalidInputError(f"shape={shape} should be (q, h, w): channels, rows and columns")
    defense.check(torch.zeros(1, *sizes))
    whole = _defense_model(defense, (sizes[0], sizes[1], sizes[2]), opset, samples or 1)
    if isinstance(model, Defended):
        whole = _joined(whole, _classifier_model(model.classifier, sizes, opset), "logits")
    if samples is not None:
        classes = whole.graph.output[0].type.tensor_type.shape.dim[1].dim_value
        whole = _joined(whole, _counting_model(classes, samples, opset), "shares")
    settings = ", ".join(f"{name}={value}" for name, value in defense.settings().items())
    whole.producer_name, whole.doc_string = "vqshield", f"{type(defense).__name__}({settings})"
    onnx.checker.check_model(whole, full_check=whole.ByteSize() < _MOST_BYTES)
    return whole.SerializeToString(), _count(whole.graph)


def _voted_model(voting: Voting) -> Defended:
    if voting.sequential:
        raise InvalidInputError("sequential=True cannot be exported to ONNX: it has no fixed samples")
    if voting.defense is None or not isinstance(voting.model, Defended):
        raise InvalidInputError("a Voting is exported to ONNX with a model as vq.defend made it")
    return voting.model


def _defense_model(defense: Defense, shape: tuple[int, int, int], opset: int, samples: int) -> Proto:
    graph = Graph()
    images, streams = "images", "streams"
    if samples > 1:  # sample k of an image with stream s has stream s·samples + k
        many = graph("Expand", graph.unsqueeze(images, 1), np.array([1, samples, 1, 1, 1]))
        first = graph("Mul", graph.unsqueeze(streams, 1), samples)
        images, streams = graph.reshape(many, -1, *shape), graph("Add", first, np.arange(samples)[None])
        streams = graph.reshape(streams, -1)
    found = shielded(graph, defense, images, streams, shape)
    graph.nodes.append(onnx.helper.make_node("Identity", [found], ["shielded"]))
    given = "batch" if samples == 1 else "images"  # the classifier's batch has all samples
    inputs = [
        tensor("images", FLOAT, [given, *shape]),
        tensor("seed", INT64, [1]),
        tensor("streams", INT64, [given]),
    ]
    return _model(graph.finish("vqshield", inputs, [tensor("shielded", FLOAT, ["batch", *shape])]), opset)


def _counting_model(classes: int, samples: int, opset: int) -> Proto:
    """Logits of the samples of each image, (B·samples, classes) → the share of each class, (B, classes)."""
    graph = Graph()
    answers = graph("ArgMax", "scores", axis=1, keepdims=1)
    votes = graph.cast(graph("Equal", answers, np.arange(classes)[None]), FLOAT)
    shares = graph("ReduceMean", graph.reshape(votes, -1, samples, classes), np.array([1]), keepdims=0)
    graph.nodes.append(onnx.helper.make_node("Identity", [shares], ["voted"]))
    inputs, outputs = (
        tensor("scores", FLOAT, ["batch", classes]),
        tensor("voted", FLOAT, ["images", classes]),
    )
    return _model(graph.finish("votes", [inputs], [outputs]), opset)


def _model(graph: Proto, opset: int) -> Proto:
    needed = [onnx.helper.make_opsetid("", opset)]
    oldest = onnx.helper.find_min_ir_version_for(needed)  # so that older runtimes can read the file
    return onnx.helper.make_model(graph, opset_imports=needed, ir_version=oldest)


def _classifier_model(classifier: nn.Module, shape: tuple[int, ...], opset: int) -> Proto:
    require("onnxscript", "./deploy[onnx]")
    if not isinstance(classifier, nn.Module):
        raise InvalidInputError(
            f"a classifier that is a {type(classifier).__name__} should be a torch module"
        )
    example = torch.full((2, *shape), 0.5).to(next(classifier.parameters(), torch.zeros(())).device)
    with evaluating(classifier), torch.no_grad(), _quiet():
        program = torch.onnx.export(
            classifier, (example,), dynamo=True, opset_version=opset, input_names=["pixels"],
            output_names=["logits"], dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False,
        )  # fmt: skip
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings about its own parts, and about libraries that it could serve."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(before)


def _joined(first: Proto, second: Proto, output: str) -> Proto:
    """The output of the first as the input of the second, whose output gets that name."""
    ours, theirs = ({each.domain: each.version for each in model.opset_import} for model in (first, second))
    opset = ours[""]
    if theirs.get("", opset) != opset or set(theirs) - {""}:
        raise InvalidInputError(f"the classifier needs operators of {theirs}; opset {opset} alone should do")
    renamed = onnx.compose.add_prefix(second, f"{output}/")
    first.ir_version = renamed.ir_version = max(first.ir_version, second.ir_version)
    joined = onnx.compose.merge_models(
        first, renamed, io_map=[(first.graph.output[0].name, renamed.graph.input[0].name)], name="vqshield"
    )
    joined.graph.node.append(onnx.helper.make_node("Identity", [joined.graph.output[0].name], [output]))
    joined.graph.output[0].name = output
    return joined


def _count(graph: Proto) -> int:
    inner = [each.g for node in graph.node for each in node.attribute if each.HasField("g")]
    return len(graph.node) + sum(map(_count, inner))

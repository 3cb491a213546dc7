"""Writing an ONNX graph as if calling functions: each operator is a call that gives its output's name."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vqshield.core.entry_points import require

onnx = require("onnx", "./deploy[onnx]")

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
INT64, UINT64, BOOL = onnx.TensorProto.INT64, onnx.TensorProto.UINT64, onnx.TensorProto.BOOL

Proto = Any
"""An object of onnx, which has no types: a node, a graph, a model."""
Value = str | int | float | npt.NDArray[Any]
"""A name in the graph, or a constant: a Python float becomes a double, an int an int64."""


class Graph:
    """The nodes and constants of a graph, or of the body of a loop: names are never used twice.

    Args:
        parent: the graph that a body belongs to, whose names it may use.
    """

    def __init__(self, parent: "Graph | None" = None) -> None:
        self.nodes: list[Proto] = []
        self.constants: list[Proto] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._count: list[int] = [0] if parent is None else parent._count

    def __call__(self, operator: str, *inputs: Value, **attributes: object) -> str:
        """Add a node; the name of its output."""
        return self.several(operator, 1, *inputs, **attributes)[0]

    def several(self, operator: str, outputs: int, *inputs: Value, **attributes: object) -> list[str]:
        """Add a node with several outputs; their names."""
        names = [self.name(operator.lower()) for _ in range(outputs)]
        sources = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(onnx.helper.make_node(operator, sources, names, **attributes))
        return names

    def name(self, stem: str) -> str:
        self._count[0] += 1
        return f"{stem}_{self._count[0]}"

    def constant(self, value: Value) -> str:
        """The name of a constant; equal ones are kept once."""
        array = np.asarray(value)
        if array.dtype == np.int32:
            array = array.astype(np.int64)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self.name("constant")
            self.constants.append(onnx.numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    def cast(self, value: Value, kind: int) -> str:
        return self("Cast", value, to=kind)

    def reshape(self, value: Value, *shape: int) -> str:
        """0 keeps a dimension, −1 is whatever is left."""
        return self("Reshape", value, np.array(shape))

    def slice(self, value: Value, axis: int, start: int, stop: int) -> str:
        return self("Slice", value, *(np.array([each]) for each in (start, stop, axis)))

    def unsqueeze(self, value: Value, *axes: int) -> str:
        return self("Unsqueeze", value, np.array(axes))

    def sum(self, value: Value, axis: int, *, keep: bool = False) -> str:
        return self("ReduceSum", value, np.array([axis]), keepdims=int(keep))

    def finish(self, name: str, inputs: Sequence[Proto], outputs: Sequence[Proto]) -> Proto:
        """The whole as onnx's own object."""
        return onnx.helper.make_graph(self.nodes, name, inputs, outputs, self.constants)


def tensor(name: str, kind: int, shape: Sequence[int | str | None]) -> Proto:
    """The declaration of an input or output."""
    return onnx.helper.make_tensor_value_info(name, kind, list(shape))

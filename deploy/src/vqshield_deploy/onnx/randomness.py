"""vqshield.quantization.noise in ONNX operators: the same words from the same seed, stream, stage and index.

One run of Philox makes the words of all stages: a counter has the stage in it. Products of two 32-bit words
wrap modulo 2^64 in int64, which keeps every bit; shifts are of uint64: ONNX shifts unsigned numbers only.
"""

import math
from collections.abc import Mapping

import numpy as np

from vqshield.quantization.noise import KEY_STEPS, MULTIPLIERS, ROUNDS, WORD, Stage
from vqshield_deploy.onnx.graph import DOUBLE, INT64, UINT64, Graph

_SHIFT = np.array(32, dtype=np.uint64)


def random_words(graph: Graph, streams: str, counts: Mapping[Stage, int]) -> dict[Stage, list[str]]:
    """The first words of each stage in four lanes, (B, ⌈count/4⌉) int64 each: word 4·i + lane is number i.

    Args:
        graph: where the nodes go; it has an int64 input seed (1,).
        streams: name of an int64 value (B,).
        counts: how many words each stage needs.
    """
    blocks = {stage: -(-count // 4) for stage, count in counts.items() if count}
    indices = [graph("Range", 0, many, 1) for many in blocks.values()]
    stages = [graph("Expand", int(stage), np.array([many])) for stage, many in blocks.items()]
    c0, c1 = (each[0] if len(each) == 1 else graph("Concat", *each, axis=0) for each in (indices, stages))
    column = graph.unsqueeze(streams, 1)
    c2, c3 = graph("BitwiseAnd", column, WORD), graph("BitwiseAnd", _high(graph, column), WORD)
    k0, k1 = graph("BitwiseAnd", "seed", WORD), graph("BitwiseAnd", _high(graph, "seed"), WORD)
    for _ in range(ROUNDS):
        low, high = graph("Mul", c0, MULTIPLIERS[0]), graph("Mul", c2, MULTIPLIERS[1])
        c0 = _mix(graph, _high(graph, high), c1, k0)
        c2 = _mix(graph, _high(graph, low), c3, k1)
        c1, c3 = high, low
        k0, k1 = (
            graph("BitwiseAnd", graph("Add", key, step), WORD)
            for key, step in zip((k0, k1), KEY_STEPS, strict=True)
        )
    lanes = [c0, graph("BitwiseAnd", c1, WORD), c2, graph("BitwiseAnd", c3, WORD)]
    found, first = {}, 0
    for stage, many in blocks.items():
        found[stage] = [graph.slice(lane, 1, first, first + many) for lane in lanes]
        first += many
    return found


def interleaved(graph: Graph, lanes: list[str], count: int) -> str:
    """Lanes (B, m) as one row of values in order, (B, count)."""
    stacked = graph("Concat", *(graph.unsqueeze(lane, 2) for lane in lanes), axis=2)
    return graph.slice(graph.reshape(stacked, 0, -1), 1, 0, count)


def normals(graph: Graph, lanes: list[str], count: int) -> str:
    """Standard normal values, (B, count) double, as noise.Draw.normals makes them of these words."""
    values = []
    for word, other in (lanes[:2], lanes[2:]):
        upper = graph.cast(graph("Div", word, 2), DOUBLE)  # words are not negative: dividing shifts
        argument = graph("Mul", graph("Add", upper, 0.5), 2.0**-31)
        radius = graph("Sqrt", graph("Mul", graph("Log", argument), -2.0))
        signed = graph("Sub", graph("BitwiseXor", other, 2**31), 2**31)  # bit 31 as the sign
        angle = graph("Mul", graph.cast(signed, DOUBLE), math.pi * 2.0**-31)
        values += [graph("Mul", radius, graph(wave, angle)) for wave in ("Cos", "Sin")]
    return interleaved(graph, values, count)


def _high(graph: Graph, value: str) -> str:
    """The upper 32 bits of all 64."""
    shifted = graph("BitShift", graph.cast(value, UINT64), _SHIFT, direction="RIGHT")
    return graph.cast(shifted, INT64)


def _mix(graph: Graph, high: str, counter: str, key: str) -> str:
    return graph("BitwiseAnd", graph("BitwiseXor", graph("BitwiseXor", high, counter), key), WORD)

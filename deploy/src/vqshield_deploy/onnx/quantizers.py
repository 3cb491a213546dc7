"""The quantizers in ONNX operators: what kernels/reference.py computes, step by step, in double.

Values lie on the grid of FixedPoint, so distances and sums are exact, and no runtime's order of summing
changes a label. Shapes: B images (the one dynamic dimension), q channels, h×w pixels, n patches, d values a
patch, k centres.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch

from vqshield.core.errors import InvalidInputError
from vqshield.defenses import Defense, GaussianNoise, Quantizer
from vqshield.quantization.fixed_point import FixedPoint
from vqshield.quantization.noise import LARGEST_NORMAL, Stage
from vqshield.quantization.patches import Sliding
from vqshield_deploy.onnx.graph import BOOL, DOUBLE, FLOAT, INT64, Graph, Proto, tensor
from vqshield_deploy.onnx.randomness import interleaved, normals, random_words

_FLOAT32_GRID = 2.0**23  # that of operators.noisy_images


def shielded(graph: Graph, defense: Defense, images: str, streams: str, shape: tuple[int, int, int]) -> str:
    """The defense's images, (B, q, h, w) float, in a graph with the input seed."""
    if not isinstance(defense, GaussianNoise | Quantizer) or defense.spec is None:  # None: a subclass
        raise InvalidInputError(
            f"{type(defense).__name__} cannot be exported to ONNX; RandDisc, PRD, SWRD and GaussianNoise can"
        )
    if isinstance(defense, GaussianNoise):
        count = math.prod(shape)
        words = random_words(graph, streams, {Stage.CODEBOOK: count})
        noise = graph.reshape(normals(graph, words[Stage.CODEBOOK], count), 0, *shape)
        noisy = graph("Add", graph.cast(images, DOUBLE), graph("Mul", noise, defense.sigma))
        return graph.cast(noisy, FLOAT)
    if defense.sample is not None:
        raise InvalidInputError(f"sample={defense.sample} cannot be exported to ONNX; sample=None can")
    return _Drawing(graph, defense, streams, shape).shield(images)


class _Drawing:
    """One quantizer's part of a graph."""

    def __init__(self, graph: Graph, defense: Quantizer, streams: str, shape: tuple[int, int, int]) -> None:
        self.graph, self.defense, self.shape = graph, defense, shape
        self.recipe = defense.recipe()
        blank = self.recipe.grid.pad(torch.zeros(1, *shape))
        self.channels, self.height, self.width = blank.shape[1:]
        self.count = self.recipe.grid.count(self.height, self.width)
        self.dimensions = self.channels * self.recipe.grid.size**2
        bound = 1 + LARGEST_NORMAL * max(self.recipe.sigma, self.recipe.tau)
        self.fixed = FixedPoint.fitting(self.dimensions, bound=bound)
        self.words = random_words(graph, streams, self._counts())

    def shield(self, images: str) -> str:
        """Noise, codebook, assignment, rebuild."""
        graph, recipe = self.graph, self.recipe
        seen = self._seen(images, Stage.CODEBOOK)
        patches = self._noisy(self._cut(seen), Stage.CODEBOOK, recipe.sigma)
        start = self._plus_plus(patches) if recipe.init == "kmeans++" else self._random(patches)
        centres = self._lloyd(patches, start)
        assigned = seen if self.defense.noise != "image" else self._seen(images, Stage.ASSIGNMENT)
        clean = self._cut(assigned)
        noisy = self._noisy(clean, Stage.ASSIGNMENT, recipe.tau)
        labels = _nearest(graph, noisy, centres)
        found = graph("GatherND", centres, graph.unsqueeze(labels, 2), batch_dims=1)  # (B, n, d)
        if isinstance(recipe.grid, Sliding):
            rebuilt = self._blend(found, clean if recipe.weights_from == "clean" else noisy)
        else:
            rebuilt = self._tile(found)
        return graph("Clip", graph.cast(rebuilt, FLOAT), np.array(0, np.float32), np.array(1, np.float32))

    def _counts(self) -> Mapping[Stage, int]:
        counts, defense = {Stage.INIT: self.recipe.codes}, self.defense
        scales = {Stage.CODEBOOK: defense.sigma, Stage.ASSIGNMENT: defense.tau}
        for stage, scale in scales.items():
            if scale > 0 and not (defense.noise == "shared" and stage == Stage.ASSIGNMENT):
                on_patches = defense.noise == "patch"
                counts[stage] = self.count * self.dimensions if on_patches else math.prod(self.shape)
        return counts

    def _seen(self, images: str, stage: Stage) -> str:
        """The images that a stage cuts, padded, in double: with their noise, where that is on the image."""
        graph, defense = self.graph, self.defense
        drawn = Stage.CODEBOOK if defense.noise == "shared" else stage
        scale = defense.sigma if drawn == Stage.CODEBOOK else defense.tau
        values = graph.cast(images, DOUBLE)
        if defense.noise != "patch" and scale > 0:
            noise = normals(graph, self.words[drawn], math.prod(self.shape))
            moved = graph("Add", values, graph("Mul", graph.reshape(noise, 0, *self.shape), scale))
            fine = graph("Round", graph("Mul", graph("Clip", moved, 0.0, 1.0), _FLOAT32_GRID))
            values = graph("Mul", fine, 1 / _FLOAT32_GRID)
        below, right = self.height - self.shape[1], self.width - self.shape[2]
        if below or right:
            mode = "constant" if self.defense.settings().get("padding") == "zero" else "reflect"
            values = graph("Pad", values, np.array([0, 0, 0, 0, 0, 0, below, right]), mode=mode)
        return values

    def _cut(self, padded: str, channels: int | None = None) -> str:
        """All patches, (B, n, d); of images with that many channels."""
        channels = channels or self.channels
        rows, columns = self.recipe.grid.corners(self.height, self.width, torch.arange(self.count))
        steps = torch.arange(self.recipe.grid.size)
        inside = (
            torch.arange(channels)[:, None, None] * self.height * self.width
            + steps[:, None] * self.width
            + steps
        ).flatten()
        corners = (rows * self.width + columns)[:, None]
        places = self.graph("Add", corners.numpy(), inside[None].numpy())  # (n, d)
        return self.graph("Gather", self.graph.reshape(padded, 0, -1), places, axis=1)

    def _noisy(self, clean: str, stage: Stage, scale: float) -> str:
        """Patches plus noise on the grid, half-way values to the upper point."""
        graph = self.graph
        if scale > 0:
            drawn = normals(graph, self.words[stage], self.count * self.dimensions)
            noise = graph.reshape(drawn, 0, self.count, self.dimensions)
            clean = graph("Add", clean, graph("Mul", noise, scale))
        steps = graph("Floor", graph("Add", graph("Mul", clean, 2.0**self.fixed.bits), 0.5))
        return graph("Mul", steps, 2.0**-self.fixed.bits)

    def _plus_plus(self, patches: str) -> str:
        """starts.kmeans_plus_plus: (B, k, d)."""
        graph, codes = self.graph, self.recipe.codes
        words = interleaved(graph, self.words[Stage.INIT], codes)  # (B, k)
        first = _pick(graph, patches, _below(graph, graph.slice(words, 1, 0, 1), self.count))
        if codes == 1:
            return first
        body = Graph(graph)
        last, near, word = (body.name(each) for each in ("centre", "distances", "word"))
        fresh = body.sum(_square(body, body("Sub", patches, last)), 2)
        nearer = body("Min", near, fresh)
        scale = 2.0 ** (53 - math.ceil(math.log2(self.count * self.fixed.largest)))  # FixedPoint.summable
        whole = body.cast(body("Mul", nearer, scale), INT64)
        running = body("CumSum", whole, 1)
        total = body.slice(running, 1, self.count - 1, self.count)  # (B, 1)
        share = body("Mul", body("Mul", body.cast(word, DOUBLE), 2.0**-32), body.cast(total, DOUBLE))
        passed = body.cast(body("LessOrEqual", running, body.cast(share, INT64)), INT64)
        drawn = body.sum(passed, 1, keep=True)
        chosen = body("Where", body("Greater", total, 0), drawn, _below(body, word, self.count))
        centre = _pick(body, patches, chosen)
        row = body("Identity", centre)
        a_centre, distances = [None, 1, self.dimensions], [None, self.count]
        inputs = (last, DOUBLE, a_centre), (near, DOUBLE, distances), (word, INT64, [None, 1])
        outputs = (centre, DOUBLE, a_centre), (nearer, DOUBLE, distances), (row, DOUBLE, a_centre)
        inner = body.finish("next_centre", *([tensor(*each) for each in ends] for ends in (inputs, outputs)))
        far = graph("Add", graph("Mul", graph.sum(patches, 2), 0.0), math.inf)  # (B, n)
        rest = graph("Transpose", graph.slice(words, 1, 1, codes), perm=[1, 0])
        words_each = graph.unsqueeze(rest, 2)  # (k − 1, B, 1)
        *_, others = graph.several("Scan", 3, first, far, words_each, body=inner, num_scan_inputs=1)
        others = graph("Transpose", graph("Squeeze", others, np.array([2])), perm=[1, 0, 2])
        return graph("Concat", first, others, axis=1)

    def _random(self, patches: str) -> str:
        """starts.random_patches: (B, k, d)."""
        graph, codes = self.graph, self.recipe.codes
        words = interleaved(graph, self.words[Stage.INIT], codes)  # (B, k)
        columns: list[str] = []
        for number in range(codes):
            last = self.count - codes + number
            candidate = _below(graph, graph.slice(words, 1, number, number + 1), last + 1)
            if columns:
                earlier = columns[0] if len(columns) == 1 else graph("Concat", *columns, axis=1)
                equal = graph.sum(graph.cast(graph("Equal", earlier, candidate), INT64), 1, keep=True)
                candidate = graph("Where", graph("Greater", equal, 0), last, candidate)
            columns.append(candidate)
        chosen = graph("Concat", *columns, axis=1)
        return graph("GatherND", patches, graph.unsqueeze(chosen, 2), batch_dims=1)

    def _lloyd(self, patches: str, start: str) -> str:
        """lloyd.run_lloyd: each image stops by itself, and the loop when all have."""
        graph, codes = self.graph, self.recipe.codes
        body = Graph(graph)
        number, going, centres, labels, active = (
            body.name(each) for each in ("round", "going", "centres", "labels", "active")
        )
        fresh = _nearest(body, patches, centres)
        member = body("Equal", body.unsqueeze(fresh, 1), np.arange(codes)[None, :, None])
        member = body.cast(member, DOUBLE)  # (B, k, n)
        sizes = body.sum(member, 2, keep=True)
        means = body("Div", body("MatMul", member, patches), body("Max", sizes, 1.0))
        on_grid = body("Mul", body("Round", body("Mul", means, 2.0**self.fixed.bits)), 2.0**-self.fixed.bits)
        moves = body("And", body("Greater", sizes, 0.0), body.unsqueeze(active, 1, 2))
        moved = body("Where", moves, on_grid, centres)
        changed = body.sum(body.cast(body("Not", body("Equal", fresh, labels)), DOUBLE), 1)
        enough = body("Greater", changed, self.recipe.tolerance * self.count)
        goes_on = body("Or", enough, body("Equal", number, 0))  # nothing to compare the first labels with
        still = body("And", active, goes_on)
        any_left = body.cast(body("ReduceMax", body.cast(still, INT64), keepdims=0), BOOL)

        def state(centres: str, labels: str, active: str) -> list[Proto]:
            return [
                tensor(centres, DOUBLE, [None, codes, self.dimensions]),
                tensor(labels, INT64, [None, self.count]),
                tensor(active, BOOL, [None]),
            ]

        inner = body.finish(
            "round_of_lloyd",
            [tensor(number, INT64, []), tensor(going, BOOL, []), *state(centres, labels, active)],
            [tensor(any_left, BOOL, []), *state(moved, fresh, still)],
        )
        zeros = graph("Mul", graph.cast(graph.sum(patches, 2), INT64), 0)  # (B, n)
        none = graph("Sub", zeros, 1)
        everyone = graph("Equal", graph.reshape(graph.slice(zeros, 1, 0, 1), -1), 0)
        centres, _, _ = graph.several(
            "Loop", 3, self.recipe.iterations, np.array(True), start, none, everyone, body=inner
        )
        return centres

    def _tile(self, found: str) -> str:
        """Disjoint.rebuild."""
        graph, size = self.graph, self.recipe.grid.size
        rows, columns = self.recipe.grid.shape(self.height, self.width)
        tiles = graph.reshape(found, 0, rows, columns, self.channels, size, size)
        tiles = graph("Transpose", tiles, perm=[0, 3, 1, 4, 2, 5])
        whole = graph.reshape(tiles, 0, self.channels, self.height, self.width)
        ends = self.shape[1:]
        if ends == (self.height, self.width):
            return whole
        return graph("Slice", whole, np.array([0, 0]), np.array(ends), np.array([2, 3]))

    def _blend(self, found: str, windows: str) -> str:
        """Sliding.rebuild: a transposed convolution puts each value of a window in its place, and adds up."""
        graph, size = self.graph, self.recipe.grid.size
        rows, columns = self.recipe.grid.shape(self.height, self.width)
        distance = graph.sum(_square(graph, graph("Sub", windows, found)), 2)
        similarity = graph("Mul", distance, -self.recipe.beta)  # (B, n)
        # Which number near the largest is subtracted cancels out, so this one may be rounded to float32.
        plane = graph.cast(graph.reshape(similarity, 0, 1, rows, columns), FLOAT)
        largest = graph("MaxPool", plane, kernel_shape=[size, size], pads=[size - 1] * 4, strides=[1, 1])
        over_pixels = self._cut(graph.cast(largest, DOUBLE), channels=1)  # (B, n, s²)
        weights = graph("Exp", graph("Sub", graph.unsqueeze(similarity, 2), over_pixels))
        parts = graph.reshape(found, 0, self.count, self.channels, size**2)
        weighted = graph.reshape(graph("Mul", parts, graph.unsqueeze(weights, 2)), 0, self.count, -1)
        total, weight = (self._fold(*each) for each in ((weighted, self.channels), (weights, 1)))
        return graph("Div", total, weight)

    def _fold(self, windows: str, channels: int) -> str:
        """(B, n, channels·s²) → (B, channels, h, w): each pixel the sum of its values in all windows."""
        graph, size = self.graph, self.recipe.grid.size
        rows, columns = self.recipe.grid.shape(self.height, self.width)
        planes = graph.reshape(graph("Transpose", windows, perm=[0, 2, 1]), 0, -1, rows, columns)
        kernel = np.tile(np.eye(size**2, dtype=np.float32).reshape(-1, 1, size, size), (channels, 1, 1, 1))
        return graph("ConvTranspose", graph.cast(planes, FLOAT), kernel, group=channels)


def _nearest(graph: Graph, patches: str, centres: str) -> str:
    """lloyd.nearest: (B, n)."""
    squares = graph.sum(_square(graph, centres), 2, keep=True)  # (B, k, 1)
    products = graph("MatMul", centres, graph("Transpose", patches, perm=[0, 2, 1]))  # (B, k, n)
    return graph("ArgMin", graph("Sub", squares, graph("Mul", products, 2.0)), axis=1, keepdims=0)


def _pick(graph: Graph, patches: str, chosen: str) -> str:
    """Patch number chosen (B, 1) of each image, (B, 1, d)."""
    return graph("GatherND", patches, graph.unsqueeze(chosen, 2), batch_dims=1)


def _below(graph: Graph, words: str, limit: int) -> str:
    """starts._below: words as numbers from 0 to limit − 1."""
    return graph("Div", graph("Mul", words, limit), 2**32)


def _square(graph: Graph, value: str) -> str:
    return graph("Mul", value, value)

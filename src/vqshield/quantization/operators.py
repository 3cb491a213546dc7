"""The quantizers as torch operators: opaque to torch.compile and torch.export, which see only their shapes.

An operator takes tensors and one line of text, the job: the recipe, the seed and the backend's name as JSON.
The values of the images are checked in here, since a traced program cannot look at values.
"""

import hashlib
import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from vqshield.core import checks, processes
from vqshield.quantization import kernels
from vqshield.quantization.kernels import Backend, Recipe
from vqshield.quantization.kernels.base import MOST_VALUE, Wanted
from vqshield.quantization.noise import Draw, Stage
from vqshield.quantization.patches import Disjoint, Sliding
from vqshield.quantization.pixels import narrowed, widened

_GRIDS = {"disjoint": Disjoint, "sliding": Sliding}
_FLOAT32_GRID = 2.0**23  # multiples of 2^-23 in [0, 1] are the same numbers in float32 and float64
_BYTES_A_VALUE = 128  # of temporaries while a Gaussian value is made
_BYTES_A_SAMPLED_VALUE = 16  # of a sampled patch: its place, the value, and a copy
_FEWEST, _CACHE_FRIENDLY = 2**12, 2**17  # values at once, at least; and at most on a CPU
_counting = threading.Lock()


def _new_lock() -> None:
    global _counting
    _counting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)  # another thread of the parent may have held it


@dataclass(frozen=True)
class Job:
    """A recipe, the seed of its noise, a backend's name, and how many patches k-means sees (None: all)."""

    recipe: Recipe
    seed: int
    backend: str
    sample: int | None = None

    def encode(self) -> str:
        """As one line of text, an argument that an operator accepts."""
        kind = next(name for name, grid in _GRIDS.items() if isinstance(self.recipe.grid, grid))
        return json.dumps({**asdict(self), "kind": kind})

    @staticmethod
    @lru_cache(maxsize=256)
    def decode(text: str) -> "Job":
        fields = json.loads(text)
        grid = _GRIDS[fields.pop("kind")](**fields["recipe"].pop("grid"))
        return Job(Recipe(grid=grid, **fields.pop("recipe")), **fields)

    def run(self, wanted: Wanted, images: Tensor, streams: Tensor, *centres: Tensor) -> Tensor:
        """As `Backend.run`, for images as they came. Values are read here, once."""
        inside = checks.inside(images, *centres, limit=MOST_VALUE)
        backend, recipe = kernels.get(self.backend, images.device), self.recipe
        if inside.dtype not in backend.dtypes:
            inside = widened(inside)
        padded, draw = recipe.grid.pad(inside).contiguous(), Draw(self.seed, streams)
        if not centres and self.sample is not None and self.sample < recipe.count(padded):
            centres = (self._centres_of_sample(backend, padded, draw, self.sample),)
            if wanted == "centres":
                return centres[0]
        found = backend.run(wanted, padded, recipe, draw, *centres, trusted=True)
        height, width = images.shape[2:]
        return found if wanted == "centres" else found[:, :, :height, :width].contiguous()

    def _centres_of_sample(self, backend: Backend, padded: Tensor, draw: Draw, sample: int) -> Tensor:
        """The centres (B, k, d) of some patches of each image.

        The backend gets them as an image of one column, whose pixels are the patches: it adds its noise to
        them and starts among them as it does with all.
        """
        recipe, column = self.recipe, replace(self.recipe, grid=Disjoint(1))
        step = max(1, recipe.memory // (_BYTES_A_SAMPLED_VALUE * sample * recipe.dimensions(padded)))
        books = []
        for start in range(0, max(1, len(padded)), step):  # without images, one empty codebook
            images, part = padded[start : start + step], draw[start : start + step]
            patches = recipe.grid.take(images, sampled_places(part, recipe.count(padded), sample))
            pixels = patches.transpose(1, 2)[..., None].contiguous()
            books.append(backend.run("centres", pixels, column, part, trusted=True))
        return torch.cat(books)


def sampled_places(draw: Draw, count: int, sample: int) -> Tensor:
    """The numbers (B, sample) of the patches: one at random from each of as many runs of about equal length,
    in the order of the grid, so that every part of an image is represented.
    """
    first = torch.arange(sample + 1, device=draw.streams.device) * count // sample
    return first[:-1] + ((draw.words(Stage.SAMPLE, 0, sample) * first.diff()) >> 32)


@torch.library.custom_op("vqshield::shield", mutates_args=())
def shield(images: Tensor, streams: Tensor, job: str) -> Tensor:
    """Quantized images, of the same dtype; bytes and halves are accepted."""
    return narrowed(Job.decode(job).run("images", images, streams), images.dtype)


@torch.library.custom_op("vqshield::codebook", mutates_args=())
def codebook(images: Tensor, streams: Tensor, job: str) -> Tensor:
    """The centres (B, k, d) of each image."""
    return Job.decode(job).run("centres", images, streams)


@torch.library.custom_op("vqshield::quantize", mutates_args=())
def quantize(images: Tensor, centres: Tensor, streams: Tensor, job: str) -> Tensor:
    """Images quantized with given centres (B, k, d)."""
    return Job.decode(job).run("images", images, streams, centres)


@torch.library.custom_op("vqshield::noisy_images", mutates_args=())
def noisy_images(images: Tensor, streams: Tensor, job: str, stage: int, scale: float) -> Tensor:
    """Images plus scale·N(0, I), one value of the stage's noise for each of theirs, clamped to [0, 1].

    Clamping, and rounding to a grid that both dtypes hold, come after the noise: they are post-processing,
    which weakens no certificate.
    """
    plan = Job.decode(job)
    images = checks.inside(images)
    if scale == 0:
        return images.clone(memory_format=torch.contiguous_format)
    flat, draw = images.flatten(1), Draw(plan.seed, streams)
    noisy = torch.empty(flat.shape, dtype=images.dtype, device=images.device)
    count, values = flat.shape
    most = max(_FEWEST, plan.recipe.memory // _BYTES_A_VALUE)
    most = min(most, _CACHE_FRIENDLY) if images.device.type == "cpu" else most
    rows, columns = max(1, most // values), min(most, values)
    for top, left in product(range(0, count, rows), range(0, values, columns)):
        block = slice(top, top + rows), slice(left, left + columns)
        clean = flat[block].double()
        moved = draw[block[0]].normals(Stage(stage), left, clean.shape[1]).mul_(scale).add_(clean)
        noisy[block] = moved.clamp_(0, 1).mul_(_FLOAT32_GRID).round_().div_(_FLOAT32_GRID)
    return noisy.view(images.shape)


@torch.library.custom_op("vqshield::inside", mutates_args=())
def inside(images: Tensor) -> Tensor:
    """A copy of the images, with values a rounding outside of [0, 1] clamped; others are refused."""
    return checks.inside(images).clone()


for _operator in (shield, quantize, noisy_images):
    _operator.register_fake(lambda images, *_: images.new_empty(images.shape))

inside.register_fake(torch.empty_like)


@codebook.register_fake
def _(images: Tensor, streams: Tensor, job: str) -> Tensor:
    recipe = Job.decode(job).recipe
    return images.new_empty(images.shape[0], recipe.codes, recipe.dimensions(images))


@torch.library.custom_op("vqshield::streams", mutates_args=("counter",))
def fresh_streams(counter: Tensor, images: Tensor, entropy: bool, born: str = "") -> Tensor:
    """One stream number per image that was not used before: the next ones, or from the system's entropy.

    The counter is a tensor so that a compiler sees each call change it: two calls with equal arguments would
    otherwise be merged into one. born is the process that the counter began in (processes.identity).
    """
    count = images.shape[0]
    with _counting:
        first = int(counter)
        counter += count
    if entropy:
        drawn = torch.frombuffer(bytearray(os.urandom(8 * max(1, count))), dtype=torch.int64)[:count]
        return drawn.to(images.device)
    first += processes.first_stream(born)
    return torch.arange(first, first + count, device=images.device)


@torch.library.custom_op("vqshield::content_streams", mutates_args=())
def content_streams(images: Tensor) -> Tensor:
    """A stream number per image that the shape, dtype and bytes of its pixels decide."""
    numbers = []
    for pixels in (widened(image).numpy() for image in images.cpu()):
        kind = f"{pixels.dtype} {pixels.shape}".encode()
        digest = hashlib.blake2b(pixels.tobytes(), digest_size=8, key=kind).digest()
        numbers.append(int.from_bytes(digest, signed=True))
    return torch.tensor(numbers, dtype=torch.int64, device=images.device)


def _no_streams(images: Tensor) -> Tensor:
    return images.new_empty(images.shape[0], dtype=torch.int64)


content_streams.register_fake(_no_streams)
fresh_streams.register_fake(lambda counter, images, *_: _no_streams(images))


def _serve_vmap(operator: Any, unbatched: int = 0) -> None:
    """Register vmap for an operator whose first arguments, so many, belong to no image.

    All calls become one, of a larger batch: (N, B, …) → (N·B, …). Every image has a stream number of its own,
    so that gives the same bits.
    """

    def batched(info: Any, in_dims: tuple[int | None, ...], *values: object) -> tuple[Tensor, int]:
        arguments = list(values)
        for place, (value, dim) in enumerate(zip(values, in_dims, strict=True)):
            if place >= unbatched and isinstance(value, Tensor):
                whole = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
                arguments[place] = whole.flatten(0, 1)
        result: Tensor = operator(*arguments)
        return result.reshape(info.batch_size, -1, *result.shape[1:]), 0

    operator.register_vmap(batched)


for _operator in (shield, codebook, quantize, noisy_images, inside, content_streams):
    _serve_vmap(_operator)
_serve_vmap(fresh_streams, unbatched=1)

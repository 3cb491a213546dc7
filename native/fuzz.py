"""Random calls of the CPU kernel: sound ones must give sound results, and wrong ones must be refused.

native/sanitize.py runs it on builds with the sanitizers in them; the tests make a few hundred calls with the
ordinary builds. Call number i of a seed is the same in every run.
"""

import dataclasses
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield.core.checks import NARROW_DTYPES
from vqshield.core.errors import InvalidInputError
from vqshield.quantization.kernels import native
from vqshield.quantization.kernels.base import Recipe
from vqshield.quantization.kernels.native import Native
from vqshield.quantization.noise import Draw
from vqshield.quantization.patches import Disjoint, Sliding
from vqshield.quantization.pixels import narrowed
from vqshield_paper.speed.lloyd import lloyd

EXTREMES = (-(2**63), -1, 0, 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1)
REALS = (float("nan"), float("inf"), float("-inf"), -1.0, 1.0000001, 1e150, 1.7e308, -1e-300)
LARGE = (float("nan"), float("inf"), -1.1e6, 1e30, 1e300)
KINDS = (torch.float32, torch.float32, torch.float32, *NARROW_DTYPES)
COUNTED = ("codebook", "quantize", "shield", "assignments")
SETTINGS: dict[str, tuple[object, ...]] = {
    "codes": (0, -1, 2**20 + 1, 2**63, 1.5, None),
    "iterations": (0, -1, 10**6 + 1, 2**63, 2.0),
    "init": ("k-means", "", None, ["random"]),
    "tolerance": (*REALS, "0"),
    "sigma": (*REALS, 10**400, None),
    "tau": (*REALS, "1"),
    "beta": (float("nan"), float("inf"), -1.0, 1.7e308, 1e6 + 1, None),
    "weights_from": ("both", None),
    "memory": (0, -5, 0.5),
    "grid": (Disjoint(0), Sliding(-1), Sliding(10**9), None, 3),
}


@dataclass
class Tally:
    """How many calls were made, and what became of them."""

    taken: int = 0
    refused: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def calls(self) -> int:
        """All of them."""
        return self.taken + self.refused


@dataclass
class Call:
    """The arguments of one call of the backend."""

    method: str
    images: Any
    centres: Any
    recipe: Recipe
    draw: Draw

    def make(self, kernel: Native) -> Tensor:
        """What the backend answers."""
        if self.method == "lloyd":
            return lloyd(
                kernel,
                self.images,
                self.centres,
                iterations=self.recipe.iterations,
                tolerance=self.recipe.tolerance,
            )
        given = (self.centres,) if self.method in ("quantize", "assignments") else ()
        return getattr(kernel, self.method)(self.images, *given, self.recipe, self.draw)


class Corrupting(Native):
    """A backend that, behind its own checks, changes one field of what the kernel is given."""

    def __init__(self, isa: str, change: Callable[[Any], None]) -> None:
        super().__init__(isa)
        self._change = change

    def _call(self, name: str, job: Any, work: float, memory: Mapping[str, Tensor]) -> None:
        self._change(job)
        super()._call(name, job, work, memory)


def run(calls: int, seed: int, report: Callable[[int], None] = lambda number: None) -> Tally:
    """Make so many calls; an AssertionError names the first that went wrong."""
    short = native._SHORT
    try:
        return _run(calls, seed, report)
    finally:
        native._SHORT = short


def _run(calls: int, seed: int, report: Callable[[int], None]) -> Tally:
    tally, builds = Tally(), native.available()
    for number in range(calls):
        rng = random.Random(f"{seed}/{number}")
        kind = rng.choices(("sound", "wrong argument", "wrong field"), (5, 3, 2))[0]
        isa = rng.choice(builds)
        native._SHORT = rng.choice((0.0, 5e8, 5e8, 5e8))  # a long call runs in a thread of its own
        call = sound_call(rng)
        try:
            done = _one(kind, isa, call, rng)
        except Exception as error:
            raise AssertionError(f"call {number} of seed {seed} ({kind}, {isa}): {error!r}") from error
        tally.kinds[f"{kind}: {call.method}"] += 1
        tally.taken += done
        tally.refused += not done
        report(number + 1)
    return tally


def _one(kind: str, isa: str, call: Call, rng: random.Random) -> bool:
    """Whether the call was taken."""
    if kind == "sound":
        _check(call, call.make(Native(isa)))
        return True
    if kind == "wrong argument":
        try:
            spoil(call, rng)
            call.make(Native(isa))
        except InvalidInputError as error:
            return _refused(error)
        raise AssertionError(f"a wrong argument was taken: {call}")
    try:
        call.make(Corrupting(isa, lambda job: _corrupt(job, rng)))
    except InvalidInputError as error:
        return _refused(error)
    return True  # a value that was as good, or one that is not looked at in this call


def _refused(error: InvalidInputError) -> bool:
    if not str(error):
        raise AssertionError("the refusal does not say why") from error
    return False


def sound_call(rng: random.Random) -> Call:
    """Shapes, settings and contents that must be taken, the extremes among them."""
    method = rng.choice((*COUNTED, "lloyd"))
    return _lloyd_call(rng) if method == "lloyd" else _image_call(method, rng)


def _image_call(method: str, rng: random.Random) -> Call:
    size, channels = rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 7)), rng.choice((1, 3, 3, 2, 4, 9))
    sliding = rng.random() < 0.5
    grid = Sliding(size) if sliding else Disjoint(size, rng.choice(("zero", "reflect")))
    sides = [size * rng.randint(1, 6), size * rng.randint(1, 6)] if not sliding else []
    height, width = sides or (rng.randint(size, size + 20), rng.randint(size, size + 20))
    if rng.random() < 0.05:
        width = size * rng.randint(100, 300)
    batch = rng.choice((0, 1, 1, 2, 3, 5))
    count, generator = grid.count(height, width), torch.Generator().manual_seed(rng.getrandbits(60))
    images = _contents((batch, channels, height, width), rng, generator)
    codes = rng.choice((1, min(count, rng.randint(1, 40)), min(count, 200)))
    recipe = Recipe(
        grid=grid,
        codes=codes,
        iterations=rng.choice((1, 2, 20, 10**6)) if count < 200 else rng.choice((1, 2, 20)),
        init=rng.choice(("kmeans++", "random")),
        tolerance=rng.choice((0.0, 0.02, 1.0, 1)),
        sigma=_scale(rng),
        tau=_scale(rng),
        beta=rng.choice((0.0, 2.0, 6502.5, 1e6, 1e-300)),
        weights_from=rng.choice(("clean", "noisy")),
        memory=rng.choice((1, 2**16, 2**30, 2**70)),
    )
    given = rng.choice((codes, codes, 1, 300, 5000 if rng.random() < 0.02 else codes))
    dimensions = channels * size**2
    centres = torch.rand(batch, given, dimensions, generator=generator) * rng.choice((1, 1, 1e6))
    streams = torch.randint(-(2**63), 2**63 - 1, (batch,), generator=generator)
    return Call(
        method,
        _rearranged(narrowed(images, rng.choice(KINDS)), rng),
        _rearranged(centres, rng),
        recipe,
        Draw(rng.choice((0, 2**64 - 1, rng.getrandbits(64))), streams),
    )


def _lloyd_call(rng: random.Random) -> Call:
    batch, count = rng.choice((0, 1, 2, 5)), rng.choice((1, 2, 63, 64, 65, rng.randint(1, 700)))
    dimensions, codes = rng.choice((1, 2, 3, 16, 17, rng.randint(1, 90))), rng.randint(1, 60)
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    patches = _contents((batch, count, dimensions), rng, generator) * rng.choice((1, -1, 1e6, 1e-40))
    start = _contents((batch, codes, dimensions), rng, generator) * rng.choice((1, 1e6))
    plain = Recipe(
        grid=Disjoint(1),
        codes=codes,
        iterations=rng.choice((1, 7, 50)),
        init="random",
        tolerance=rng.choice((0.0, 0.1, 1.0)),
        sigma=0.0,
        tau=0.0,
    )
    none = Draw(0, torch.zeros(batch, dtype=torch.int64))
    return Call("lloyd", _rearranged(patches, rng), _rearranged(start, rng), plain, none)


def _scale(rng: random.Random) -> float:
    return rng.choice((0.0, 4 / 255, rng.random(), 1.0, 1e-30, 5e-324, 0))


def _contents(shape: tuple[int, ...], rng: random.Random, generator: torch.Generator) -> Tensor:
    kind = rng.choice(("random", "bytes", "few", "constant", "zeros", "ones", "tiny"))
    values = torch.rand(shape, generator=generator)
    if kind == "bytes":
        values = (values * 255).round() / 255
    elif kind == "few":
        values = (values * 3).round() / 3
    elif kind == "constant":
        values = torch.full(shape, rng.random())
    elif kind in ("zeros", "ones"):
        values = torch.full(shape, float(kind == "ones"))
    elif kind == "tiny":
        values = values * 1e-41
    return values


def _rearranged(values: Tensor, rng: random.Random) -> Tensor:
    """The same values: as they are, in float64, with gaps, transposed, or with a gradient."""
    how = rng.choice(("plain", "plain", "double", "gaps", "transposed", "gradient"))
    floats = values.is_floating_point()
    if how == "double" and floats:
        return values.double()
    if how == "gaps":
        wide = values.new_full((*values.shape[:-1], 2 * values.shape[-1]), float("nan") if floats else 7)
        wide[..., ::2] = values
        return wide[..., ::2]
    if how == "transposed":
        return values.transpose(-1, -2).contiguous().transpose(-1, -2)
    return values.clone().requires_grad_() if how == "gradient" and floats else values


def spoil(call: Call, rng: random.Random) -> None:
    """Make one argument wrong."""
    if call.method == "lloyd":
        _spoil_lloyd(call, rng)
        return
    chances = [_spoil_images, _spoil_draw, _spoil_setting]
    if call.method in ("quantize", "assignments"):
        chances.append(_spoil_centres)
    rng.choice(chances)(call, rng)


def _spoil_images(call: Call, rng: random.Random) -> None:
    images, size = call.images.detach(), call.recipe.grid.size
    batch, _, height, width = images.shape
    cut = Disjoint(size + 1)
    choices: list[Callable[[], Any]] = [
        lambda: images[0] if batch else images[:, 0],
        lambda: images[None],
        lambda: images[:, :0],
        lambda: images[:, :, :0],
        lambda: images.short(),
        lambda: images > 0,
        lambda: images.to(torch.complex64),
        lambda: images.to("meta"),
        lambda: images.contiguous().to_sparse(),
        lambda: images.float().contiguous().numpy(),
        lambda: None,
        lambda: _with_one(_filled(images), rng, (float("nan"), float("inf"), -1e-6, 1.0001, 1e38, -1e300)),
        lambda: _with_one(_filled(images), rng, (float("nan"), float("inf"), -1e-6, 1.01)).bfloat16(),
    ]
    if height % cut.size or width % cut.size or cut.size > min(height, width):
        choices.append(lambda: _with_grid(call, cut))
    call.images = rng.choice(choices)()


def _with_grid(call: Call, grid: Disjoint) -> Tensor:
    call.recipe = dataclasses.replace(call.recipe, grid=grid)
    images: Tensor = call.images
    return images


def _filled(values: Tensor) -> Tensor:
    """With an image in it, so that there is a value to spoil."""
    return values if len(values) else values.new_zeros(1, *values.shape[1:])


def _with_one(values: Tensor, rng: random.Random, wrong: tuple[float, ...]) -> Tensor:
    changed = values.detach().double().contiguous()
    changed.view(-1)[rng.randrange(changed.numel())] = rng.choice(wrong)
    return changed


def _spoil_draw(call: Call, rng: random.Random) -> None:
    seed, streams = call.draw.seed, call.draw.streams
    choices: list[tuple[Any, Any]] = [
        (-1, streams),
        (2**64, streams),
        (0.5, streams),
        (None, streams),
        (seed, streams.int()),
        (seed, streams.double()),
        (seed, torch.cat([streams, torch.tensor([1])])),
        (seed, streams[:, None]),
        (seed, streams.tolist()),
        (seed, streams.to("meta")),
    ]
    call.draw = Draw(*rng.choice(choices))


def _spoil_setting(call: Call, rng: random.Random) -> None:
    name = rng.choice(list(SETTINGS))
    wrong = rng.choice(SETTINGS[name])
    if name == "codes" and call.method in ("codebook", "shield") and rng.random() < 0.5:
        wrong = call.recipe.grid.count(*call.images.shape[2:]) + 1
    call.recipe = dataclasses.replace(call.recipe, **{name: wrong})


def _spoil_centres(call: Call, rng: random.Random) -> None:
    centres = call.centres.detach()
    call.centres = rng.choice(_wrong_vectors(centres, rng))()
    if len(call.images) == 0 and isinstance(call.centres, Tensor) and call.centres.shape == centres.shape:
        call.centres = None  # a wrong value needs an image to belong to


def _wrong_vectors(centres: Tensor, rng: random.Random) -> list[Callable[[], Any]]:
    batch, _, dimensions = centres.shape
    return [
        lambda: torch.cat([centres, centres.new_zeros(1, *centres.shape[1:])]),
        lambda: centres.new_zeros(batch, centres.shape[1], dimensions + 1),
        lambda: centres[:, :0],
        lambda: centres[:, :, :0],
        lambda: centres[:, 0],
        lambda: centres.half(),
        lambda: centres.long(),
        lambda: centres.to("meta"),
        lambda: centres.contiguous().to_sparse(),
        lambda: centres.tolist(),
        lambda: None,
        lambda: _with_one(centres, rng, LARGE) if batch else None,
    ]


def _spoil_lloyd(call: Call, rng: random.Random) -> None:
    """A wrong setting or value; shapes are not checked before the kernel."""
    which = rng.choice(("images", "centres", "setting")) if len(call.images) else "setting"
    if which == "setting":
        name = rng.choice(("iterations", "tolerance"))
        call.recipe = dataclasses.replace(call.recipe, **{name: rng.choice(SETTINGS[name])})
    else:
        setattr(call, which, _with_one(getattr(call, which), rng, LARGE))


def _corrupt(job: Any, rng: random.Random) -> None:
    """Another value in one field; a pointer becomes null, since no check can tell a wild one."""
    name, kind = rng.choice([each for each in job._fields_ if each[0] not in ("stop", "message", "seed")])
    if kind is native.ctypes.c_void_p:
        setattr(job, name, None)
    elif kind is native.ctypes.c_double:
        setattr(job, name, rng.choice((*REALS, 0.0, 1e6)))
    elif name != "keep":
        now = getattr(job, name)
        setattr(job, name, rng.choice((*EXTREMES, now + 1, now - 1, 2 * now)))


def _check(call: Call, found: Tensor) -> None:
    assert bool(torch.isfinite(found).all()), "a value that is not finite"
    if call.method == "lloyd":
        assert (found.shape, found.dtype) == (call.centres.shape, call.images.dtype)
    elif call.method == "codebook":
        assert found.shape[:2] == (len(call.images), call.recipe.codes)
    elif call.method == "assignments":
        assert found.numel() == 0 or 0 <= int(found.min()) <= int(found.max()) < call.centres.shape[1]
    else:
        assert (found.shape, found.dtype) == (call.images.shape, call.images.dtype)
        most = 255 if found.dtype == torch.uint8 else 1
        assert found.numel() == 0 or 0 <= float(found.min()) <= float(found.max()) <= most


def main(calls: int, seed: int, target: Path) -> None:
    """Make the calls and write the tally."""
    torch.set_num_threads(2)

    def report(number: int) -> None:
        if number % 2000 == 0:
            print(f"{number} of {calls} calls", flush=True)

    tally = run(calls, seed, report)
    kinds = dict(sorted(tally.kinds.items()))
    target.write_text(
        json.dumps({"calls": tally.calls, "taken": tally.taken, "refused": tally.refused, "kinds": kinds})
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

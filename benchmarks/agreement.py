"""How closely does every backend agree with the exact reference, on natural images?

python benchmarks/agreement.py --device cpu
python benchmarks/agreement.py --device cuda --data-dir DIR
TRITON_INTERPRET=1 python benchmarks/agreement.py --backend gpu --images 50

Writes benchmarks/results/agreement-DEVICE.json; the last one runs the GPU's kernels emulated on a CPU, which
takes minutes, and writes agreement-emulated.json. Without --data-dir it takes the bundled sample and its
mirror images: 1,000 images unless it is told otherwise.
"""

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

import vqshield as vq
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.data import load, sample
from vqshield.defenses import create
from vqshield.quantization import kernels as clustering
from vqshield.quantization.kernels import Recipe
from vqshield.quantization.kernels.gpu import interpreting
from vqshield.quantization.kernels.lloyd import nearest
from vqshield.quantization.kernels.reference import noisy_patches
from vqshield.quantization.noise import Draw, Stage
from vqshield_paper.speed.record import AgreementRecord, AgreementRow

ROOT = Path(__file__).resolve().parents[1]
SEED = 7
SAME = 1e-6  # codebooks nearer than this differ by rounding alone: all patches went the same ways
CLOSE = 1e-4
SIDE = 328  # a large image: tiled by the GPU's kernels
DEFENSES: tuple[tuple[str, Mapping[str, Json]], ...] = (
    ("randdisc", {"codes": 25}),
    ("prd", {"size": 2, "codes": 25}),
    ("swrd", {"size": 3, "codes": 25}),
    ("swrd", {"size": 3, "codes": 25, "weights_from": "noisy", "beta": 6502.5}),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--large", type=int, default=0, help=f"also this many images of {SIDE} by {SIDE}")
    parser.add_argument("--data-dir")
    parser.add_argument("--backend", nargs="*", default=[], help="not all that can serve the device")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()

    images = natural(options.data_dir, options.images).to(options.device)
    large = torch.nn.functional.interpolate(images[: options.large], size=(SIDE, SIDE), mode="bicubic")
    cases = [(name, settings, images) for name, settings in DEFENSES]
    if options.large:
        cases.append(("swrd", {"size": 3, "codes": 30}, large.clamp(0, 1)))
    rows = []
    for backend in clustering.list_backends():
        chosen = backend in options.backend if options.backend else backend != "torch"
        if not chosen or not usable(backend, options.device):
            continue
        for name, settings, shown in cases:
            rows.append(compare(backend, name, settings, shown))
            print(json.dumps(to_plain(rows[-1])), flush=True)
    record = AgreementRecord(seed=SEED, machine=environment(options.device), rows=tuple(rows))
    place = "emulated" if interpreting() else torch.device(options.device).type
    write_json(options.results / f"agreement-{place}.json", to_plain(record))


def natural(folder: str | None, count: int) -> Tensor:
    if folder:
        return load("cifar10", "test", folder).take(count).floats()
    half = sample(-(-count // 2)).floats()
    return torch.cat([half, half.flip(3)])[:count]


def usable(backend: str, device: str) -> bool:
    try:
        clustering.get(backend, device)
    except ValueError as reason:
        print(reason)
        return False
    return True


def compare(backend: str, name: str, settings: Mapping[str, Json], images: Tensor) -> AgreementRow:
    """Each with its own codebook, as in use; then both with the reference's."""
    began = time.perf_counter()
    exact, other = (create(name, **settings, seed=SEED, backend=each) for each in ("torch", backend))
    streams = torch.arange(len(images), device=images.device)
    books = [defense.codebook(images, streams=streams) for defense in (exact, other)]
    labels, inertia = labelled(exact, images, streams, books[0])
    own = assignments(other, images, streams, books[1])
    given = assignments(other, images, streams, books[0])
    whole = [defense(images, streams=streams) for defense in (exact, other)]
    same_book = (books[0] - books[1]).abs().amax((1, 2)) < SAME
    alike = (own == labels).all(1)
    difference = (whole[0] - whole[1]).abs().amax((1, 2, 3))
    apart = alike & (difference > CLOSE)
    return AgreementRow(
        backend=backend,
        defense=name,
        settings=settings,
        n=len(images),
        shape=tuple(images.shape[1:]),
        patches=labels.numel(),
        same_codebook=float(same_book.double().mean()),
        same_assignment=float((own == labels).double().mean()),
        same_assignment_with_given_codebook=float((given == labels).double().mean()),
        inertia_ratio=float(labelled(exact, images, streams, books[1])[1] / inertia),
        images_with_equal_assignments=int(alike.sum()),
        largest_difference_among_them=float(difference[alike].max()) if alike.any() else None,
        images_apart=int(apart.sum()),
        images_apart_with_the_same_codebook=int((apart & same_book).sum()),
        repeats_equal=torch.equal(whole[1], other(images, streams=streams)),
        seconds=round(time.perf_counter() - began, 1),
    )


@runtime_checkable
class Assigning(Protocol):
    """A backend that also shows its assignments; the defenses do not need them."""

    def assignments(self, padded: Tensor, centres: Tensor, recipe: Recipe, draw: Draw) -> Tensor:
        """The label of every patch."""
        ...


def assignments(defense: vq.Defense, images: Tensor, streams: Tensor, centres: Tensor) -> Tensor:
    """The labels that the defense's own backend gives."""
    recipe, kernel = defense.recipe(), clustering.get(defense.backend, images.device)
    if not isinstance(kernel, Assigning):
        raise SystemExit(f"backend {defense.backend!r} has no assignments(…) to compare")
    padded = recipe.grid.pad(images).contiguous()
    return kernel.assignments(padded, centres, recipe, Draw(defense.seed, streams))


def labelled(defense: vq.Defense, images: Tensor, streams: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Exact labels of the noisy patches under given centres, and their sum of squared distances."""
    recipe, labels, total = defense.recipe(), [], images.new_zeros((), dtype=torch.float64)
    for part in torch.arange(len(images), device=images.device).split(100):
        draw = Draw(defense.seed, streams[part])
        noisy = noisy_patches(recipe.grid.pad(images[part]), recipe, recipe.tau, Stage.ASSIGNMENT, draw)
        book, found = centres[part].double(), []
        for block in noisy:
            found.append(nearest(block, noisy.fixed.round(book)))
            index = found[-1][:, :, None].expand(-1, -1, book.shape[2])
            total += (block - book.gather(1, index)).square().sum()
        labels.append(torch.cat(found, 1))
    return torch.cat(labels), total


if __name__ == "__main__":
    main()

"""Run by test_gpu.py with TRITON_INTERPRET=1: kernels against the reference on images of a few pixels."""

import os
import warnings

import torch
from emulated_cuda import emulate

import vqshield as vq
from vqshield.quantization import kernels as clustering
from vqshield.quantization.kernels.cuda import resident
from vqshield.quantization.kernels.cuda import strips as cuda_strips
from vqshield.quantization.kernels.triton import launch
from vqshield_paper.speed.lloyd import lloyd as rounds_of_lloyd

warnings.simplefilter("ignore")
torch.use_deterministic_algorithms(True)  # new memory is full of NaN then: what reads it unwritten is seen
SEED, STREAMS = 2**63 + 5, torch.tensor([5, -7])


def compare(kind: type[vq.Defense], shape: tuple[int, ...], **settings: object) -> None:
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    exact, kernel = (kind(backend=name, seed=SEED, **settings) for name in ("torch", "gpu"))
    codebooks = [one.codebook(images, streams=STREAMS) for one in (exact, kernel)]
    assert float((codebooks[0] - codebooks[1]).abs().max()) < 1e-6, (kind, settings, "codebook")
    outputs = [one(images, streams=STREAMS) for one in (exact, kernel)]
    outputs.append(kernel.quantize(images, codebooks[0], streams=STREAMS))
    for output in outputs[1:]:
        assert float((output - outputs[0]).abs().max()) < 1e-5, (kind, settings, "output")


def cuda() -> None:
    """As on a GPU, where CUDA kernels serve what they can; emulated. From here on they are off."""
    emulate()
    compare(vq.SWRD, (3, 9, 10), size=2, codes=5, iterations=4)
    resident._MOST_PATCHES = 0
    resident._resident.cache_clear()
    cuda_strips.STRIP = 256
    compare(vq.SWRD, (3, 18, 18), size=2, codes=5, iterations=4)
    compare(vq.PRD, (3, 17, 19), size=2, codes=4, iterations=4, init="random", padding="reflect")
    os.environ["VQSHIELD_CUDA"] = "off"


def defenses() -> None:
    compare(vq.SWRD, (3, 9, 10), size=2, codes=5, iterations=6)
    compare(vq.SWRD, (1, 9, 10), size=3, codes=5, weights_from="noisy", beta=100.0, tolerance=0.01)
    compare(vq.PRD, (3, 9, 10), size=2, codes=4, iterations=6, init="random", padding="reflect")
    compare(vq.RandDisc, (2, 12, 12), codes=17, iterations=3, sigma=0.0, tau=0.0)
    # More dimensions than FEW, and more codes.
    compare(vq.SWRD, (3, 7, 8), size=4, codes=9, iterations=2)
    compare(vq.RandDisc, (3, 9, 9), codes=40, init="random", iterations=2)
    compare(vq.SWRD, (3, 10, 10), size=5, codes=5, iterations=2)  # patches are written by less than a block


def other_calls() -> None:
    """Labels, given centres of another number, float64, channels last, and images of two batches."""
    kernel, exact = clustering.get("gpu"), clustering.get("torch")
    defense = vq.SWRD(size=2, codes=5, iterations=3, memory=1)
    images = torch.rand(2, 3, 9, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    recipe, draw = defense.recipe(), vq.quantization.noise.Draw(SEED, STREAMS)
    centres = exact.codebook(images, recipe, draw)[:, :3]
    labels = [backend.assignments(images, centres, recipe, draw) for backend in (exact, kernel)]
    assert labels[1].dtype == torch.int64
    assert torch.equal(*labels)
    last = images.contiguous(memory_format=torch.channels_last)
    for given in (images, last):
        outputs = [backend.quantize(given, centres, recipe, draw) for backend in (exact, kernel)]
        assert outputs[1].dtype == torch.float64
        assert float((outputs[0] - outputs[1]).abs().max()) < 1e-5


def lloyd() -> None:
    generator = torch.Generator().manual_seed(1)
    patches = 30 * torch.rand(2, 100, 7, generator=generator) - 7
    start = patches[:, :6].clone()
    found = [rounds_of_lloyd(clustering.get(name), patches, start, iterations=7) for name in ("torch", "gpu")]
    assert float((found[0] - found[1]).abs().max()) < 3e-5
    points = vq.kmeans(patches, 6, backend="gpu")
    assert torch.equal(points.labels, vq.kmeans(patches, 6, backend="torch").labels)


def strips() -> None:
    """As if these images were large: several strips each."""
    launch.STRIP, launch.START_STRIP, launch.WIDE_ROWS = 64, 64, 64
    compare(vq.SWRD, (3, 9, 10), size=2, codes=5, iterations=6)
    compare(vq.PRD, (1, 17, 19), size=2, codes=4, iterations=4, init="random", padding="reflect")
    compare(vq.RandDisc, (3, 9, 9), codes=40, iterations=2)
    lloyd()


def main() -> None:
    for part in (cuda, lloyd, defenses, other_calls, strips):  # the later ones change the module
        part()
        print(part.__name__, "agree", flush=True)


if __name__ == "__main__":
    main()

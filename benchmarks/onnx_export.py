"""Does an exported model answer as the model does, and how fast?

    python benchmarks/onnx_export.py [--images 200]

The bundled classifier behind each quantizer, exported to ONNX and run by onnxruntime on one thread, beside
the same seed and streams here: by the kernel of the CPU, and by the exact reference, whose labels the graph
should give. Times are of the CPU, for batches. Writes benchmarks/results/onnx-cpu.json.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime
import torch
from torch import Tensor

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain
from vqshield.data import sample
from vqshield_deploy import export_onnx
from vqshield_deploy.onnx import Exported

ROOT = Path(__file__).resolve().parents[1]
SEED, BATCH = 7, 50


@dataclass(frozen=True, kw_only=True)
class Compared:
    """An exported model beside the model run here by one backend."""

    backend: str
    same_class: float
    same_pixels: float  # share of images with every pixel within 1e-5: all patches have the same centre
    logits_within: float  # the largest difference of logits in those images
    milliseconds_an_image: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One defense."""

    defense: str
    opset: int
    nodes: int
    bytes: int
    milliseconds_an_image: float
    compared: tuple[Compared, ...]


def batched(answer: Callable[[slice], Tensor], count: int) -> tuple[Tensor, float]:
    """All answers, and CPU milliseconds an image."""
    answer(slice(0, 2))
    began = time.process_time()
    parts = [answer(slice(first, first + BATCH)) for first in range(0, count, BATCH)]
    return torch.cat(parts), (time.process_time() - began) / count * 1e3


def measure(name: str, images: Tensor, folder: Path) -> Row:
    streams = torch.arange(len(images))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1

    def session(model: vq.Defended | vq.Defense) -> tuple[Exported, Callable[[slice], Tensor]]:
        written = export_onnx(model, folder / f"{type(model).__name__}.onnx", shape=tuple(images.shape[1:]))
        loaded = onnxruntime.InferenceSession(str(written.path), options)

        def answer(part: slice) -> Tensor:
            given = {
                "images": images[part].numpy(),
                "streams": streams[part].numpy(),
                "seed": np.array([SEED]),
            }
            return torch.from_numpy(loaded.run(None, given)[0])

        return written, answer

    model = vq.defend(small_cifar10(), name, seed=SEED)
    written, answer = session(model)
    logits, milliseconds = batched(answer, len(images))
    pixels, _ = batched(session(model.defense)[1], len(images))
    compared = []
    for backend in ("native", "torch"):
        model.defense.backend = backend
        with torch.no_grad():
            ours, taken = batched(lambda part: model(images[part], streams=streams[part]), len(images))
            near = (model.defense(images, streams=streams) - pixels).abs().flatten(1).amax(1) < 1e-5
        compared.append(
            Compared(
                backend=backend,
                same_class=float((ours.argmax(1) == logits.argmax(1)).double().mean()),
                same_pixels=float(near.double().mean()),
                logits_within=float((ours - logits)[near].abs().max()),
                milliseconds_an_image=round(taken, 3),
            )
        )
    return Row(
        defense=name,
        opset=written.opset,
        nodes=written.nodes,
        bytes=written.bytes,
        milliseconds_an_image=round(milliseconds, 3),
        compared=tuple(compared),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()

    torch.set_num_threads(1)
    images = sample(options.images).floats()
    rows = []
    with TemporaryDirectory() as folder:
        for name in vq.list_defenses():
            rows.append(measure(name, images, Path(folder)))
            print(rows[-1], flush=True)
    packages = ("onnx", "onnxruntime", "onnxscript", "numpy")
    record = {
        "what": "exported models beside the models, bundled CIFAR-10 images", "images": len(images),
        "seed": SEED, "batch": BATCH, "threads": 1,
        "versions": {each: metadata.version(each) for each in packages},
        "environment": environment(), "rows": to_plain(rows),
    }  # fmt: skip
    write_json(options.results / "onnx-cpu.json", record)


if __name__ == "__main__":
    main()

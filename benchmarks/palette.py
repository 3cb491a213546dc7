"""How fast, and how well, does examples/palette.py reduce photographs, compared with other libraries?

    python benchmarks/palette.py --images FOLDER [--count 8] [--sides 256 1024] [--colours 16 64]

Every method gets the same pixels and the same number of colours, without dithering, on one thread; the
methods take turns, image by image, so that a busy machine slows all of them alike. Counted is CPU time from
RGB bytes to palette and indices. The photographs are cropped to squares and resized. A method whose package
is not installed, or not built in, is recorded as absent. Writes benchmarks/results/palette-cpu.json.
"""

import argparse
import io
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before any library reads it

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, features

import vqshield as vq
from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.core.serialization import to_plain

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from palette import encode_indexed_png, palette

ROOT = Path(__file__).resolve().parents[1]
Bytes = NDArray[np.uint8]
Reduced = tuple[Bytes, NDArray[np.integer]]  # palette (k, 3), indices (h, w)
Method = Callable[[Bytes, int], Reduced]
SAMPLE = 2**14  # pixels for scikit-learn's k-means


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method at one size: the mean over the photographs."""

    method: str
    side: int
    colours: int
    images_per_cpu_second: float
    psnr: float


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bytes of PNG files of the same photographs, each reduced to as many colours by RandDisc."""

    side: int
    colours: int
    indexed: float
    purified: float


def ours(pixels: Bytes, colours: int) -> Reduced:
    return _ours(pixels, colours)


def ours_from_all_pixels(pixels: Bytes, colours: int) -> Reduced:
    return _ours(pixels, colours, sample=pixels.shape[0] * pixels.shape[1], restarts=1)


def _ours(pixels: Bytes, colours: int, **settings: int) -> Reduced:
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
    found = palette(images, colours, **settings)
    return found.colours[0].numpy(), found.indices[0].numpy()


def pillow(method: Image.Quantize) -> Method:
    def reduce(pixels: Bytes, colours: int) -> Reduced:
        found = Image.fromarray(pixels).quantize(colours, method=method, dither=Image.Dither.NONE)
        return _indexed(found)

    return reduce


def imagequant(pixels: Bytes, colours: int) -> Reduced:
    library = import_module("imagequant")
    found = library.quantize_pil_image(Image.fromarray(pixels), dithering_level=0.0, max_colors=colours)
    return _indexed(found)


def _indexed(image: Image.Image) -> Reduced:
    return np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3), np.asarray(image)


def scikit_learn(sample: int | None) -> Method:
    def reduce(pixels: Bytes, colours: int) -> Reduced:
        library = import_module("sklearn.cluster")
        points = pixels.reshape(-1, 3).astype(np.float32) / 255
        seen = points
        if sample is not None and sample < len(points):
            seen = points[np.random.default_rng(0).choice(len(points), sample, replace=False)]
        fitted = library.KMeans(colours, n_init=1, max_iter=20, random_state=0).fit(seen)
        centers = np.rint(fitted.cluster_centers_.clip(0, 1) * 255).astype(np.uint8)
        return centers, fitted.predict(points).reshape(pixels.shape[:2])

    return reduce


def opencv(pixels: Bytes, colours: int) -> Reduced:
    library = import_module("cv2")
    library.setNumThreads(1)
    library.setRNGSeed(0)
    criteria = (library.TERM_CRITERIA_MAX_ITER, 20, 0)
    points = pixels.reshape(-1, 3).astype(np.float32)
    _, labels, centres = library.kmeans(points, colours, None, criteria, 1, library.KMEANS_PP_CENTERS)
    return np.rint(centres).astype(np.uint8), labels.reshape(pixels.shape[:2])


def methods() -> tuple[dict[str, Method], dict[str, str]]:
    """Those that can run here, and why the others cannot."""
    found: dict[str, Method] = {"vqshield": ours, "vqshield, all pixels": ours_from_all_pixels}
    absent = {}
    found["Pillow, median cut"] = pillow(Image.Quantize.MEDIANCUT)
    found["Pillow, octree"] = pillow(Image.Quantize.FASTOCTREE)
    if features.check("libimagequant"):
        found["Pillow, libimagequant"] = pillow(Image.Quantize.LIBIMAGEQUANT)
    else:
        absent["Pillow, libimagequant"] = "not built into this Pillow"
    peers: tuple[tuple[str, str, Method], ...] = (
        ("imagequant", "imagequant", imagequant),
        ("scikit-learn, all pixels", "sklearn", scikit_learn(None)),
        ("scikit-learn, sample", "sklearn", scikit_learn(SAMPLE)),
        ("OpenCV", "cv2", opencv),
    )
    for name, package, method in peers:
        try:
            import_module(package)
        except ImportError:
            absent[name] = "not installed"
        else:
            found[name] = method
    return found, absent


def measure(photos: list[Bytes], colours: int, tried: dict[str, Method], seconds: float) -> list[Row]:
    """All methods in turn, image by image; each repeats a quick one until it took that long."""
    taken: dict[str, list[float]] = {name: [] for name in tried}
    quality: dict[str, list[float]] = {name: [] for name in tried}
    for method in tried.values():
        method(photos[0], colours)  # what is imported or made at the first use
    for pixels in photos:
        for name, method in tried.items():
            began, rounds = time.process_time(), 0
            while rounds == 0 or time.process_time() - began < seconds:
                (palette, indices), rounds = method(pixels, colours), rounds + 1
            taken[name].append((time.process_time() - began) / rounds)
            assert int(indices.max()) < colours, name
            error = np.square((palette[indices].astype(np.float64) - pixels) / 255).mean()
            quality[name].append(float(-10 * np.log10(error)))
    return [
        Row(
            method=name,
            side=photos[0].shape[0],
            colours=colours,
            images_per_cpu_second=round(len(photos) / sum(taken[name]), 3),
            psnr=round(float(np.mean(quality[name])), 3),
        )
        for name in tried
    ]


def file_sizes(photos: list[Bytes], colours: int) -> Size:
    """Indexed files beside those that `vqshield purify` writes with as many centres."""
    indexed = purified = 0
    for pixels in photos:
        images = torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous()
        indexed += len(encode_indexed_png(palette(images, colours)))
        with TemporaryDirectory() as folder:
            source = Path(folder) / "photo.png"
            Image.fromarray(pixels).save(source)
            (done,) = vq.purify(source, Path(folder) / "out", defense=f"randdisc:codes={colours}", seed=0)
            assert done.output is not None, done.error
            purified += done.output.stat().st_size
    return Size(
        side=photos[0].shape[0],
        colours=colours,
        indexed=indexed / len(photos),
        purified=purified / len(photos),
    )


def square(path: Path, side: int) -> Bytes:
    with Image.open(io.BytesIO(path.read_bytes())) as photo:
        image = photo.convert("RGB")
    edge = min(image.size)
    left, top = (image.width - edge) // 2, (image.height - edge) // 2
    cropped = image.crop((left, top, left + edge, top + edge))
    return np.array(cropped.resize((side, side), Image.Resampling.LANCZOS))


def versions() -> dict[str, str]:
    packages = ("pillow", "imagequant", "scikit-learn", "opencv-python-headless", "numpy")
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--sides", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--colours", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--source", default="", help="what the photographs are, for the record")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()

    torch.set_num_threads(1)
    paths = sorted(
        path for path in options.images.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png")
    )
    tried, absent = methods()
    before, rows, sizes = os.getloadavg()[0], [], []
    for side in options.sides:
        photos = [square(path, side) for path in paths[: options.count]]
        for colours in options.colours:
            rows += measure(photos, colours, tried, options.seconds)
            sizes.append(file_sizes(photos, colours))
            for row in rows[-len(tried) :]:
                print(row)
            print(sizes[-1], flush=True)
    record = {
        "what": "palettes: images a CPU second on one thread, and mean PSNR in dB", "source": options.source,
        "images": min(options.count, len(paths)), "threads": 1, "load": [before, os.getloadavg()[0]],
        "versions": versions(), "absent": absent, "environment": environment(), "rows": to_plain(rows),
        "sizes": to_plain(sizes),
    }  # fmt: skip
    write_json(options.results / "palette-cpu.json", record)


if __name__ == "__main__":
    main()

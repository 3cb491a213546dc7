"""Reduce photographs to indexed PNG files of a few colours, with the k-means of the quantizers.

    pip install ".[cli]" -c constraints.txt
    python examples/palette.py photos/ --out small/ --colors 16 [--dither]

The palette is the centres that k-means finds among the pixels of an image, without noise. For a large image,
a sample of the pixels decides the palette; every pixel then takes the nearest color. Transparent colors are
compared as they look: multiplied by their alpha.
"""

import argparse
import io
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.files import write_atomically
from vqshield.images.files import Picture, pillow, read_image
from vqshield.images.purify import plan
from vqshield.quantization.kernels import Backend, Recipe
from vqshield.quantization.kernels.base import check_images
from vqshield.quantization.kmeans import best_centres, pick_backend, plain_recipe
from vqshield.quantization.noise import Draw, Stage

MOST_COLOURS = 256
"""That an index of one byte can name, and an indexed PNG can hold."""

_CHANNELS = (1, 2, 3, 4)  # grey, grey with alpha, RGB, RGBA
_WITH_ALPHA = (2, 4)
_HALF_WORD = 16
_LEAST_SAMPLE, _LEAST_A_COLOUR, _LEAST_SHARE = 4096, 112, 128  # pixels; for each colour; one in 128
_LARGE = 2**18  # pixels: above, a second start is cheap compared with assigning each pixel its colour
_FIRST_LOOK = 16  # every sixteenth pixel of the sample is looked at first


@dataclass(frozen=True)
class Palettes:
    """The palettes of a batch of images.

    Args:
        colours: (B, k, q), uint8; k is smaller than asked for where an image has fewer pixels.
        indices: (B, h, w), uint8: the number of each pixel's colour.

    """

    colours: Tensor
    indices: Tensor

    def images(self) -> Tensor:
        """The images as their palettes show them, (B, q, h, w), uint8."""
        batch, height, width = self.indices.shape
        chosen = self.indices.flatten(1).long()[:, None].expand(-1, self.colours.shape[2], -1)
        return self.colours.transpose(1, 2).gather(2, chosen).view(batch, -1, height, width)


def palette(
    images: Tensor,
    k: int,
    *,
    dither: bool = False,
    sample: int | None = None,
    iterations: int = 20,
    init: str = "kmeans++",
    restarts: int | None = None,
    seed: int = 0,
    backend: str = "auto",
) -> Palettes:
    """The k colours that show each image best, and the index of each pixel's colour.

    An image's result depends on the image, the settings and the seed alone, not on the rest of the batch. An
    image whose sample shows at most k colours is taken whole, so that flat graphics keep every one of theirs.

    Args:
        images: (B, q, h, w), uint8, or float32 or float64 in [0, 1]; q = 1 grey, 3 RGB, 2 and 4 the same with
            alpha behind.
        k: the number of colours, from 1 to 256.
        dither: spread each pixel's error over its neighbours (Floyd–Steinberg), which shows smooth shades
            with few colours.
        sample: about how many pixels of an image k-means sees, one at random from each of that many equal
            cells. None takes one in 128, at least 4096 and at least 112 for each colour.
        iterations: the most rounds of k-means.
        init: "kmeans++" or "random", the pixels that k-means starts from.
        restarts: how many starts of k-means; the best is kept. None for 1, or 2 where an image has 512×512
            pixels or more.
        seed: decides the sample and the start.
        backend: "auto" or one of vqshield.quantization.kernels.list_backends().

    Raises:
        InvalidInputError: images or settings that cannot work.
    """
    pixels = _premultiplied(_as_floats(images))
    checks.whole("k", k, least=1, below=MOST_COLOURS + 1)
    checks.flag("dither", dither)
    batch, channels, height, width = pixels.shape
    count = height * width
    codes = min(k, count)
    if sample is None:
        sample = max(_LEAST_SAMPLE, _LEAST_A_COLOUR * codes, count // _LEAST_SHARE)
    if restarts is None:
        restarts = 1 if count < _LARGE else 2
    checks.whole("sample", sample, least=codes)
    checks.whole("restarts", restarts, least=1, below=2**31)
    recipe = plain_recipe(codes, iterations=iterations, init=init)
    streams = torch.zeros(batch, dtype=torch.int64, device=pixels.device)
    draw = Draw(checks.whole("seed", seed, least=0, below=2**64), streams)
    check_images(pixels, recipe, draw)
    chosen = pick_backend(backend, pixels.device, codes, channels)
    centres = _fit(chosen, pixels, recipe, draw, sample, restarts)
    colours = _as_bytes(centres)
    shown = _premultiplied(colours.to(pixels.dtype).div_(255).transpose(1, 2)[..., None])
    shown = shown[..., 0].transpose(1, 2).contiguous()  # (B, k, q): as the pixels are compared with them
    if dither:
        indices = _diffuse(pixels, shown)
    else:
        indices = chosen.assignments(pixels, shown, recipe, draw).to(torch.uint8)
    return Palettes(colours, indices.view(batch, height, width))


def _as_floats(images: object) -> Tensor:
    if isinstance(images, Tensor) and images.dtype == torch.uint8:
        floats = checks.image_batch(images.float().div_(255))
    else:
        floats = checks.image_batch(images).detach().contiguous()
        checks.pixel_values(floats)
    if floats.shape[1] not in _CHANNELS:
        raise InvalidInputError(
            f"images of shape {tuple(floats.shape)} have {floats.shape[1]} channels; a palette takes "
            "1 (grey), 3 (RGB), or 2 and 4 with alpha behind"
        )
    return floats


def _premultiplied(pixels: Tensor) -> Tensor:
    """Colours times alpha, where there is one: as they look."""
    if pixels.shape[1] not in _WITH_ALPHA:
        return pixels
    alpha = pixels[:, -1:]
    return torch.cat([pixels[:, :-1] * alpha, alpha], 1)


def _as_bytes(centres: Tensor) -> Tensor:
    """The colours (B, k, q) of centres that may be multiplied by their alpha."""
    if centres.shape[2] in _WITH_ALPHA:
        alpha = centres[..., -1:]
        colour = torch.where(alpha > 0, centres[..., :-1] / alpha.clamp(min=1e-12), 0.0)
        centres = torch.cat([colour, alpha], 2)
    return centres.clamp(0, 1).mul(255).round().to(torch.uint8)


def _fit(backend: Backend, pixels: Tensor, recipe: Recipe, draw: Draw, sample: int, restarts: int) -> Tensor:
    """The centres (B, k, q) of k-means over a sample of each image."""
    seen = _sampled(pixels, draw.seed, sample)
    centres = best_centres(backend, seen, recipe, draw.seed, restarts)
    if seen.shape[2:] != pixels.shape[2:]:
        few = _with_few_colours(seen, recipe.codes)
        if len(few):
            centres[few] = best_centres(backend, pixels[few], recipe, draw.seed, 1)
    return centres


def _sampled(pixels: Tensor, seed: int, sample: int) -> Tensor:
    """One pixel at random from each of rows × columns equal cells; all pixels of a small image."""
    batch, channels, height, width = pixels.shape
    if sample >= height * width:
        return pixels
    rows = min(height, math.ceil(math.sqrt(sample * height / width)))
    columns = min(width, -(-sample // rows))
    chosen = _places(seed, height, width, rows, columns, pixels.device)
    return pixels.flatten(2).index_select(2, chosen).view(batch, channels, rows, columns)


@lru_cache(maxsize=8)
def _places(seed: int, height: int, width: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Which pixels are sampled: the same ones of all images of that shape.

    A fixed place in each cell would meet a regular pattern, such as an earlier dithering, at one phase alone.
    """
    draw = Draw(seed, torch.zeros(1, dtype=torch.int64, device=device))
    words = draw.words(Stage.CODEBOOK, 0, rows * columns).view(rows, columns)
    one = 1 << _HALF_WORD
    cell = torch.arange(max(rows, columns), device=device) * one
    y = (cell[:rows, None] + (words >> _HALF_WORD)) * height // (rows * one)
    x = (cell[:columns] + (words & (one - 1))) * width // (columns * one)
    return (y * width + x).flatten()


def _with_few_colours(pixels: Tensor, codes: int) -> Tensor:
    """The numbers of the images of at most that many different colours, to a byte."""
    few = torch.arange(len(pixels), device=pixels.device)
    for step in (_FIRST_LOOK, 1):  # some of its pixels already show of nearly every image that it has more
        if len(few):
            few = few[_distinct(pixels[few].flatten(2)[..., ::step]) <= codes]
    return few


def _distinct(pixels: Tensor) -> Tensor:
    """How many different colours, to a byte, there are among pixels (B, q, n): (B,)."""
    number = torch.zeros_like(pixels[:, 0], dtype=torch.int64)
    for channel in pixels.unbind(1):
        number = number * 256 + channel.mul(255).round().long()
    ordered = number.sort(1).values
    return 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1)


def _diffuse(pixels: Tensor, colours: Tensor) -> Tensor:
    """Floyd–Steinberg: pixels (B, q, h, w), colours (B, k, q) → indices (B, h·w).

    A pixel waits for its left neighbour and three above, so all pixels with equal x + 2·y can be decided at
    once. They are laid out as rows of a skewed image, where every neighbour is a slice. Values are added and
    compared one by one in a fixed order, so that every batch and device gives the same bits.
    """
    batch, channels, height, width = pixels.shape
    steps = width + 2 * (height - 1)
    rows = torch.arange(height, device=pixels.device)[:, None]
    place = (torch.arange(width, device=pixels.device) + 2 * rows) * height + rows  # (h, w) → in (steps, h)
    waves = pixels.new_zeros(batch, channels, (steps + 3) * (height + 1))
    stride = height + 1  # a spare row below and three spare steps: where the last pixels' errors go
    waves[:, :, ((place // height) * stride + rows).flatten()] = pixels.flatten(2)
    waves = waves.view(batch, channels, steps + 3, stride)
    found = torch.zeros(batch, steps, height, dtype=torch.uint8, device=pixels.device)
    palette_values = colours.transpose(1, 2)  # (B, q, k)
    for step in range(steps):
        here = slice(max(0, (step - width + 2) // 2), min(height, step // 2 + 1))
        below = slice(here.start + 1, here.stop + 1)
        wanted = waves[:, :, step, here].clamp(0, 1)  # (B, q, m)
        label = _closest(wanted, palette_values)
        found[:, step, here] = label.to(torch.uint8)
        error = wanted - palette_values.gather(2, label[:, None].expand(-1, channels, -1))
        waves[:, :, step + 1, here] += error * (7 / 16)
        waves[:, :, step + 1, below] += error * (3 / 16)
        waves[:, :, step + 2, below] += error * (5 / 16)
        waves[:, :, step + 3, below] += error * (1 / 16)
    return found.flatten(1)[:, place.flatten()]


def _closest(wanted: Tensor, colours: Tensor) -> Tensor:
    """The colour (of B, q, k) nearest to each value (B, q, m), as (B, m)."""
    distance = (wanted[:, 0, :, None] - colours[:, 0, None]).square_()
    for channel in range(1, wanted.shape[1]):
        distance += (wanted[:, channel, :, None] - colours[:, channel, None]).square_()
    return distance.min(2).indices


def index_files(
    paths: Iterable[Path], out: Path, *, colours: int = 16, dither: bool = False, overwrite: bool = False
) -> dict[Path, str | None]:
    """Write each PNG or JPEG file, or every such file in a folder, as an indexed PNG of a few colors.

    Returns:
        The error of each file, None where it was written; the others are still done.
    """
    errors: dict[Path, str | None] = {}
    for file in plan(paths, out):
        errors[file.source] = file.problem
        if file.problem is None and file.target.exists() and not overwrite:
            errors[file.source] = f"{file.target} exists; allow overwriting or choose another folder"
        if errors[file.source] is not None:
            continue
        try:
            picture = read_image(file.source)
            palettes = palette(_pixels(picture), colours, dither=dither)
            write_atomically(file.target, encode_indexed_png(palettes, icc_profile=picture.icc_profile))
        except (VqshieldError, OSError) as error:
            errors[file.source] = str(error)
    return errors


def encode_indexed_png(palettes: Palettes, *, icc_profile: bytes | None = None) -> bytes:
    """A PNG of the one image that the palettes are of, with as few bits a pixel as its colours need."""
    if len(palettes.indices) != 1:
        raise InvalidInputError(f"palettes of {len(palettes.indices)} images should be of one")
    colours, indices = palettes.colours[0].cpu().numpy(), palettes.indices[0].cpu().numpy()
    # Equal colours become one, and unused ones none: fewer bits a pixel, and fewer bytes.
    kept, places = np.unique(colours, axis=0, return_inverse=True)
    used, indices = np.unique(places.reshape(-1)[indices.reshape(-1)], return_inverse=True)
    colours, indices = kept[used], indices.reshape(palettes.indices.shape[1:]).astype(np.uint8)
    opaque = colours[:, :-1] if colours.shape[1] in (2, 4) else colours
    image = pillow().frombytes("P", indices.shape[::-1], indices.tobytes())
    image.putpalette(np.repeat(opaque, 3, axis=1).tobytes() if opaque.shape[1] == 1 else opaque.tobytes())
    # RGB rows: a grey palette's profile would not describe them.
    options = {} if opaque.shape[1] == 1 or icc_profile is None else {"icc_profile": icc_profile}
    if colours.shape[1] in (2, 4) and int(colours[:, -1].min()) < 255:
        options["transparency"] = colours[:, -1].tobytes()
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=False, **options)
    return buffer.getvalue()


def _pixels(picture: Picture) -> Tensor:
    """(1, q, h, w), with alpha behind the colours where a pixel is not opaque."""
    if picture.alpha is None or int(picture.alpha.min()) == 255:
        return picture.colour[None]
    alpha = picture.alpha.float().div(255)[None]
    return torch.cat([picture.colour, alpha])[None]


def main() -> None:
    """Reduce the files on the command line; exit with 1 if any failed."""
    parser = argparse.ArgumentParser(description="Reduce pictures to indexed PNG files of a few colors.")
    parser.add_argument("images", type=Path, nargs="+", help="PNG or JPEG files, or folders of them")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument(
        "--colors", type=int, default=16, help="colors per picture, at most 256 (default: 16)"
    )
    parser.add_argument("--dither", action="store_true", help="dither smooth shades (Floyd-Steinberg)")
    parser.add_argument("--overwrite", action="store_true", help="replace earlier results")
    options = parser.parse_args()
    results = index_files(
        options.images,
        options.out,
        colours=options.colors,
        dither=options.dither,
        overwrite=options.overwrite,
    )
    failed = [error for error in results.values() if error is not None]
    for error in failed:
        print(f"error: {error}", file=sys.stderr)
    print(f"{len(results) - len(failed)} of {len(results)} pictures with at most {options.colors} colors")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

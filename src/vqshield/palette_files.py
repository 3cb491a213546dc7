"""Image files in, indexed PNG files out: a palette, and one index a pixel."""

import io
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vqshield.core.errors import InvalidInputError
from vqshield.core.files import write_atomically
from vqshield.images.files import DEFAULT_MAX_PIXELS, Picture, pillow
from vqshield.images.purify import PlannedFile, Purified, convert_file, plan
from vqshield.palettes import Palettes, palette


def index_files(
    paths: Path | str | Iterable[Path | str],
    out: Path | str,
    *,
    colours: int = 16,
    dither: bool = False,
    seed: int = 0,
    overwrite: bool = False,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Callable[[Purified, int, int], None] | None = None,
) -> list[Purified]:
    """Write each image file as an indexed PNG of a few colours.

    Args:
        paths: PNG or JPEG files, or folders: a folder stands for every PNG and JPEG file below it.
        out: the folder for the results.
        colours: how many, from 1 to 256; fewer where a picture has fewer.
        dither: as of `vqshield.palette`.
        seed: as of `vqshield.palette`.
        overwrite: replace earlier results. An input is never replaced.
        max_pixels: refuse larger pictures, so that a decompression bomb cannot fill the memory.
        progress: called after each file with what became of it, how many are done, and how many there are.

    Returns:
        What became of each file; one that fails has its error, and the others are still done.

    Raises:
        InvalidInputError: the output folder cannot be used.
    """
    given = [paths] if isinstance(paths, Path | str) else list(paths)
    files = plan(map(Path, given), Path(out))
    found: list[Purified] = []
    for file in files:

        def write(picture: Picture, file: PlannedFile = file) -> None:
            palettes = palette(_pixels(picture), colours, dither=dither, seed=seed)
            write_atomically(file.target, encode_indexed_png(palettes, icc_profile=picture.icc_profile))

        found.append(convert_file(file, write, overwrite=overwrite, max_pixels=max_pixels))
        if progress is not None:
            progress(found[-1], len(found), len(files))
    return found


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

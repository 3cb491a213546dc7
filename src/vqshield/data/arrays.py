"""Images that are arrays already: an ``.npz`` file, or any torch Dataset."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vqshield.checks import one_of, whole
from vqshield.data.base import SPLITS, ImageSet
from vqshield.errors import FileFormatError, InvalidInputError

CHANNELS = (1, 3)


def read_npz(*, split: str, folder: Path) -> ImageSet:
    """Read ``images`` and ``labels`` (and ``classes``, where there is one) from SPLIT.npz or the file given.

    images: uint8, or floats in [0,1], which are rounded to bytes; (n, h, w), (n, h, w, c) or (n, c, h, w).
    """
    one_of("split", split, SPLITS)
    path = folder if folder.suffix == ".npz" else folder / f"{split}.npz"
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}; give an .npz file or a folder with {split}.npz")
    try:
        with np.load(path, allow_pickle=False) as opened:
            if absent := {"images", "labels"} - set(opened.files):
                raise FileFormatError(
                    f"{path} has no array {sorted(absent)[0]!r}; it has {', '.join(opened.files) or 'none'}"
                )
            arrays = {name: opened[name] for name in ("images", "labels", "classes") if name in opened.files}
    except (OSError, EOFError, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} is no whole .npz file of plain arrays: {error}") from error
    images, labels = arrays["images"], arrays["labels"]
    if images.dtype.kind not in "uif":
        raise FileFormatError(f"{path}: images are {images.dtype}; give uint8, or floats in [0,1]")
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size:
        raise FileFormatError(
            f"{path}: labels are {labels.dtype} of shape {labels.shape}; give whole numbers (n,)"
        )
    return ImageSet(
        name=path.name,
        images=_bytes(_channels_first(torch.from_numpy(images), str(path)), str(path)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=_classes(arrays.get("classes"), int(labels.max()) + 1),
    )


def from_dataset(
    dataset: Any, *, name: str, classes: Sequence[str] | None = None, limit: int | None = None
) -> ImageSet:
    """Return the first ``limit`` images of a torch Dataset of (image, label) pairs, kept as bytes.

    An image is a tensor (c, h, w), uint8 or in [0,1], or a Pillow image; all of one size. Leave normalisation
    out: it belongs to the classifier. Class names are taken from ``dataset.classes`` where it has them.
    """
    count = len(dataset) if limit is None else min(whole("limit", limit, least=1), len(dataset))
    if count == 0:
        raise InvalidInputError(f"{name!r} holds no images; it must hold at least one")
    images, labels = [], []
    for number in range(count):
        image, label = dataset[number]
        if not isinstance(image, Tensor):
            array = np.array(image)
            image = torch.from_numpy(array[:, :, None] if array.ndim == 2 else array).permute(2, 0, 1)
        images.append(_bytes(image, f"image {number} of {name!r}"))
        if images[-1].shape != images[0].shape:
            raise InvalidInputError(
                f"image {number} of {name!r} has shape {tuple(images[-1].shape)}, "
                f"image 0 has {tuple(images[0].shape)}; resize them to one"
            )
        labels.append(int(label))
    names = classes if classes is not None else getattr(dataset, "classes", None)
    return ImageSet(name, torch.stack(images), torch.tensor(labels), _classes(names, max(labels) + 1))


def _classes(names: Any, count: int) -> tuple[str, ...]:
    return tuple(map(str, range(max(count, 1)) if names is None else names))


def _channels_first(images: Tensor, where: str) -> Tensor:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in CHANNELS:
        return images
    if images.ndim == 4 and images.shape[3] in CHANNELS:
        return images.permute(0, 3, 1, 2).contiguous()
    raise FileFormatError(
        f"{where}: images of shape {tuple(images.shape)} should be "
        "(n, h, w), (n, h, w, c) or (n, c, h, w), with c 1 or 3"
    )


def _bytes(images: Tensor, where: str) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise InvalidInputError(f"{where}: pixels of {images.dtype} should be uint8, or floats in [0,1]")
    if not bool(((images >= 0) & (images <= 1)).all()):  # nan fails both
        raise InvalidInputError(
            f"{where}: pixels from {float(images.min()):g} to {float(images.max()):g} should lie in [0,1]; "
            "leave normalisation to the classifier"
        )
    return (images * 255).round().to(torch.uint8)

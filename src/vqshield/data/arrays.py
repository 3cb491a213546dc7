"""Images that are arrays already: an ``.npz`` file, or any torch Dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vqshield.core.checks import whole
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import npz
from vqshield.data.base import MAX_CLASSES, ImageSet, check_class_count, check_label_range

CHANNELS = (1, 3)
PIXEL_TYPES = ("uint8", "float16", "float32", "float64")
MOST_CLASS_NAME = 1000  # characters


def read_npz(*, split: str, folder: Path, limit: int | None = None) -> ImageSet:
    """Read ``images`` and ``labels`` (and ``classes``, where there is one) from SPLIT.npz or the file given.

    images: uint8, or floats in [0,1], which are rounded to bytes; (n, h, w), (n, h, w, c) or (n, c, h, w), of
    either byte order. limit: how many of them are read and, where they are packed, unpacked.
    """
    path = folder if folder.suffix == ".npz" else folder / f"{split}.npz"
    if not path.is_file():
        raise InvalidInputError(f"there is no file {path}; give an .npz file or a folder with {split}.npz")
    arrays = npz.members(path, ("images", "labels", "classes"))
    for name in ("images", "labels"):
        if name not in arrays:
            known = ", ".join(npz.names(path)[:10]) or "none"
            raise FileFormatError(f"{path} has no array {name!r}; it has {known}")
    pixels, labels = arrays["images"], _labels(arrays["labels"], count=_rows(arrays["images"]))
    check_label_range(str(path), (int(labels.min()), int(labels.max())), MAX_CLASSES)
    return ImageSet(
        name=path.name,
        images=_images(pixels, limit),
        labels=torch.from_numpy(labels.astype(np.int64))[:limit],
        classes=_class_names(arrays["classes"]) if "classes" in arrays else _numbered(labels.max()),
    )


def _rows(array: npz.Member) -> int:
    """The number of rows; none where the array is a single value."""
    return array.shape[0] if array.shape else 0


def _labels(array: npz.Member, *, count: int) -> npz.Array:
    if len(array.shape) != 1 or array.dtype.kind not in "iu" or not array.shape[0]:
        raise FileFormatError(
            f"{array.path}: labels are {array.dtype} of shape {array.shape}; give whole numbers (n,)"
        )
    if array.shape[0] != count:
        raise FileFormatError(f"{array.path} has {count} images but {array.shape[0]} labels")
    return array.read()


def _images(array: npz.Member, limit: int | None) -> Tensor:
    where = str(array.path)
    if array.dtype.newbyteorder("=").name not in PIXEL_TYPES:
        raise FileFormatError(
            f"{where}: images are {array.dtype}; give uint8, or floats in [0,1] ({', '.join(PIXEL_TYPES)})"
        )
    if len(array.shape) not in (3, 4) or 0 in array.shape:
        raise _wrong_shape(where, array.shape)
    count = array.shape[0] if limit is None else min(whole("limit", limit, least=1), array.shape[0])
    blocks = array.blocks(count)
    parts = [as_bytes(_channels_first(torch.from_numpy(block.copy()), where), where) for block in blocks]
    return torch.cat(parts)


def _class_names(array: npz.Member) -> tuple[str, ...]:
    kind = array.dtype.kind
    if kind not in "USiu" or len(array.shape) != 1:
        raise FileFormatError(
            f"{array.path}: classes are {array.dtype} of shape {array.shape}; give texts or numbers (n,)"
        )
    check_class_count(array.path.name, array.shape[0])
    if array.dtype.itemsize > 4 * MOST_CLASS_NAME:
        raise FileFormatError(
            f"{array.path}: classes are {array.dtype}; a name has at most {MOST_CLASS_NAME} characters"
        )
    values = array.read().tolist()
    return tuple(each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in values)


def _numbered(highest: int) -> tuple[str, ...]:
    return tuple(map(str, range(int(highest) + 1)))


def from_dataset(
    dataset: Any, *, name: str, classes: Sequence[str] | None = None, limit: int | None = None
) -> ImageSet:
    """The first ``limit`` images of a torch Dataset of (image, label) pairs, kept as bytes.

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
        images.append(as_bytes(image, f"image {number} of {name!r}"))
        if images[-1].shape != images[0].shape:
            raise InvalidInputError(
                f"image {number} of {name!r} has shape {tuple(images[-1].shape)}, "
                f"image 0 has {tuple(images[0].shape)}; resize them to one"
            )
        labels.append(int(label))
    names = classes if classes is not None else getattr(dataset, "classes", None)
    if names is None:
        check_class_count(name, max(labels) + 1)
        names = _numbered(max(labels))
    return ImageSet(name, torch.stack(images), torch.tensor(labels), tuple(map(str, names)))


def _channels_first(images: Tensor, where: str) -> Tensor:
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in CHANNELS:
        return images
    if images.ndim == 4 and images.shape[3] in CHANNELS:
        return images.permute(0, 3, 1, 2).contiguous()
    raise _wrong_shape(where, tuple(images.shape))


def _wrong_shape(where: str, shape: tuple[int, ...]) -> FileFormatError:
    return FileFormatError(
        f"{where}: images of shape {shape} should be "
        "(n, h, w), (n, h, w, c) or (n, c, h, w), with c 1 or 3 and no side 0"
    )


def as_bytes(images: Tensor, where: str) -> Tensor:
    """Bytes as they are, floats in [0,1] rounded; ``where`` is what a message calls them."""
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

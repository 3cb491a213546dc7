import gzip

import numpy as np
import pytest
import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import load


def idx(array, *, magic=None):
    """An array of bytes in idx layout."""
    sizes = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return (magic or bytes([0, 0, 8, array.ndim])) + sizes + array.astype(np.uint8).tobytes()


IMAGES = np.arange(2 * 28 * 28).reshape(2, 28, 28) % 251
LABELS = np.array([7, 0])


def write(folder, *, images=None, labels=None, packed=False, prefix="t10k"):
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        f"{prefix}-images-idx3-ubyte": idx(IMAGES) if images is None else images,
        f"{prefix}-labels-idx1-ubyte": idx(LABELS) if labels is None else labels,
    }
    for name, content in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("below", [".", "MNIST/raw"])
@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_plain_and_packed_read_alike(tmp_path, packed, below, split, prefix):
    write(tmp_path / below, packed=packed, prefix=prefix)
    data = load("mnist", split, tmp_path)
    assert torch.equal(data.images[:, 0], torch.from_numpy(IMAGES.astype(np.uint8)))
    assert data.labels.tolist() == [7, 0]


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"images": idx(LABELS)}, "'00000801'.*'00000803'"),
        ({"images": b""}, "starts with"),
        ({"images": bytes([0, 0, 8, 3, 0, 0])}, "inside its header"),
        ({"images": idx(IMAGES)[:-1]}, "1568 bytes, but holds 1567"),
        ({"images": idx(IMAGES) + b"x"}, "more than 1568"),
        ({"images": idx(IMAGES[:1])}, "1 images but 2 labels"),
        ({"images": idx(IMAGES[:0])}, "0 bytes"),
        ({"labels": idx(np.array([3, 10]))}, r"label 10 is outside 0\.\.9"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_broken_files_are_named(tmp_path, parts, named, packed):
    write(tmp_path, packed=packed, **parts)
    with pytest.raises(FileFormatError, match=named):
        load("mnist", "test", tmp_path)


def test_broken_gzip_is_a_format_error(tmp_path):
    write(tmp_path, packed=True)
    broken = tmp_path / "t10k-images-idx3-ubyte.gz"
    broken.write_bytes(broken.read_bytes()[:-20])
    with pytest.raises(FileFormatError, match="cannot be read"):
        load("mnist", "test", tmp_path)
    broken.write_bytes(b"no gzip at all")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load("mnist", "test", tmp_path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match="train-images-idx3-ubyte"):
        load("mnist", "train", tmp_path)


def test_the_real_test_set(shared):
    data = load("mnist", "test", shared / "data")
    assert data.images.shape == (10_000, 1, 28, 28)
    assert data.labels[:5].tolist() == [7, 2, 1, 0, 4]

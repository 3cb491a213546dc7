"""An .npz file as an image set."""

import numpy as np
import pytest
import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import load, sample

IMAGES = sample(4).images.numpy()
LABELS = np.array([2, 0, 1, 1])


@pytest.mark.parametrize(
    "images",
    [IMAGES, IMAGES.transpose(0, 2, 3, 1), IMAGES / 255, (IMAGES / 255).astype(np.float32)],
    ids=["nchw", "nhwc", "float64", "float32"],
)
def test_npz_in_every_layout(tmp_path, images):
    np.savez(tmp_path / "test.npz", images=images, labels=LABELS)
    for place in (tmp_path, tmp_path / "test.npz"):
        data = load("npz", "test", place)
        assert torch.equal(data.images, torch.from_numpy(IMAGES))
        assert data.labels.tolist() == LABELS.tolist()
        assert data.classes == ("0", "1", "2")


def test_npz_of_grey_images_with_class_names(tmp_path):
    np.savez(
        tmp_path / "x.npz",
        images=IMAGES[:, 0],
        labels=LABELS.astype(np.uint8),
        classes=np.array(["a", "b", "c", "d"]),
    )
    data = load("npz", "train", tmp_path / "x.npz")
    assert data.images.shape == (4, 1, 32, 32)
    assert data.classes == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("arrays", "error", "named"),
    [
        ({"labels": LABELS}, FileFormatError, "no array 'images'; it has labels"),
        ({"images": IMAGES, "labels": LABELS / 2}, FileFormatError, "labels are float64"),
        ({"images": IMAGES, "labels": LABELS[:0]}, FileFormatError, r"labels .*\(0,\)"),
        ({"images": IMAGES, "labels": LABELS[:3]}, FileFormatError, "4 images but 3 labels"),
        ({"images": IMAGES, "labels": LABELS - 1}, FileFormatError, "label -1"),
        (
            {"images": IMAGES.astype(np.int64), "labels": LABELS},
            FileFormatError,
            "images are int64; give uint8",
        ),
        ({"images": IMAGES.astype(str), "labels": LABELS}, FileFormatError, "images are <U"),
        ({"images": IMAGES / 100, "labels": LABELS}, InvalidInputError, r"should lie in \[0,1\]"),
        ({"images": IMAGES[:, :2, :2], "labels": LABELS}, FileFormatError, r"\(4, 2, 2, 32\)"),
        ({"images": np.array([{}]), "labels": LABELS}, FileFormatError, "plain arrays"),
        ({"images": IMAGES, "labels": LABELS, "classes": np.array(["a"])}, InvalidInputError, r"0\.\.0"),
    ],
)
def test_bad_npz_files_are_named(tmp_path, arrays, error, named):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(error, match=named):
        load("npz", "test", tmp_path / "x.npz")


def test_what_is_no_npz_is_told(tmp_path):
    with pytest.raises(InvalidInputError, match=r"test\.npz does not exist"):
        load("npz", "test", tmp_path)
    np.savez(tmp_path / "test.npz", images=IMAGES, labels=LABELS)
    whole = (tmp_path / "test.npz").read_bytes()
    for content in (b"", b"x" * 100, whole[:-100]):
        (tmp_path / "test.npz").write_bytes(content)
        with pytest.raises(FileFormatError, match=r"not a whole \.npz"):
            load("npz", "test", tmp_path)


@pytest.mark.parametrize("kind", [">f4", ">f8", "<f2"])
def test_either_byte_order_and_every_float_is_read(tmp_path, kind):
    np.savez(tmp_path / "x.npz", images=(IMAGES / 255).astype(kind), labels=LABELS.astype(">i2"))
    data = load("npz", "test", tmp_path / "x.npz")
    assert data.labels.tolist() == LABELS.tolist()
    assert torch.equal(data.images, torch.from_numpy(IMAGES))


def test_column_major_packed_and_class_names_as_bytes(tmp_path):
    np.savez_compressed(
        tmp_path / "x.npz",
        images=np.asfortranarray(IMAGES),
        labels=LABELS,
        classes=np.array([b"a", b"b", b"c"]),
    )
    for limit in (None, 3):
        data = load("npz", "test", tmp_path / "x.npz", limit=limit)
        assert torch.equal(data.images, torch.from_numpy(IMAGES)[:limit])
        assert data.classes == ("a", "b", "c")


def test_blocks_join_without_a_seam(tmp_path, monkeypatch):
    monkeypatch.setattr("vqshield.data.arrays.BLOCK", 5000)  # one image at a time
    np.savez_compressed(tmp_path / "x.npz", images=IMAGES.transpose(0, 2, 3, 1), labels=LABELS)
    assert torch.equal(load("npz", "test", tmp_path / "x.npz").images, torch.from_numpy(IMAGES))

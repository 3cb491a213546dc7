import gzip

import numpy as np
import pytest
import torch

from vqshield.core.errors import InvalidInputError
from vqshield.data import SAMPLE_NAME, ImageSet, list_datasets, load, sample
from vqshield.images.files import encode_png

IMAGES = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
LABELS = torch.tensor([0, 1])


def test_floats_are_bytes_over_255():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    tiny = ImageSet("tiny", images, torch.zeros(3, dtype=torch.int64), ("a",))
    assert tiny.floats().dtype == torch.float32
    torch.testing.assert_close(tiny.floats().flatten(), torch.tensor([0.0, 0.2, 1.0]))
    assert tiny.floats(slice(1, 3)).shape == (2, 1, 1, 1)


def test_take_keeps_images_and_labels_together():
    both = ImageSet("tiny", IMAGES, LABELS, ("a", "b"))
    assert len(both) == len(both.take(None)) == len(both.take(5)) == 2
    one = both.take(1)
    assert torch.equal(one.images, IMAGES[:1])
    assert one.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("images", "labels", "classes", "named"),
    [
        (IMAGES.float(), LABELS, ("a", "b"), "torch.float32"),
        (IMAGES[0], LABELS, ("a", "b"), r"\(3, 4, 4\)"),
        (IMAGES, LABELS.int(), ("a", "b"), "torch.int32"),
        (IMAGES, LABELS.reshape(2, 1), ("a", "b"), r"\(2, 1\)"),
        (IMAGES, LABELS[:1], ("a", "b"), "2 images but 1 labels"),
        (IMAGES, LABELS, ("a",), r"label 1 .* 0\.\.0"),
        (IMAGES, LABELS - 1, ("a", "b"), "label -1"),
        (IMAGES[:0], LABELS[:0], ("a", "b"), "no images"),
    ],
)
def test_bad_parts_are_named(images, labels, classes, named):
    with pytest.raises(InvalidInputError, match=named):
        ImageSet("tiny", images, labels, classes)


def test_take_of_nothing_is_refused():
    with pytest.raises(InvalidInputError, match="0 images"):
        ImageSet("tiny", IMAGES, LABELS, ("a", "b")).take(0)


@pytest.mark.parametrize(
    ("name", "split", "folder", "named"),
    [
        ("cifar11", "test", ".", "'cifar11'.*cifar10"),
        ("cifar10", "valid", ".", "'valid'.*train"),
        ("cifar10-sample", "train", None, "'train'.*'test'"),
    ],
)
def test_load_names_what_is_wrong(name, split, folder, named):
    with pytest.raises(InvalidInputError, match=named):
        load(name, split, folder)


def test_registered_names():
    assert set(list_datasets()) >= {"cifar10", "cifar100", "mnist", "imagenet", "nips17", "folder", "npz"}


@pytest.mark.parametrize("name", ["cifar10", "mnist", "npz", "folder", "cifar10-sample"])
def test_a_limit_gives_the_first_images_of_the_whole(tmp_path, name):
    images = sample(6).images
    records = np.concatenate([np.arange(6, dtype=np.uint8)[:, None], images.flatten(1).numpy()], axis=1)
    records.tofile(tmp_path / "test_batch.bin")
    for kind, held in (("images-idx3", images[:, 0]), ("labels-idx1", torch.arange(6, dtype=torch.uint8))):
        sides = b"".join(side.to_bytes(4, "big") for side in held.shape)
        content = bytes([0, 0, 8, held.ndim]) + sides + held.numpy().tobytes()
        (tmp_path / f"t10k-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    np.savez(tmp_path / "test.npz", images=images.numpy(), labels=np.arange(6))
    for number in range(6):
        (tmp_path / "test" / str(number)).mkdir(parents=True)
        (tmp_path / "test" / str(number) / "a.png").write_bytes(
            encode_png(images[number].permute(1, 2, 0).numpy())
        )
    folder = None if name == SAMPLE_NAME else tmp_path
    whole = load(name, "test", folder)
    for limit in (1, 4, 6, 1000):
        part = load(name, "test", folder, limit=limit)
        assert part.digest() == whole.take(limit).digest()
        assert part.classes == whole.classes
    with pytest.raises(InvalidInputError, match="limit=0"):
        load(name, "test", folder, limit=0)

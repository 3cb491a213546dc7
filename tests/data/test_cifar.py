import numpy as np
import pytest
import torch

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import load


def write_records(path, *, label_bytes, seed=0):
    """Records with given label bytes and random pixels; returns the pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(label_bytes), 3072), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.concatenate([np.array(label_bytes, dtype=np.uint8), pixels], axis=1).tofile(path)
    return pixels


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_cifar10_train_joins_five_batches_in_order(tmp_path, below):
    pixels = [
        write_records(tmp_path / below / f"data_batch_{i}.bin", label_bytes=[[i], [i + 1]], seed=i)
        for i in range(1, 6)
    ]
    data = load("cifar10", "train", tmp_path)
    assert data.labels.tolist() == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    assert torch.equal(data.images, torch.from_numpy(np.concatenate(pixels).reshape(-1, 3, 32, 32)))
    assert data.classes[9] == "truck"


def test_pixels_are_channel_then_row_then_column(tmp_path):
    record = np.zeros(3073, dtype=np.uint8)
    record[1 + 1024 * 2 + 32 * 5 + 7] = 200  # blue, row 5, column 7
    record.tofile(tmp_path / "test_batch.bin")
    image = load("cifar10", "test", tmp_path).images[0]
    assert image[2, 5, 7] == 200
    assert image.sum() == 200


@pytest.mark.parametrize("below", ["", "cifar-100-binary"])
def test_cifar100_takes_the_fine_label(tmp_path, below):
    write_records(tmp_path / below / "test.bin", label_bytes=[[19, 99], [4, 0]])
    data = load("cifar100", "test", tmp_path)
    assert [data.classes[label] for label in data.labels] == ["worm", "apple"]
    assert len(set(data.classes)) == 100


def test_missing_batch_is_named(tmp_path):
    for i in (1, 2, 4, 5):
        write_records(tmp_path / f"data_batch_{i}.bin", label_bytes=[[0]])
    with pytest.raises(InvalidInputError, match=r"data_batch_3\.bin"):
        load("cifar10", "train", tmp_path)


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_wrong_size_is_named(tmp_path, size):
    (tmp_path / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(FileFormatError, match=rf"{size} bytes.*3073"):
        load("cifar10", "test", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "label_bytes", "named"),
    [
        ("cifar10", "test_batch.bin", [[0], [10]], r"label 10 of record 1 .* 0\.\.9"),
        ("cifar100", "test.bin", [[20, 0]], r"label 20 of record 0 .* 0\.\.19"),
        ("cifar100", "test.bin", [[0, 0], [0, 0], [3, 100]], r"label 100 of record 2 .* 0\.\.99"),
    ],
)
def test_label_out_of_range_is_named(tmp_path, name, file, label_bytes, named):
    write_records(tmp_path / file, label_bytes=label_bytes)
    with pytest.raises(FileFormatError, match=named):
        load(name, "test", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_real_test_sets_are_balanced(shared, name):
    data = load(name, "test", shared / "data")
    assert len(data) == 10_000
    assert data.labels.bincount().unique().tolist() == [10_000 // len(data.classes)]

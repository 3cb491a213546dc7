"""Sets of image files: folders of classes, ImageNet's layouts, the NIPS-2017 images, read part by part."""

import numpy as np
import pytest
import torch
from PIL import Image

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import FileSet, load, sample
from vqshield.data.folders import imagenet_classes

WNIDS = list(imagenet_classes())


def picture(path, image=0, size=None):
    """One of the bundled CIFAR-10 images as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = Image.fromarray(sample(image + 1).images[image].permute(1, 2, 0).numpy())
    (pixels if size is None else pixels.resize(size)).save(path)


@pytest.fixture
def two_classes(tmp_path):
    for number, name in enumerate(["cat/a.png", "cat/b.png", "cat/c.png", "dog/a.png"]):
        picture(tmp_path / name, number)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    return tmp_path


def test_classes_are_folders_and_take_turns(two_classes):
    data = load("folder", "test", two_classes)
    assert data.classes == ("cat", "dog")
    assert [f"{file.parent.name}/{file.name}" for file in data.files] == [
        "cat/a.png",
        "dog/a.png",
        "cat/b.png",
        "cat/c.png",
    ]
    assert data.labels.tolist() == [0, 1, 0, 0]
    assert torch.equal(data.images[[0, 2, 3, 1]], sample(4).images)
    assert torch.equal(data.floats(slice(1, 3)), sample(4).floats()[[3, 1]])
    assert "4 files" in repr(data)


def test_only_what_is_asked_for_is_read(two_classes, monkeypatch):
    data, read = load("folder", "test", two_classes), []
    original = FileSet._read
    monkeypatch.setattr(FileSet, "_read", lambda self, file: read.append(file.name) or original(self, file))
    assert len(data.take(2)) == 2
    assert data.take(None) is data
    data.floats(slice(1, 3))
    assert read == ["a.png", "b.png"]
    with pytest.raises(InvalidInputError, match="0 images"):
        data.take(0)


def test_splits_and_a_class_map(two_classes, tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "val").mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / "val" / name)
    (tmp_path / "classes.txt").write_text("# order of the labels\ndog a dog\ncat\nowl\n")
    data = load("folder", "test", tmp_path)
    assert data.classes == ("a dog", "cat", "owl")
    assert data.labels.tolist() == [0, 1, 1, 1]
    with pytest.raises(InvalidInputError, match="no sub-folder train"):
        load("folder", "train", tmp_path)
    (tmp_path / "classes.txt").write_text("dog\ndog\n")
    with pytest.raises(FileFormatError, match="2 classes, 1 of them different"):
        load("folder", "test", tmp_path)


def test_sizes_that_differ_need_one_size(two_classes):
    picture(two_classes / "cat" / "b.png", size=(40, 30))
    data = load("folder", "test", two_classes)
    with pytest.raises(InvalidInputError, match=r"b\.png is 40x30 but .*a\.png is 32x32 pixels; give .*size"):
        data.floats()
    assert data.sized((24, 20)).floats().shape == (4, 3, 24, 20)


def test_cutting_keeps_the_middle(tmp_path):
    (tmp_path / "a").mkdir()
    pixels = np.zeros((10, 30, 3), dtype=np.uint8)
    pixels[:, 10:20] = 200  # the middle square
    Image.fromarray(pixels).save(tmp_path / "a" / "x.png")
    data = load("folder", "test", tmp_path)
    assert data.sized((10, 10)).images.unique().tolist() == [200]
    assert data.sized((4, 4), crop=0.5).images.unique().tolist() == [200]
    assert data.sized((10, 30)).images.equal(data.images)
    for resize in ("bicubic", "bilinear"):
        assert data.sized((7, 9), crop=0.9, resize=resize).images.shape == (1, 3, 7, 9)
    with pytest.raises(InvalidInputError, match="resize='nearest'"):
        data.sized((4, 4), resize="nearest")
    with pytest.raises(InvalidInputError, match="size=0"):
        data.sized((0, 4))
    with pytest.raises(InvalidInputError, match=r"crop=1\.5"):
        data.sized((4, 4), crop=1.5)


def test_the_digest_tells_files_labels_and_sizes_apart(two_classes):
    data = load("folder", "test", two_classes)
    digests = {
        data.digest(),
        data.take(3).digest(),
        data.sized((16, 16)).digest(),
        data.sized((8, 8)).digest(),
    }
    picture(two_classes / "dog" / "a.png", 7)
    digests.add(data.digest())
    assert len(digests) == 5


def test_broken_and_absent_images_are_named(two_classes):
    data = load("folder", "test", two_classes)
    whole = (two_classes / "dog" / "a.png").read_bytes()
    for content in (whole[: len(whole) // 2], b"GIF89a", b""):
        (two_classes / "dog" / "a.png").write_bytes(content)
        with pytest.raises(
            FileFormatError, match=r"dog/a\.png: (broken or unreadable|not a PNG or JPEG|empty)"
        ):
            data.floats()
    for name in ("empty", "nowhere"):
        if name == "empty":
            (two_classes / name / "cat").mkdir(parents=True)
        with pytest.raises(InvalidInputError, match=name):
            load("folder", "test", two_classes / name)


def test_imagenet_by_folders_keeps_the_official_indices(tmp_path):
    for wnid in (WNIDS[9], WNIDS[388]):
        picture(tmp_path / "imagenet" / "val" / wnid / "ILSVRC2012_val_00000001.JPEG")
    data = load("imagenet", "test", tmp_path)
    assert data.labels.tolist() == [9, 388]
    assert len(data.classes) == 1000
    assert data.classes[388] == "giant panda"
    picture(tmp_path / "imagenet" / "val" / "cats" / "a.jpg")
    with pytest.raises(FileFormatError, match="'cats', which is none of the 1000 classes"):
        load("imagenet", "test", tmp_path)


def test_imagenet_in_one_folder_with_kaggles_table(tmp_path):
    for number in (1, 2):
        picture(tmp_path / "val" / f"ILSVRC2012_val_0000000{number}.JPEG", number)
    table = tmp_path / "LOC_val_solution.csv"
    table.write_text(
        f"ImageId,PredictionString\nILSVRC2012_val_00000002,{WNIDS[7]} 85 1 499 272\n"
        "ILSVRC2012_val_00000001.JPEG,65\n"
    )
    data = load("imagenet", "test", tmp_path)
    assert data.labels.tolist() == [7, 65]
    assert [file.stem[-1] for file in data.files] == ["2", "1"]
    table.write_text("ImageId,PredictionString\nILSVRC2012_val_00000002,n123\n")
    with pytest.raises(FileFormatError, match="line 2: 'n123' is none of the 1000"):
        load("imagenet", "test", tmp_path)
    table.write_text("ImageId,PredictionString\n../../secret,3\n")
    with pytest.raises(InvalidInputError, match="no such image"):
        load("imagenet", "test", tmp_path)


@pytest.mark.parametrize(
    ("table", "header", "labels", "stem"),
    [
        ("labels.csv", "file,class_index", (0, 999), "{}.png"),
        ("images.csv", "ImageId,TrueLabel", (1, 1000), "{}"),
    ],
)
@pytest.mark.parametrize("below", [".", "images"])
def test_nips17_in_both_layouts(tmp_path, table, header, labels, stem, below):
    rows = [f"{stem.format(name)},{label}" for name, label in zip("ab", labels, strict=True)]
    for name in "ab":
        picture(tmp_path / below / f"{name}.png", size=(299, 299))
    (tmp_path / table).write_text("\n".join([header, *rows]))
    data = load("nips17", "test", tmp_path)
    assert data.labels.tolist() == [0, 999]
    assert data.floats(slice(1)).shape == (1, 3, 299, 299)
    assert data.sized((224, 224), crop=0.875).crop == 1.0  # cut already
    (tmp_path / table).write_text(f"{header}\n{rows[0].partition(',')[0]},1001")
    with pytest.raises(FileFormatError, match=r"line 2: .*'1001' is outside"):
        load("nips17", "test", tmp_path)
    (tmp_path / table).write_text(f"{header}\nzzz,5")
    with pytest.raises(InvalidInputError, match="'zzz"):
        load("nips17", "test", tmp_path)
    (tmp_path / table).write_text("a,b\n1,2")
    with pytest.raises(FileFormatError, match="columns a, b; it needs file"):
        load("nips17", "test", tmp_path)


def test_nips17_needs_its_table_and_has_one_split(tmp_path):
    with pytest.raises(InvalidInputError, match=r"none of labels\.csv"):
        load("nips17", "test", tmp_path)
    with pytest.raises(InvalidInputError, match=r"'train'.*'test' only"):
        load("nips17", "train", tmp_path)


def test_the_real_nips17_images_agree_with_the_class_list(shared):
    import csv

    data = load("nips17", "test", shared / "data")
    with (shared / "data/nips17/labels.csv").open(newline="") as table:
        assert [row["wnid"] for row in csv.DictReader(table)] == [WNIDS[label] for label in data.labels]
    assert data.floats(slice(2)).shape == (2, 3, 299, 299)


@pytest.mark.parametrize("below", ["", "test/", "test/images/"])
@pytest.mark.parametrize("header", ["file,class\n", ""])
def test_a_flat_folder_with_a_table_of_labels(tmp_path, below, header):
    for number, name in enumerate("abc"):
        picture(tmp_path / below / f"{name}.png", number)
    (tmp_path / "labels.csv").write_text(f"{header}c.png,dog\na.png,cat\nb.png,dog\n")
    data = load("folder", "test", tmp_path)
    assert (data.classes, data.labels.tolist()) == (("cat", "dog"), [1, 0, 1])
    assert torch.equal(data.images[[1, 2, 0]], sample(3).images)
    (tmp_path / "classes.txt").write_text("dog a good dog\ncat\n")
    data = load("folder", "test", tmp_path)
    assert (data.classes, data.labels.tolist()) == (("a good dog", "cat"), [0, 1, 0])


def test_a_table_may_hold_numbers_and_paths_inside_the_folder(tmp_path):
    picture(tmp_path / "deep" / "er" / "a.png")
    picture(tmp_path / "deep" / "b.png", 1)
    (tmp_path / "labels.csv").write_text("file,class\ndeep/er/a.png,10\ndeep/b.png,9\n")
    data = load("folder", "test", tmp_path)
    assert data.labels.tolist() == [10, 9]
    assert data.classes == tuple(map(str, range(11)))
    (tmp_path / "labels.csv").write_text("file,class\nsub/../../deep/b.png,9\n")
    with pytest.raises(InvalidInputError, match="no such image"):
        load("folder", "test", tmp_path)


def test_both_layouts_and_the_class_map_are_explained(tmp_path):
    picture(tmp_path / "a.png")
    with pytest.raises(InvalidInputError, match=r"sub-folder per class .*labels\.csv .*classes\.txt"):
        load("folder", "test", tmp_path)

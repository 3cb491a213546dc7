"""The data for a data set of the paper: given, from the cache, or replaced, which is said."""

from pathlib import Path

import pytest

from vqshield.classifiers import BUNDLED, Normalised, build, save_classifier
from vqshield.core.errors import InvalidInputError
from vqshield.data import SAMPLE_NAME, sample
from vqshield_paper.reproduction.targets import TargetChoices, by_data

WEIGHTS = "resnet18-cifar10.safetensors"
"""What vqshield train calls a ResNet18 of CIFAR-10."""
OTHERS = ["mnist", "cifar100", "imagenet"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of our own, empty at first."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("VQSHIELD_CACHE", str(folder))
    return folder


def write_cifar10(folder: Path, count: int = 20) -> Path:
    """Images of the bundled sample in the layout of CIFAR-10."""
    some = sample(count)
    rows = [
        bytes([int(label)]) + image.numpy().tobytes()
        for image, label in zip(some.images, some.labels, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "test_batch.bin").write_bytes(b"".join(rows))
    return folder


def write_classifier(path: Path) -> Path:
    network = build("small", classes=10, widths=(4,), blocks=(1,))
    save_classifier(path, Normalised(network, mean=[0.5] * 3, std=[0.25] * 3))
    return path


def test_values_by_their_names() -> None:
    assert by_data("--data", ["cifar10=npz", "mnist=folder"], ["cifar10", "mnist"]) == {
        "cifar10": "npz",
        "mnist": "folder",
    }
    assert by_data("--classifier", ["cifar10=a=b"], ["cifar10"]) == {"cifar10": "a=b"}, "the first one splits"
    assert by_data("--data", [], ["cifar10"]) == {}


def test_a_value_alone_is_meant_for_the_only_data_set() -> None:
    assert by_data("--data-dir", ["here"], ["cifar10"]) == {"cifar10": "here"}


@pytest.mark.parametrize(
    ("values", "needed", "named"),
    [
        (
            ["here"],
            ["cifar10", "mnist"],
            ["--data-dir='here'", "which data set", "NAME=here", "cifar10, mnist"],
        ),
        (["here"], [], ["--data-dir='here'", "which data set", "imagenet"]),
        (["cifar10=a", "cifar10=b"], ["cifar10"], ["--data-dir is given twice for cifar10"]),
        (["a", "cifar10=b"], ["cifar10"], ["--data-dir is given twice for cifar10"]),
        (["mnist=a"], ["cifar10"], ["--data-dir is given for mnist", "give it for cifar10"]),
        (["cifar11=a"], ["cifar10"], ["--data-dir", "'cifar11'", "cifar10", "imagenet"]),
        (["=a"], ["cifar10"], ["''", "cifar10"]),
    ],
)
def test_what_cannot_be_meant_is_refused(values: list[str], needed: list[str], named: list[str]) -> None:
    with pytest.raises(InvalidInputError) as found:
        by_data("--data-dir", values, needed)
    assert all(word in str(found.value) for word in named), found.value


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"--data-dir .*nowhere is not a folder"):
        TargetChoices.from_options(data_dir=[str(tmp_path / "nowhere")], needed=["cifar10"])


def test_a_reader_that_is_none() -> None:
    with pytest.raises(InvalidInputError, match=r"--data='magic'.*nips17"):
        TargetChoices.from_options(data=["imagenet=magic"], needed=["imagenet"])


def test_the_bundled_sample_and_classifier_stand_in_for_cifar10_and_it_is_said() -> None:
    found = TargetChoices(device="cpu").choose("cifar10")
    assert found.missing is None
    assert (found.target.data, found.target.classifier) == (SAMPLE_NAME, BUNDLED)
    assert found.target.device == "cpu"
    for words in ("bundled sample replaces", "bundled small classifier replaces", "other values"):
        assert words in found.stand_in


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"readers": {"cifar10": SAMPLE_NAME}}, "bundled sample replaces"),
        ({"classifiers": {"cifar10": BUNDLED}}, "bundled small classifier replaces"),
    ],
)
def test_a_stand_in_that_somebody_asked_for_is_named_too(given: dict, words: str) -> None:
    assert words in TargetChoices(**given).choose("cifar10").stand_in


@pytest.mark.parametrize("data", OTHERS)
def test_nothing_stands_in_for_other_data_sets(data: str) -> None:
    found = TargetChoices().choose(data)
    assert found.stand_in is None
    assert f"the images of {data} are missing; give --data-dir {data}=FOLDER" in found.missing
    assert f"no classifier for {data}; give --classifier {data}=FILE" in found.missing


def test_only_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    images = TargetChoices(folders={"mnist": tmp_path}).choose("mnist")
    assert "classifier" in images.missing
    assert "images" not in images.missing
    weights = TargetChoices(classifiers={"mnist": BUNDLED}).choose("mnist")
    assert "images" in weights.missing
    assert "no classifier for" not in weights.missing
    assert (
        TargetChoices(folders={"mnist": tmp_path}, classifiers={"mnist": BUNDLED}).choose("mnist").missing
        is None
    )


def test_other_images_are_named(tmp_path: Path) -> None:
    found = TargetChoices(
        readers={"imagenet": "nips17"}, folders={"imagenet": tmp_path}, classifiers={"imagenet": "timm:x"}
    ).choose("imagenet")
    assert found.missing is None
    assert "the images of nips17 replace those of imagenet" in found.stand_in
    assert (found.target.data, found.target.data_dir) == ("nips17", tmp_path)


def test_a_reader_without_its_folder_is_not_replaced_by_the_sample() -> None:
    found = TargetChoices(readers={"cifar10": "npz"}).choose("cifar10")
    assert "--data-dir cifar10=FOLDER" in found.missing


def test_images_and_weights_are_found_in_the_cache_folder(cache: Path) -> None:
    write_cifar10(cache / "cifar-10-batches-bin")
    weights = write_classifier(cache / WEIGHTS)
    found = TargetChoices(device="cpu").choose("cifar10")
    assert (found.stand_in, found.missing) == (None, None)
    assert found.target.data == "cifar10"
    assert Path(found.target.classifier) == weights
    assert (len(found.target.images), found.target.name) == (20, weights.name)


def test_what_is_given_comes_before_the_cache(cache: Path, tmp_path: Path) -> None:
    write_classifier(cache / WEIGHTS)
    given = write_classifier(tmp_path / "mine.safetensors")
    images = write_cifar10(tmp_path / "images")
    found = TargetChoices.from_options(
        data_dir=[f"cifar10={images}"], classifier=[str(given)], needed=["cifar10"], device="cpu"
    ).choose("cifar10")
    assert (found.stand_in, found.missing) == (None, None)
    assert (found.target.data, found.target.data_dir) == ("cifar10", images)
    assert found.target.classifier == str(given)


def test_damaged_images_in_the_cache_folder_are_not_passed_over(cache: Path) -> None:
    """The sample in their place would be a surprise; reading them says what is wrong."""
    folder = write_cifar10(cache / "cifar-10-batches-bin")
    (folder / "test_batch.bin").write_bytes((folder / "test_batch.bin").read_bytes()[:-1])
    found = TargetChoices(device="cpu").choose("cifar10")
    assert found.target.data == "cifar10"
    with pytest.raises(ValueError, match=r"test_batch\.bin has \d+ bytes"):
        _ = found.target.images


def test_no_data_is_needed_for_numbers_alone() -> None:
    assert TargetChoices().choose(None).missing is None

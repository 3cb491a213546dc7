import sys

import pytest
import torch

from vqshield.core.errors import FileFormatError, InvalidInputError, MissingExtraError
from vqshield.data import load, sample, sample_card


@pytest.mark.parametrize("limit", [10, 100, 500])
def test_every_ten_are_balanced(limit):
    assert sample(limit).labels.bincount().tolist() == [limit // 10] * 10


def test_all_500_and_what_the_card_says():
    everything, card = sample(), sample_card()
    assert everything.images.shape == (500, 3, 32, 32)
    assert load("cifar10-sample", "test").labels.equal(everything.labels)
    assert everything.classes[0] == "airplane"
    assert "Krizhevsky" in card["source"]
    assert "licence" in card["licence_note"]
    assert len(set(card["indices"])) == 500


def test_images_and_labels_are_those_of_the_test_set(shared):
    test, card, images = load("cifar10", "test", shared / "data"), sample_card(), sample()
    indices = torch.tensor(card["indices"]).reshape(10, 50).T.flatten()
    assert torch.equal(test.images[indices], images.images)
    assert torch.equal(test.labels[indices], images.labels)
    for number in range(10):
        assert (
            card["indices"][50 * number : 50 * number + 50]
            == (test.labels == number).nonzero()[:50, 0].tolist()
        )


def test_limit_must_be_positive():
    with pytest.raises(InvalidInputError, match="-1"):
        sample(-1)


def test_changed_pixels_are_noticed(monkeypatch):
    card = {**sample_card(), "pixels_sha256": "0" * 64}
    monkeypatch.setattr("vqshield.data.bundled.sample_card", lambda: card)
    with pytest.raises(FileFormatError, match="differ"):
        sample()


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"\.\[cli\]"):
        sample()

"""What is served: the library's answers for a seed, votes that abstain, class names, normalization."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from serving.tools import encoded, grey, metrics, post, ready, serving_built

import vqshield as vq
from vqshield.classifiers import small_cifar10, small_cifar10_hardened
from vqshield.core.errors import InvalidInputError
from vqshield.data import load, sample
from vqshield.data.folders import imagenet_classes
from vqshield_deploy.serving.deployment import Deployment, class_names
from vqshield_deploy.serving.pictures import decode
from vqshield_deploy.serving.predictor import Input

BUNDLED = Deployment(classifier="small-cifar10")
PHOTOS = sample(12)
UPLOADS = [encoded(image.permute(1, 2, 0).numpy()) for image in PHOTOS.images]

USERS = """
import torch
from torch import nn

class Mean(nn.Module):  # logits: how far the mean of the normalised image is from 0, and from 1
    def forward(self, images):
        mean = images.mean((1, 2, 3))
        return torch.stack([-mean.abs(), -(mean - 1).abs()], 1)

class Grey(Mean):
    def forward(self, images):
        if images.shape[1:] != (1, 28, 28):
            raise RuntimeError(f"only 28x28 grey images, not {tuple(images.shape)}")
        return super().forward(images)

def mean():
    return Mean()

def grey():
    return Grey()

def noisy(images):
    return (images + 0.2 * torch.randn_like(images)).clamp(0, 1)
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_of_serving.py").write_text(USERS)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("defense", ["swrd", "prd:sigma=0.1,tau=0.1"])
def test_the_served_vote_is_the_library_s_for_the_same_seed(defense: str) -> None:
    deployment = replace(BUNDLED, defense=defense, votes=20, selection=5, seed=7)
    voting = vq.Voting(vq.defend(small_cifar10(), defense), samples=20, selection=5, seed=7)
    expected = [voting.predict(image[None]) for image in PHOTOS.floats()]
    with serving_built(deployment.build()) as client, ThreadPoolExecutor(12) as pool:
        ready(client)
        for _ in range(2):  # in batches of any size, in any order, again and again
            answers = [each.json() for each in pool.map(lambda upload: post(client, upload), UPLOADS)]
            for answer, wanted in zip(answers, expected, strict=True):
                index = int(wanted.classes)
                assert answer["abstained"] == (index == -1)
                assert answer["index"] == (None if index == -1 else index)
                assert answer["class"] == (None if index == -1 else PHOTOS.classes[index])
                assert (answer["votes"], answer["samples"]) == (int(wanted.votes), 20)
                assert answer["lower"] == float(wanted.lower)
                assert answer["radius"] == float(wanted.radii)
                assert answer["norm"] == wanted.norm
        abstained = sum(int(wanted.classes) == -1 for wanted in expected)
        assert metrics(client)["vqshield_abstentions_total"] == 2 * abstained
    assert any(answer["radius"] > 0 for answer in answers) == (expected[0].norm == "l2")


def test_one_sample_is_the_first_of_the_library_s_model_for_the_same_seed() -> None:
    with serving_built(replace(BUNDLED, seed=7).build()) as client, ThreadPoolExecutor(12) as pool:
        ready(client)
        answers = [each.json() for each in pool.map(lambda upload: post(client, upload), UPLOADS)]
    for image, answer in zip(PHOTOS.floats(), answers, strict=True):
        with torch.inference_mode():
            probabilities = vq.defend(small_cifar10(), "swrd", seed=7)(image[None]).softmax(1)[0]
        assert answer["index"] == int(probabilities.argmax())
        assert answer["probability"] == float(probabilities.max())


def test_a_vote_that_may_not_abstain_always_has_a_class() -> None:
    hard = replace(BUNDLED, defense="gaussian:sigma=0.5", votes=5, selection=2, seed=0)
    for abstain in (True, False):
        with serving_built(replace(hard, abstain=abstain).build()) as client:
            answers = [post(client, upload).json() for upload in UPLOADS]
        assert {answer["abstained"] for answer in answers} == {abstain}  # 5 votes never reach the bound
        assert all((answer["class"] is None) == abstain for answer in answers)


def test_a_splitting_votes_with_all_of_its_shifts_and_has_an_l1_radius() -> None:
    deployment = replace(BUNDLED, defense="splitting:scale=0.5", votes=20)
    voting = vq.Voting(vq.defend(small_cifar10(), "splitting:scale=0.5"))
    wanted = voting.predict(PHOTOS.floats()[:1])
    with serving_built(deployment.build()) as client:
        answer = post(client, UPLOADS[0]).json()
    assert (answer["norm"], answer["radius"]) == ("l1", float(wanted.radii))
    assert (answer["index"], answer["samples"]) == (int(wanted.classes), int(wanted.samples))


def test_without_a_seed_every_vote_has_samples_of_its_own() -> None:
    deployment = replace(BUNDLED, defense="gaussian:sigma=0.2", votes=200, selection=5)
    with serving_built(deployment.build()) as client:
        votes = {post(client, upload).json()["votes"] for _ in range(3) for upload in UPLOADS[4:6]}
    assert len(votes) > 2


def test_a_hardened_classifier_is_served_behind_its_own_defense() -> None:
    predictor = Deployment(classifier="small-cifar10-hardened", seed=1).build()
    expected = vq.defend(small_cifar10_hardened(), vq.SWRD.hardened("cifar10", seed=1))
    assert predictor.defense is not None
    assert predictor.defense.settings() == expected.defense.settings()
    assert predictor.names == PHOTOS.classes


def test_a_calibrated_classifier_is_served_behind_its_own_defense_with_its_statistics(tmp_path: Path) -> None:
    calibrated = vq.calibrate(
        "small-cifar10", PHOTOS.floats(), defense="swrd:size=2", method="reestimate", out=tmp_path
    )
    assert calibrated.weights is not None
    predictor = Deployment(classifier=str(calibrated.weights), seed=3).build()
    assert isinstance(predictor.defense, vq.SWRD)
    assert predictor.defense.size == 2
    assert len(predictor.names) in (0, 10)
    with torch.inference_mode():
        wanted = vq.defend(calibrated.classifier, "swrd:size=2", seed=3)(PHOTOS.floats()[:1])
    [answer] = predictor(PHOTOS.images[:1])
    assert answer.index == int(wanted.argmax())


def test_class_names_come_from_a_file_the_card_or_the_data_set(tmp_path: Path) -> None:
    assert class_names("small-cifar10", 10) == PHOTOS.classes
    assert class_names("timm:resnet18", 1000) == tuple(imagenet_classes().values())
    assert class_names("mine:net", 1000) == ()
    weights = tmp_path / "mine.safetensors"
    assert class_names(str(weights), 2) == ()
    weights.with_suffix(".json").write_text(json.dumps({"classes": ["cat", "dog"]}))
    assert class_names(str(weights), 2) == ("cat", "dog")
    assert class_names(f"mine:net@{weights}", 2) == ("cat", "dog")
    assert class_names(str(weights), 3) == ()  # a card of another network
    names = tmp_path / "names.txt"
    names.write_text("Katze\n\nHund\n")
    assert class_names(str(weights), 2, names) == ("Katze", "Hund")
    with pytest.raises(InvalidInputError, match=r"names.txt has 2 names, one per line; .* has 3 classes"):
        class_names(str(weights), 3, names)


@pytest.mark.usefixtures("users")
def test_mean_and_std_come_before_a_user_s_network() -> None:
    source = Deployment(classifier="users_of_serving:mean", defense="none", side=8)
    bright = torch.full((1, 3, 8, 8), 128, dtype=torch.uint8)
    assert source.build()(bright)[0].index == 1  # 0.502 is nearer to 1
    assert replace(source, mean=[0.5], std=[0.25]).build()(bright)[0].index == 0
    with pytest.raises(InvalidInputError, match="mean and std belong together"):
        replace(source, mean=[0.5]).build()
    with pytest.raises(InvalidInputError, match="small-cifar10 normalises already; leave mean and std out"):
        replace(BUNDLED, mean=[0.5], std=[0.25]).build()


@pytest.mark.usefixtures("users")
def test_a_preprocessor_of_a_user_is_a_defense_that_votes_and_has_a_seed() -> None:
    deployment = replace(BUNDLED, defense="users_of_serving:noisy", votes=20, seed=3)
    assert str(deployment).startswith("small-cifar10 behind ")
    voting = vq.Voting(
        vq.defend(small_cifar10(), "users_of_serving:noisy"),
        samples=20,
        selection=deployment.selection,
        seed=3,
    )
    answers = deployment.build()(PHOTOS.images)
    wanted = [voting.predict(image[None]) for image in PHOTOS.floats()]
    assert [answer.votes for answer in answers] == [int(each.votes) for each in wanted]
    one = replace(deployment, votes=1).build()
    assert one(PHOTOS.images) == one(PHOTOS.images)
    assert one(PHOTOS.images)[0] == one(PHOTOS.images[:1])[0]


@pytest.mark.usefixtures("users")
def test_a_classifier_of_grey_images_is_shown_grey_images() -> None:
    deployment = Deployment(classifier="users_of_serving:grey", defense="none", side=28)
    with serving_built(deployment.build()) as client:
        assert post(client, grey(250)).json()["class"] == "1"
        assert post(client, grey(3)).json()["class"] == "0"
    with pytest.raises(
        InvalidInputError, match=r"takes no images of 32x32 pixels \(.*\); give its input size"
    ):
        replace(deployment, side=None).build()


def test_pictures_are_cut_as_evaluate_cuts_them(tmp_path: Path) -> None:
    folder = tmp_path / "test" / "a"
    folder.mkdir(parents=True)
    wide = torch.randint(0, 256, (50, 90, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Image.fromarray(wide.numpy()).save(folder / "wide.png")
    files = load("folder", "test", tmp_path).sized((24, 20), crop=0.8, resize="bilinear")
    with (folder / "wide.png").open("rb") as file:
        shown = decode(file, Input((24, 20), crop=0.8, resize="bilinear"), max_pixels=10_000)
    assert torch.equal(shown, files.images[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"votes": 0}, "votes=0 should be >= 1"),
        ({"votes": 20, "defense": "none"}, "votes=20 needs a defense"),
        ({"seed": 3, "defense": "none"}, "seed=3 needs a defense"),
        ({"votes": 20, "alpha": 2.0}, "alpha"),
        ({"side": 0}, "side=0 should be from 1"),
        ({"defense": "swdr"}, "Did you mean 'swrd'"),
        ({"classifier": "no-such-file.safetensors"}, "no-such-file"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(BUNDLED, **changes).build()

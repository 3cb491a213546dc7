from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.certification.l1 import L1Certification
from vqshield.certification.study import Certification
from vqshield.classifiers import small_cifar10
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.voting import VotedClasses
from vqshield.voting.counting import elect, of_class

PHOTOS = sample(40)  # more than the images that share seeds
IMAGES, LABELS = PHOTOS.floats(), PHOTOS.labels
NOISY = "prd:sigma=0.1,tau=0.1"


class Coin(nn.Module):
    """Class 1 with the probability that the first pixel says, else class 0."""

    def forward(self, images: Tensor) -> Tensor:
        heads = torch.rand(len(images)) < images[:, 0, 0, 0]
        return torch.stack([~heads, heads], 1).float()


@pytest.mark.parametrize("certificate", ["vote", "sequential"])
def test_certify_reports_what_the_vote_predicts(certificate: str, tmp_path) -> None:
    model = vq.defend(small_cifar10(), NOISY)
    settings = {"samples": 60, "selection": 10, "alpha": 0.01, "seed": 3}
    vq.certify(model, IMAGES, LABELS, certificate=certificate, out=tmp_path, **settings)
    records = Certification.read(tmp_path).records
    voted = vq.Voting(model, sequential=certificate == "sequential", **settings).predict(IMAGES)
    assert voted.classes.tolist() == [record.answer for record in records]
    assert voted.radii.tolist() == [record.radius for record in records]
    assert voted.votes.tolist() == [record.top for record in records]
    assert voted.lower.tolist() == [record.p_lower for record in records]
    assert 0 < sum(record.abstain for record in records) < len(records)
    if certificate == "sequential":
        assert voted.samples.tolist() == [record.draws for record in records]


def test_a_splitting_is_voted_on_exactly() -> None:
    model = vq.defend(small_cifar10(), "splitting:scale=0.05")
    voting = vq.Voting(model)
    voted, shares = voting.predict(IMAGES[:4]), voting(IMAGES[:4])
    counts = torch.zeros(4, 10)
    for shift in range(25):
        shown = model.defense.shifted(IMAGES[:4], torch.full((4,), shift))
        counts += nn.functional.one_hot(model.classifier(shown).argmax(1), 10)
    assert torch.allclose(shares, counts / 25)
    assert voted.classes.tolist() == counts.argmax(1).tolist()
    assert voted.norm == "l1"
    assert voted.samples.tolist() == [25] * 4
    summary = vq.certify_l1(model, IMAGES[:4], LABELS[:4])
    assert summary.mean_radius == pytest.approx(float(voted.radii[voted.classes == LABELS[:4]].sum()) / 4)


def certified(defense: str, out: Path, images: int, **settings: object) -> list[tuple[int, float, int]]:
    """The class, radius and votes of each image that a certification records."""
    model = vq.defend(small_cifar10(), defense)
    if defense.startswith("splitting"):
        vq.certify_l1(model, IMAGES[:images], LABELS[:images], out=out, **settings)
        records = L1Certification.read(out).records
    else:
        vq.certify(model, IMAGES[:images], LABELS[:images], out=out, **settings)
        records = Certification.read(out).records
    return [(record.answer, record.radius, record.top) for record in records]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defense", "sequential", "settings"),
    [
        ("gaussian:sigma=0.1", False, {"samples": 200, "seed": 3}),
        ("swrd:noise=shared,sigma=0.1,tau=0.1", True, {"samples": 300, "seed": 4}),
        ("splitting:scale=0.1", False, {}),
    ],
)
def test_certify_and_the_vote_agree_on_every_image(defense, sequential, settings, tmp_path) -> None:
    certificate = {"certificate": "sequential" if sequential else "vote"} if settings else {}
    recorded = certified(defense, tmp_path, 24, **certificate, **settings)
    voted = vq.Voting(vq.defend(small_cifar10(), defense), sequential=sequential, **settings).predict(
        IMAGES[:24]
    )
    columns = voted.classes.tolist(), voted.radii.tolist(), voted.votes.tolist()
    assert list(zip(*columns, strict=True)) == recorded


def test_a_quantizer_behind_a_splitting_belongs_to_the_classifier(tmp_path) -> None:
    settings = {"after": "prd:codes=4", "seed": 2}
    recorded = certified("splitting:scale=0.05", tmp_path, 3, **settings)
    quantizer = L1Certification(defense="splitting:scale=0.05", **settings).quantizer()
    model = vq.defend(nn.Sequential(quantizer, small_cifar10()), "splitting:scale=0.05")
    voted = vq.Voting(model).predict(IMAGES[:3])
    assert voted.classes.tolist() == [answer for answer, _, _ in recorded]
    assert voted.radii.tolist() == [radius for _, radius, _ in recorded]


def test_frequencies_are_the_counts_of_the_prediction() -> None:
    voting = vq.Voting(vq.defend(small_cifar10(), "swrd"), samples=12, selection=3, seed=1)
    shares, voted = voting(IMAGES[:3]), voting.predict(IMAGES[:3])
    assert torch.allclose(shares.sum(1), torch.ones(3))
    assert voted.norm is None
    assert voted.radii.tolist() == [0.0] * 3
    for share, votes in zip(shares, voted.votes, strict=True):
        assert float(votes) / 12 in share.double().mul(12).round().div(12).tolist()


def test_a_seed_repeats_every_call_and_none_does_not() -> None:
    model = vq.defend(small_cifar10(), "gaussian:sigma=0.3")
    seeded = vq.Voting(model, samples=50, selection=1, seed=5)
    assert torch.equal(seeded(IMAGES[:8]), seeded(IMAGES[:8]))
    free = vq.Voting(model, samples=50, selection=1)
    assert not torch.equal(free(IMAGES[:8]), free(IMAGES[:8]))


def test_any_random_model_can_vote_without_a_certificate() -> None:
    images = torch.zeros(3, 3, 4, 4)
    images[:, 0, 0, 0] = torch.tensor([0.0, 0.5, 1.0])
    torch.manual_seed(0)
    voting = vq.Voting(Coin(), samples=200, selection=20)
    voted = voting.predict(images)
    assert voted.classes.tolist() == [0, vq.certificates.ABSTAIN, 1]
    assert voted.norm is None
    torch.manual_seed(0)
    answered = vq.Voting(Coin(), samples=200, selection=20, abstain=False).predict(images)
    assert answered.classes[1] in (0, 1)


def test_a_changed_model_is_voted_on_as_a_whole() -> None:
    model = vq.defend(small_cifar10(), "gaussian:sigma=0.001")
    model.register_forward_hook(lambda module, inputs, logits: logits.roll(1, -1))
    plain = vq.Voting(
        vq.defend(small_cifar10(), "gaussian:sigma=0.001"), samples=30, selection=5, abstain=False
    )
    rolled = vq.Voting(model, samples=30, selection=5, abstain=False).predict(IMAGES[:8])
    assert rolled.norm is None  # the certificate is not of this model
    same = (rolled.classes == (plain.predict(IMAGES[:8]).classes + 1) % 10).float().mean()
    assert same == 1


def test_a_sequential_vote_stops_early_with_valid_bounds() -> None:
    def count(purpose: str, places: Tensor, samples: int) -> Tensor:  # always class 2
        return torch.tensor([0, 0, samples]).expand(len(places), -1).clone()

    found = elect(count, 5, coverage=None, selection=10, samples=1000, alpha=0.001, sequential=True)
    assert found.selected.tolist() == [2] * 5
    assert found.samples.tolist() == [125] * 5  # the first look decides
    assert torch.equal(of_class(found.counts, found.selected), found.samples)
    assert 0.5 < float(found.lower.max()) < 1


def test_the_mode_of_the_model_is_left_alone() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 10))
    model = vq.Defended(network, "gaussian:sigma=0.1")
    before = network[1].running_mean.clone()
    vq.Voting(model, samples=4, selection=2).predict(IMAGES[:2])
    assert model.training
    assert torch.equal(before, network[1].running_mean)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples"),
        ({"alpha": 1.5}, "alpha"),
        ({"precision": "half"}, "precision"),
        ({"radii": [0.1]}, "sequential"),
        ({"radii": [0.1], "sequential": True}, "L2 certificate"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        vq.Voting(vq.defend(small_cifar10(), "swrd"), **settings)


def test_bad_images_and_seeds_without_a_defense_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="seed=1"):
        vq.Voting(Coin(), seed=1)
    with pytest.raises(InvalidInputError):
        vq.Voting(vq.defend(small_cifar10(), "swrd"), samples=2).predict(torch.zeros(0, 3, 32, 32))
    with pytest.raises(InvalidInputError, match="multiple of 1/255"):
        vq.Voting(vq.defend(small_cifar10(), "splitting:scale=0.1")).predict(torch.full((1, 3, 8, 8), 0.3))


def test_a_result_names_its_fields() -> None:
    assert list(VotedClasses.__dataclass_fields__) == [
        "classes",
        "votes",
        "samples",
        "lower",
        "radii",
        "norm",
    ]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_bytes_and_halves_are_voted_on_as_their_values(dtype: torch.dtype) -> None:
    photos = vq.data.sample(4)
    given = photos.images if dtype == torch.uint8 else photos.floats().half()
    voting = vq.Voting(vq.defend(small_cifar10(), "gaussian:sigma=0.03"), samples=20, selection=5, seed=0)
    expected = voting.predict(photos.floats() if dtype == torch.uint8 else given.float())
    found = voting.predict(given)
    assert torch.equal(found.classes, expected.classes)
    assert torch.equal(found.votes, expected.votes)
    assert torch.equal(voting(given), voting(given.float() / (255 if dtype == torch.uint8 else 1)))

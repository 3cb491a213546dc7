"""Images that are lost for certain take no more steps, and nobody else notices."""

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

from vqshield.attacks import APGD, EOT, PGD, Linf, RandomNoise, RayS, Square
from vqshield.attacks import best as judging
from vqshield.attacks.losses import TARGETED
from vqshield.defended import Defended
from vqshield.defenses import GaussianNoise
from vqshield.models.calling import Part, asking_about

PLAIN = {"steps": 12, "step": 0.01, "loss": "margin", "candidates": 2, "seed": 3}


class Counting(nn.Module):
    """How many images it was asked about."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.asked = model, 0

    def forward(self, images: Tensor) -> Tensor:
        self.asked += len(images)
        logits: Tensor = self.model(images)
        return logits


class RowByRow(nn.Module):
    """Logits that are sums of an image's own values: matrix products are rounded by the batch's size."""

    def __init__(self) -> None:
        super().__init__()
        source = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(0.3 * torch.randn(5, 3, 16, 16, generator=source))

    def forward(self, images: Tensor) -> Tensor:
        return (images[:, None] * self.weight).flatten(2).sum(2)


def shielded(seed: int = 0) -> Defended:
    return Defended(RowByRow(), GaussianNoise(sigma=0.02, seed=seed))


def some(count: int = 8) -> tuple[Tensor, Tensor]:
    images = noise_images(count, 3, 16, 16)
    return images, RowByRow()(images).argmax(1)


ATTACKS = {
    "pgd": PGD(ball=Linf(0.03), **PLAIN),
    "pgd, last step alone": PGD(ball=Linf(0.03), **{**PLAIN, "candidates": 1}),
    "pgd, targeted": PGD(ball=Linf(0.03), **{**PLAIN, "loss": TARGETED, "restarts": 2}),
    "apgd": APGD(ball=Linf(0.03), steps=12, loss="margin", restarts=2),
    "square": Square(ball=Linf(0.4), queries=60),
    "rays": RayS(ball=Linf(0.4), queries=60),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_who_stays_ends_where_he_would_have_if_all_had_stayed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit: an image's draws follow its place in the batch, however many are left of it."""
    attack, (images, labels) = ATTACKS[name], some()
    left: list[int] = []
    judge = judging.Best.consider

    def watched(self: judging.Best, model: object, candidates: Tensor) -> Tensor:
        stay = judge(self, model, candidates)
        left[:] = self.places[stay].tolist()
        return stay

    monkeypatch.setattr(judging.Best, "consider", watched)
    model = Counting(EOT(shielded(), draws=5))
    dropped = attack(model, images, labels, drop_lost=True)
    stayed = list(left)
    assert 0 < len(stayed) < len(images), "a test needs both kinds"
    monkeypatch.setattr(judging, "_SURE_LEAD", torch.inf)
    patient = Counting(EOT(shielded(), draws=5))
    whole = attack(patient, images, labels, drop_lost=True)
    assert left == list(range(len(images)))
    assert torch.equal(dropped[stayed], whole[stayed])
    assert model.asked < patient.asked
    lost = [each for each in range(len(images)) if each not in stayed]
    with torch.no_grad():
        answers = torch.stack([shielded(seed)(dropped).argmax(1) for seed in range(1, 21)])
    assert float((answers == labels)[:, lost].double().mean()) < 0.05


def test_lost_images_cost_nothing_more() -> None:
    images, _ = some()
    model = Counting(RowByRow())
    wrong = RowByRow()(images).argmin(1)  # every image is lost before the first step
    PGD(ball=Linf(0.001), **PLAIN)(model, images, wrong, drop_lost=True)
    assert model.asked == (1 + 2) * len(images), "one step, and two judgements of a model that is not random"


def test_a_model_that_is_not_random_needs_no_ten_answers() -> None:
    """RayS then leaves lost images alone by itself; what else there is takes all its steps."""
    images, labels = some(4)
    for attack in (RayS(ball=Linf(0.15), queries=20), RandomNoise(ball=Linf(0.03))):
        usual = attack(RowByRow(), images, labels)
        assert torch.equal(usual, attack(RowByRow(), images, labels, drop_lost=True))


def test_a_part_of_a_batch_has_the_draws_of_the_whole() -> None:
    images, _ = some(6)
    places = torch.tensor([4, 1])
    whole = EOT(shielded(), draws=3)(images)
    with asking_about(Part(places, 6)):
        assert torch.equal(EOT(shielded(), draws=3)(images[places]), whole[:, places])
    with asking_about(Part(torch.tensor([4, 3, 1]), 6)), asking_about(Part(torch.tensor([0, 2]), 3)):
        assert torch.equal(EOT(shielded(), draws=3)(images[places]), whole[:, places]), "a part of a part"


def test_draws_by_content_stay_by_content() -> None:
    images, _ = some(4)
    model = Defended(RowByRow(), GaussianNoise(sigma=0.02, seed=0, streams="content"))
    with asking_about(Part(torch.tensor([3, 0]), 4)):
        part = model(images[[3, 0]])
    assert torch.equal(part, model(images)[[3, 0]])

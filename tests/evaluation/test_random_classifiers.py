"""Models that are random themselves: no copied draws, no level that the attack did not reach."""

import threading
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import list_attacks
from vqshield.attacks.suites import list_suites
from vqshield.attacks.threats import threat
from vqshield.certification.study import certify
from vqshield.classifiers import small_cifar10
from vqshield.core.errors import InvalidInputError
from vqshield.data import sample
from vqshield.evaluation.study import evaluate
from vqshield.models.calling import evaluating
from vqshield.runs.target import answers_digest, answers_vary

FAST = {"autoattack": "autoattack:version=rand,draws=1", "square": "square:queries=2", "apgd": "apgd:steps=2",
        "pgd": "pgd:steps=2", "noise": "noise:tries=2", "rays": "rays:queries=4"}  # fmt: skip


class Noisy(nn.Module):
    """The bundled classifier, on images with noise from torch's own generator."""

    def __init__(self, scale: float = 0.3) -> None:
        super().__init__()
        self.net, self.scale, self.calls = small_cifar10(), scale, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += len(images)
        return self.net((images + self.scale * torch.randn_like(images)).clamp(0, 1))


class OnlyWithGradients(Noisy):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) if torch.is_grad_enabled() else self.net(images)


@pytest.fixture(scope="module")
def photos() -> tuple[Tensor, Tensor]:
    held = sample(6)
    return held.floats(), held.labels


def test_randomness_is_found_with_gradients_and_without(photos) -> None:
    assert answers_vary(Noisy(), photos[0])
    assert answers_vary(OnlyWithGradients(), photos[0])
    assert not answers_vary(small_cifar10(), photos[0])


def test_a_random_classifier_is_drawn_in_every_run_and_repeats_for_a_seed(photos) -> None:
    found = [evaluate(Noisy(), *photos, samples=20, seed=seed) for seed in (0, 0, 1)]
    rows = [summary.row("none") for summary in found]
    assert rows[0].std > 0, "twenty runs, not one copied twenty times"
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]
    assert evaluate(small_cifar10(), *photos, samples=20).row("none").std == 0


def test_eot_is_really_done_on_a_random_classifier_without_a_defense(photos) -> None:
    calls = {}
    for eot in (1, 4):
        model = Noisy()
        found = evaluate(model, *photos, attacks=f"pgd:steps=3,eot={eot}", samples=1)
        calls[eot], level = model.calls, found.row("none", f"pgd:steps=3,eot={eot}").level
        assert level == ("white-box" if eot == 1 else "eot")
    assert calls[4] - calls[1] == 3 * 3 * len(photos[0]), "three more draws in each of three steps"


def test_without_a_defense_no_level_is_claimed_that_needs_one(photos) -> None:
    model = small_cifar10()
    found = evaluate(model, *photos, attacks=["pgd:steps=1,eot=4", "pgd:steps=1,surrogate=soft"], samples=1)
    assert {row.level for row in found.rows if row.attack != "none"} == {"white-box"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "random", "defense"),
    [*product(list_attacks(), (True, False), ("none", "prd:iterations=2"))],
)
def test_levels_and_draws_of_every_attack(attack: str, random: bool, defense: str, photos) -> None:
    images, labels = photos[0][:1], photos[1][:1]
    text = FAST[attack]
    found = evaluate(Noisy() if random else small_cifar10(), images, labels, attacks=text, defense=defense,
                     samples=8)  # fmt: skip
    row, typed = found.row(defense, text), threat(text, found_ball(found)).level
    expected = "white-box" if defense == "none" and typed not in ("ignorant", "black-box") else typed
    assert row.level == expected
    assert row.runs == 8


def found_ball(found):
    from vqshield.attacks import ball

    return ball(found.manifest.norm, found.manifest.eps)


def test_certificates_refuse_a_classifier_that_is_random_itself(photos) -> None:
    with pytest.raises(InvalidInputError, match="answers differently when called twice"):
        certify(Noisy(), *photos, defense="prd", certificate="vote", selection=2, samples=4)


def test_a_model_in_training_mode_is_asked_in_evaluation_mode_and_left_as_it_was(photos) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    trained = evaluate(net, *photos, attacks="pgd:steps=1", defense="prd:iterations=2", samples=2)
    assert net.training
    assert net[1].training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with evaluating(net):
        assert evaluate(net, *photos, attacks="pgd:steps=1", defense="prd:iterations=2", samples=2) == trained


def test_every_attack_has_a_fast_form() -> None:
    assert set(FAST) == set(list_attacks())
    assert not set(FAST) & set(list_suites())


def test_rounding_leaves_the_digest_of_answers_as_it_is() -> None:
    source = torch.Generator().manual_seed(0)
    answers = torch.rand(8, 3, 32, 32, generator=source)
    noise = torch.rand(answers.shape, generator=source) - 0.5
    found = answers_digest(answers)
    assert found == answers_digest(answers + 2e-7 * noise)
    changed = answers.clone()
    changed[5, 1, 2, 3] += 0.5
    for other in (answers * 0.999, answers.flip(3), answers[:7], changed):
        assert answers_digest(other) != found


class Behind(nn.Module):
    """A defended model inside another, whose noise only a variable of its function tells."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        shade = vq.Preprocessor(lambda images: images * (1 - scale * torch.rand_like(images)), name="shade")
        self.inner = vq.defend(small_cifar10(), shade)

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images)


def test_a_random_classifier_that_cannot_be_copied_is_measured(photos) -> None:
    model = Noisy()
    model.lock = threading.Lock()
    assert evaluate(model, *photos, samples=2).manifest.classifier.answers is None


@pytest.mark.parametrize("kind", [Noisy, Behind])
def test_records_of_another_random_classifier_are_not_continued(photos, tmp_path, kind) -> None:
    first = evaluate(kind(0.3), *photos, samples=2, out=tmp_path)
    assert evaluate(kind(0.3), *photos, samples=2, out=tmp_path).rows == first.rows
    with pytest.raises(InvalidInputError, match=r"records made with classifier\.answers="):
        evaluate(kind(0.6), *photos, samples=2, out=tmp_path)

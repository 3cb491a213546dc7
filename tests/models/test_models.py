"""A model that a user wrote: what is wrong with it is said in a sentence, and its mode is left as it was."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import APGD, EOT, PGD, Attack, Linf, RandomNoise, Square, cross_entropy, dlr, margin
from vqshield.attacks.losses import errors
from vqshield.attacks.threats import threat
from vqshield.core.checks import pixel_values
from vqshield.core.errors import InvalidInputError
from vqshield.models.calling import evaluating
from vqshield.models.draws import draw_predictions, outputs

IMAGES, LABELS = noise_images(4, 3, 8, 8), torch.arange(4) % 3
BALL = Linf(0.1)
ATTACKS: dict[str, Attack] = {
    "pgd": PGD(ball=BALL, steps=2),
    "apgd": APGD(ball=BALL, steps=2),
    "square": Square(ball=BALL, queries=4),
    "noise": RandomNoise(ball=BALL, tries=2),
}


class Network(nn.Module):
    """A small classifier whose answer a test spoils."""

    def __init__(self, spoil: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.norm, self.last = nn.BatchNorm2d(3), nn.Linear(3 * 8 * 8, 3)
        self.spoil = spoil

    def forward(self, images: Tensor) -> Any:
        return self.spoil(self.last(self.norm(images).flatten(1)))


def with_nan(logits: Tensor) -> Tensor:
    poison = torch.zeros_like(logits)
    poison[min(2, len(logits) - 1) :, 1] = float("nan")
    return logits + poison


SPOILT = {
    "tuple": (lambda logits: (logits, logits), "the classifier gives a tuple; it should give its logits"),
    "dict": (lambda logits: {"logits": logits}, "the classifier gives a dict"),
    "flat": (lambda logits: logits[:, 0], "shape (4,)"),
    "summed": (lambda logits: logits.sum(0, keepdim=True), "shape (1, 3)"),
    "classes": (lambda logits: logits.argmax(1), "the classifier gives values of dtype torch.int64"),
    "numpy": (lambda logits: logits.detach().numpy(), "the classifier gives a ndarray"),
}


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_name_an_answer_that_is_none(attack: str, kind: str) -> None:
    spoil, message = SPOILT[kind]
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        ATTACKS[attack](Network(spoil).eval(), IMAGES, LABELS)


@pytest.mark.parametrize("kind", SPOILT)
def test_a_defended_model_names_it_too(kind: str) -> None:
    spoil, message = SPOILT[kind]
    model = vq.defend(Network(spoil).eval(), "prd", codes=3, seed=1)
    for images in (IMAGES, IMAGES.clone().requires_grad_()):
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            model(images)


@pytest.mark.parametrize("kind", SPOILT)
def test_draws_and_eot_name_it_too(kind: str) -> None:
    spoil, message = SPOILT[kind]
    with pytest.raises(InvalidInputError, match=re.escape(message.replace("(4,)", "(2, 4)"))):
        draw_predictions(Network(spoil), IMAGES, LABELS, runs=2, batch=4)
    with pytest.raises(InvalidInputError, match=re.escape(message.replace("(4,)", "(8,)"))):
        EOT(Network(spoil).eval(), draws=2)(IMAGES)


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_refuse_logits_that_are_not_numbers(attack: str) -> None:
    with pytest.raises(
        InvalidInputError, match="logits of 2 of 4 images contain nan or infinity, image 2 the first"
    ):
        ATTACKS[attack](Network(with_nan).eval(), IMAGES, LABELS)


def test_draws_refuse_them_as_well() -> None:
    for read in (outputs, lambda model, images, **how: draw_predictions(model, images, LABELS, **how)):
        with pytest.raises(
            InvalidInputError, match="logits of 2 of 4 images contain nan or infinity, image 2"
        ):
            read(Network(with_nan), IMAGES, runs=3, batch=4)
        with pytest.raises(InvalidInputError, match="logits of 4 of 4 images"):
            read(lambda images: images.flatten(1)[:, :3] + torch.inf, IMAGES, runs=3, batch=5)


@pytest.mark.parametrize("loss", [cross_entropy, margin, dlr, errors])
@pytest.mark.parametrize("draws", [(), (2,)])
def test_losses_refuse_them_as_well(loss: Callable[[Tensor, Tensor], Tensor], draws: tuple[int, ...]) -> None:
    logits = torch.zeros(*draws, 4, 3)
    logits[..., 3, 0] = float("-inf")
    with pytest.raises(
        InvalidInputError, match="logits of 1 of 4 images contain nan or infinity, image 3 the first"
    ):
        loss(logits, LABELS)
    with pytest.raises(
        InvalidInputError, match=re.escape("logits of shape (4,) should be (..., 4, classes)")
    ):
        loss(torch.zeros(4), LABELS)


@pytest.mark.parametrize(
    "spoil", [lambda logits: logits.detach(), lambda logits: (logits.detach() * 2).clone()]
)
@pytest.mark.parametrize("wrapped", ["bare", "defended", "eot"])
@pytest.mark.parametrize("attack", ["pgd", "apgd"])
def test_a_model_without_gradient_is_named(
    attack: str, wrapped: str, spoil: Callable[[Tensor], Tensor]
) -> None:
    model: nn.Module = Network(spoil).eval()
    if wrapped != "bare":
        model = vq.defend(model, "prd", codes=3, seed=1)
    if wrapped == "eot":
        model = EOT(model, draws=2)
    with pytest.raises(InvalidInputError, match="have no gradient towards the images"):
        ATTACKS[attack](model, IMAGES, LABELS)
    assert ATTACKS["square"](model, IMAGES, LABELS).shape == IMAGES.shape


@pytest.mark.parametrize("attack", ["pgd", "apgd"])
def test_a_model_that_looks_at_something_else_is_named(attack: str) -> None:
    fixed = torch.zeros(4, 3, requires_grad=True)
    with pytest.raises(InvalidInputError, match="they do not depend on them"):
        ATTACKS[attack](lambda images: fixed * 2, IMAGES, LABELS)


def test_autoattack_names_them_too() -> None:
    pytest.importorskip("pyautoattack")
    attack = vq.attacks.AutoAttack(ball=BALL, version="rand", draws=1)
    for spoil, message in ((with_nan, "nan or infinity"), (Tensor.detach, "no gradient"), (SPOILT["tuple"])):
        with pytest.raises(InvalidInputError, match=message):
            attack(Network(spoil).eval(), IMAGES, LABELS)


@pytest.mark.parametrize("wrapped", [False, True])
def test_other_dtypes_are_named(wrapped: bool) -> None:
    model = vq.defend(Network().eval(), "prd", codes=3, seed=1) if wrapped else Network().eval()
    message = "images of dtype torch.float64 cannot be given to a classifier of dtype torch.float32; convert"
    for call in (
        lambda images: ATTACKS["pgd"](model, images, LABELS),
        lambda images: draw_predictions(model, images, LABELS, runs=1),
    ):
        if wrapped:
            call(IMAGES.double())  # a defended model converts them
        else:
            with pytest.raises(InvalidInputError, match=message):
                call(IMAGES.double())


@pytest.mark.parametrize(
    ("images", "model", "advice"),
    [
        (torch.float32, torch.float16, r"convert the classifier: classifier\.to\(torch\.float32\)"),
        (torch.float64, torch.float32, r"convert the images: images\.to\(torch\.float32\)"),
    ],
)
def test_the_advice_on_dtypes_is_taken(images: torch.dtype, model: torch.dtype, advice: str) -> None:
    with pytest.raises(InvalidInputError, match=advice):
        ATTACKS["pgd"](Network().eval().to(model), IMAGES.to(images), LABELS)


def test_an_error_of_the_models_own_is_left_alone() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        draw_predictions(Network(), noise_images(4, 3, 9, 9), LABELS)


def test_a_value_a_hair_outside_is_printed_with_all_its_digits() -> None:
    with pytest.raises(InvalidInputError, match=re.escape("images contain 1.00000024; every value")):
        pixel_values(torch.nextafter(torch.nextafter(IMAGES * 0 + 1, torch.tensor(2.0)), torch.tensor(2.0)))
    with pytest.raises(InvalidInputError, match=re.escape("images contain 1.0000000000000002; every value")):
        pixel_values(IMAGES.double() * 0 + 1.0000000000000002)


def test_what_is_no_defense_is_named() -> None:
    class JPEG:
        pass

    for build in (lambda: vq.Defended(Network(), JPEG()), lambda: vq.defend(Network(), JPEG())):  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match="defense should be a"):
            build()
    with pytest.raises(InvalidInputError, match=r"defense should be a .*, not JPEG"):
        threat("pgd:steps=1", BALL)(Network(), JPEG(), IMAGES, LABELS)  # type: ignore[arg-type]


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_in_training_mode_is_drawn_from_in_eval_mode(wrapped: bool) -> None:
    network = Network()
    expected = draw_predictions(network.eval(), IMAGES, LABELS, runs=1).predictions
    network.train()
    network.last.eval()  # a part with a mode of its own
    model = vq.defend(network, vq.PRD(codes=60, size=1, sigma=0.0, tau=0.0)) if wrapped else network
    before, state = modes(model), {key: value.clone() for key, value in network.state_dict().items()}
    found = draw_predictions(model, IMAGES, LABELS, runs=1, batch=1).predictions
    assert wrapped or torch.equal(found, expected)
    assert modes(model) == before
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


def test_modes_are_restored_after_an_error() -> None:
    network = Network(SPOILT["tuple"][0]).train()
    with pytest.raises(InvalidInputError, match="the classifier gives a tuple"):
        draw_predictions(network, IMAGES, LABELS)
    assert all(modes(network))
    with evaluating(lambda images: images):
        pass

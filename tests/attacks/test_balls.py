import re

import numpy as np
import pytest
import torch
from conftest import noise_images
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

from vqshield.attacks import L1, L2, Linf, ball, list_norms

grey = 0.3 + 0.4 * noise_images(4, 3, 5, 6).double()  # no step of the sizes below reaches 0 or 1


@pytest.mark.parametrize(
    ("norm", "eps", "budget"),
    [("linf", 8 / 255, "linf, eps 8/255"), ("l2", 0.5, "l2, eps 0.5"), ("l1", 12.0, "l1, eps 12")],
)
def test_each_norm_has_a_usual_budget(norm: str, eps: float, budget: str) -> None:
    """8/255 in L2 attacks nothing: no norm borrows the budget of another (issue 35, A.4)."""
    usual = ball(norm)
    assert usual == ball(norm, eps)
    assert usual.budget == budget
    assert usual.caveat is None


@pytest.mark.parametrize(
    ("chosen", "caveat"),
    [
        (L2(8 / 255), "l2, eps 0.0313725 is outside the usual budgets of l2, 0.1 to 5; most .* have eps 0.5"),
        (Linf(0.5), "linf, eps 0.5 is outside the usual budgets of linf, 1/255 to 0.35; .* eps 8/255"),
        (L1(0.5), "l1, eps 0.5 is outside the usual budgets of l1, 1 to 100; most .* eps 12"),
    ],
    ids=str,
)
def test_an_unusual_budget_has_a_caveat(chosen, caveat: str) -> None:
    assert re.match(caveat, chosen.caveat)
    assert type(chosen)(0.0).caveat is None  # no attack, and nobody takes it for one


def test_l2_projection_is_the_nearest_point_of_the_ball() -> None:
    change = noise_images(4, 3, 5, 6, seed=1).double() - 0.5
    change[0] *= 0.01  # inside already
    projected = L2(0.2).project(grey + change, grey) - grey
    for i in range(4):
        length = float(change[i].square().sum() ** 0.5)
        expected = change[i] if length <= 0.2 else change[i] * 0.2 / length
        assert torch.allclose(projected[i], expected, atol=1e-12)
    nearer = (projected - change).flatten(1).norm(dim=1)
    for seed in range(20):  # no other point of the ball is as near
        other = L2(0.2).start(grey, noise_images(4, 3, 5, 6, seed=seed).double().clamp(1e-6)) - grey
        assert bool((nearer <= (other - change).flatten(1).norm(dim=1) + 1e-12).all())


def test_linf_projection_clips_each_value() -> None:
    change = 0.4 * (noise_images(4, 3, 5, 6, seed=1).double() - 0.5)
    assert torch.allclose(Linf(0.1).project(grey + change, grey), grey + change.clamp(-0.1, 0.1))


@given(
    norm=st.sampled_from(list_norms()), eps=st.floats(0, 1), scale=st.floats(0, 1e4), seed=st.integers(0, 999)
)
def test_projection_keeps_the_budget_the_range_and_what_is_allowed_already(norm, eps, scale, seed) -> None:
    images = noise_images(3, 2, 4, 5, seed=seed)
    moved = images + scale * (noise_images(3, 2, 4, 5, seed=seed + 1) - 0.5)
    chosen = ball(norm, eps)
    projected = chosen.project(moved, images)
    assert bool((chosen.distance(projected, images) <= eps + 1e-6).all())
    assert 0 <= float(projected.min()) <= float(projected.max()) <= 1
    assert torch.allclose(chosen.project(projected, images), projected, atol=1e-6)


@pytest.mark.parametrize("chosen", [Linf(0.1), L2(0.5), L1(2.0)], ids=str)
def test_the_steepest_direction_has_unit_length_and_the_largest_slope(chosen) -> None:
    gradient = noise_images(4, 3, 5, 6).double() - 0.5
    direction = chosen.steepest(gradient)
    assert torch.allclose(chosen.length(direction), torch.ones(4).double())
    slope = (direction * gradient).flatten(1).sum(1)
    dual = {"linf": 1, "l2": 2, "l1": torch.inf}[chosen.norm]
    assert torch.allclose(slope, gradient.flatten(1).norm(dim=1, p=dual))
    assert torch.equal(chosen.steepest(torch.zeros_like(gradient)), torch.zeros_like(gradient))


def test_starts_are_uniform_in_the_cube_and_on_the_sphere() -> None:
    uniforms = torch.rand(200, 3, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    uniforms = uniforms.clamp(1e-9, 1 - 1e-9)
    images = torch.full((200, 3, 5, 6), 0.5).double()
    cube = Linf(0.1).start(images, uniforms) - images
    assert float(cube.abs().max()) <= 0.1
    assert float(cube.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)
    sphere = L2(0.3).start(images, uniforms) - images
    assert torch.allclose(sphere.flatten(1).norm(dim=1), torch.full((200,), 0.3).double())
    assert float(sphere.flatten(1).mean(0).abs().max()) < 0.3 * 4 / 90**0.5 / 200**0.5
    sparse = L1(0.3).start(images, uniforms) - images
    assert torch.allclose(sparse.flatten(1).abs().sum(1), torch.full((200,), 0.3).double())
    assert float(sparse.abs().mean()) == pytest.approx(0.3 / 90, rel=1e-6)
    assert float(sparse.flatten(1).mean(0).abs().max()) < 4 * 2**0.5 * 0.3 / 90 / 200**0.5


def test_lengths_and_distances() -> None:
    change = torch.tensor([[3.0, -4.0], [0.0, 0.5]]).view(2, 1, 1, 2)
    assert Linf(0.1).length(change).tolist() == [4.0, 0.5]
    assert L2(0.1).length(change).tolist() == [5.0, 0.5]
    assert L1(0.1).length(change).tolist() == [7.0, 0.5]
    assert L2(0.1).distance(grey + 0.1, grey).tolist() == pytest.approx([0.1 * 90**0.5] * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ball("l7", 0.1), "norm='l7' is unknown; choose one of l1, l2, linf"),
        (lambda: L2(-1.0), "eps=-1.0 should be from 0 to"),
        (lambda: L2(float("nan")), "eps=nan"),
        (lambda: Linf(8), "eps=8 should be from 0 to 1"),
        (lambda: Linf("8/255"), "eps='8/255' should be a number, not str"),
    ],
)
def test_bad_settings_are_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("colour", [0.3, 0.61, 0.731, 0.9])
def test_l2_projection_stays_inside_where_all_sums_are_rounded_alike(colour: float) -> None:
    flat = torch.full((1, 3, 32, 32), colour)
    for eps in torch.linspace(0.05, 0.9, 80).tolist():
        inside = L2(eps)
        found = inside.project(flat + 2 * eps * inside.steepest(torch.ones_like(flat)), flat)
        distance = float((found.double() - flat.double()).square().sum().sqrt())
        assert eps * (1 - 1e-4) < distance <= eps + 6e-7


def nearest_by_descent(moved: Tensor, image: Tensor, eps: float) -> Tensor:
    """The nearest point of ball and range as a quadratic programme, solved by an independent solver."""
    size = moved.numel()
    up = optimize.LinearConstraint(np.ones((1, 2 * size)), -np.inf, eps)  # change = rise - fall, both >= 0
    room = np.concatenate([1 - image.numpy(), image.numpy()])
    target = (moved - image).numpy()

    def value(parts: np.ndarray) -> tuple[float, np.ndarray]:
        off = parts[:size] - parts[size:] - target
        return float(off @ off) / 2, np.concatenate([off, -off])

    found = optimize.minimize(
        value, np.zeros(2 * size), jac=True, method="SLSQP", bounds=[(0, each) for each in room],
        constraints=[up], options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    return image + torch.from_numpy(found.x[:size] - found.x[size:])


@pytest.mark.parametrize("eps", [0.05, 0.4, 1.5])
def test_l1_projection_is_the_nearest_point_of_ball_and_range(eps: float) -> None:
    images = noise_images(6, 1, 2, 4).double()
    images[0, 0, 0] = torch.tensor([0.0, 1.0, 0.0, 1.0])  # values that can move one way only
    moved = images + 1.6 * (noise_images(6, 1, 2, 4, seed=1).double() - 0.5)
    found = L1(eps).project(moved, images)
    for number in range(6):
        expected = nearest_by_descent(moved[number].flatten(), images[number].flatten(), eps)
        assert torch.allclose(found[number].flatten(), expected, atol=1e-6)


def test_l1_projection_stays_inside_where_all_sums_are_rounded_alike() -> None:
    for colour in (0.3, 0.61, 0.9):
        flat = torch.full((1, 3, 32, 32), colour)
        for eps in (0.5, 3.0, 12.0, 40.0):
            found = L1(eps).project(flat + 0.05, flat)
            distance = float((found.double() - flat.double()).abs().sum())
            assert eps * (1 - 1e-3) < distance <= eps + 1e-9

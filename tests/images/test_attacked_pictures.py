"""Attacked images as bytes: a picture that is saved stays within the budget of its attack."""

import pytest
import torch

from vqshield.attacks import L2, Linf
from vqshield.images.pictures import as_bytes, moved_bytes


@pytest.mark.parametrize("within", [Linf(8 / 255), Linf(0.3), Linf(0.75 / 255), L2(0.5), L2(0.01)])
def test_rounding_to_bytes_does_not_leave_the_ball(within: Linf | L2) -> None:
    source = torch.Generator().manual_seed(3)
    clean = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8, generator=source)
    floats = clean.float() / 255
    moved = within.project(floats + torch.randn(floats.shape, generator=source), floats)
    found = moved_bytes(clean, moved, within)
    assert found.dtype == torch.uint8
    assert float(within.distance(found.float() / 255, floats).max()) <= within.eps + 1e-6
    assert int((found.int() - as_bytes(moved).int()).abs().max()) <= 1


def test_a_byte_that_an_attack_reached_is_kept() -> None:
    clean = torch.full((1, 3, 4, 4), 100, dtype=torch.uint8)
    for change in (-8, 8):
        moved = Linf(8 / 255).project(clean.float() / 255 + change, clean.float() / 255)
        assert torch.equal(moved_bytes(clean, moved, Linf(8 / 255)), clean + change)

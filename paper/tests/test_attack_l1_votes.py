"""The script that attacks certified votes: its points lie on the 8-bit grid and within the budget."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from attack_l1_votes import on_grid


@given(seed=st.integers(0, 999), steps=st.integers(1, 60), spread=st.floats(0.001, 1.0))
def test_points_are_8_bit_and_use_the_budget(seed: int, steps: int, spread: float) -> None:
    source = torch.Generator().manual_seed(seed)
    image = torch.randint(0, 256, (1, 3, 4, 4), generator=source) / 255
    moved = (image + spread * torch.randn(image.shape, generator=source)).clamp(0, 1)
    found = on_grid(moved[0], image, steps)
    levels = found.double() * 255
    assert float((levels - levels.round()).abs().max()) < 1e-4
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    distance = int((levels - image.double() * 255).round().abs().sum())
    assert distance <= steps
    if float((moved - image).abs().sum()) * 255 >= steps:
        assert distance >= steps - 48  # all of it, but where a value can go no further

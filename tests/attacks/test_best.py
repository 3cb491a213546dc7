import torch
from torch import Tensor, nn

from vqshield.attacks.best import Best
from vqshield.models.calling import asked_exactly

LABELS = torch.tensor([0, 0])


class Scripted(nn.Module):
    """The logit of class 1 of an image is its brightness plus what the script says for this call."""

    def __init__(self, script: list[float]) -> None:
        super().__init__()
        self.script, self.calls = script, 0

    def forward(self, images: Tensor) -> Tensor:
        added = self.script[self.calls]
        self.calls += 1
        return torch.stack([torch.zeros(len(images)), images.mean((1, 2, 3)) + added], 1)


def pictures(*brightness: float) -> Tensor:
    return torch.tensor(brightness)[:, None, None, None].expand(-1, 1, 2, 2).clone()


def test_the_share_of_wrong_answers_comes_first_then_the_margin() -> None:
    best = Best(pictures(0.5, 0.5), LABELS, judgements=2)
    best.consider(Scripted([-0.2, -0.4]), pictures(0.3, 0.1))  # wrong once of two, never
    best.consider(Scripted([-0.1, -9.0]), pictures(0.2, 0.0))  # wrong once and never, but with a worse margin
    assert torch.equal(best.images, pictures(0.3, 0.1))
    best.consider(Scripted([-0.1, -0.1]), pictures(0.15, 0.12))  # wrong twice, though by less
    assert torch.equal(best.images, pictures(0.15, 0.12))


def test_candidates_are_judged_on_draws_of_their_own() -> None:
    """Luck in the draws that found a candidate is gone when it is judged: held-out draws pick the better."""
    noise = torch.Generator().manual_seed(0)

    def noisy(images: Tensor) -> Tensor:
        shaken = images.mean((1, 2, 3)) - 0.5 + 0.2 * torch.randn(len(images), generator=noise)
        return torch.stack([torch.zeros(len(images)), shaken], 1)

    best = Best(torch.zeros(50, 1, 2, 2), torch.zeros(50, dtype=torch.int64), judgements=40)
    worse, better = torch.full((50, 1, 2, 2), 0.4), torch.full((50, 1, 2, 2), 0.6)
    for candidates in (worse, better, worse):
        best.consider(noisy, candidates)
    assert float((best.images == better).flatten(1).all(1).double().mean()) > 0.9


def test_draws_of_an_eot_model_count_each() -> None:
    def model(images: Tensor) -> Tensor:
        bright = images.mean((1, 2, 3))
        return torch.stack([torch.stack([bright * 0, bright - limit], 1) for limit in (0.2, 0.5, 0.7)])

    best = Best(pictures(0.0, 0.0), LABELS, judgements=1)
    for candidates in (pictures(0.6, 0.3), pictures(0.3, 0.9), pictures(0.4, 0.8)):
        best.consider(model, candidates)
    assert torch.equal(best.images, pictures(0.6, 0.9))


def test_the_first_candidate_replaces_the_images_and_gradients_are_off() -> None:
    model, moving = Scripted([-9.0]), pictures(0.1, 0.2).requires_grad_()
    best = Best(pictures(0.5, 0.5), LABELS, judgements=1)
    best.consider(model, moving)
    assert torch.equal(best.images, moving.detach())
    assert not best.images.requires_grad
    assert model.calls == 1


def test_candidates_are_judged_by_exact_answers() -> None:
    """A model that rounds sees no difference between them."""

    def rounding(images: Tensor) -> Tensor:
        values = images.mean((1, 2, 3)) - 0.5
        return torch.stack([torch.zeros(len(images)), values if asked_exactly() else values.round()], 1)

    for drop_lost in (False, True):
        best = Best(pictures(0.0, 0.0), LABELS, judgements=1, drop_lost=drop_lost)
        for candidates in (pictures(0.45, 0.55), pictures(0.49, 0.52)):
            best.consider(rounding, candidates)
        assert torch.equal(best.images, pictures(0.49, 0.55))

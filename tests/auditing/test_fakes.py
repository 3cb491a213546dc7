"""Models that are made to look robust, or that cannot be attacked as they are: each is told."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import audit_fakes
import vqshield as vq
from vqshield.attacks import Linf
from vqshield.auditing import (
    FAIL,
    NOT_RUN,
    PASS,
    SUSPICIOUS,
    TITLES,
    UNDECIDED,
    Audit,
    AuditSettings,
    answers,
    audit,
)
from vqshield.core.seeds import torch_seeded
from vqshield.core.serialization import to_plain
from vqshield.runs.notes import NOTES, Notes

ROOT = Path(__file__).resolve().parents[2]

SIDE, COUNT, FEW = 8, 50, 24
ATTACK = "pgd:steps=4,step=0.02,eot=2,surrogate=soft,loss=margin"
SETTINGS = AuditSettings(
    runs=3, batch=50, queries=5, directions=4, draws=16, probe="pgd:steps=4,eot=2,surrogate=soft"
)
WITHOUT = "no gradient towards the images"


def images() -> Tensor:
    return 0.1 + 0.8 * noise_images(COUNT, 1, SIDE, SIDE)


def labels() -> Tensor:
    return (images().mean((1, 2, 3)) > images().mean()).long()


def network() -> nn.Module:
    """Tells dark from bright."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 2)).requires_grad_(False).eval()
    weight = torch.full((SIDE**2,), 100 / SIDE**2)
    model[1].weight.copy_(torch.stack([-weight, weight]))
    middle = 100 * float(images().mean())
    model[1].bias.copy_(torch.tensor([middle, -middle]))
    return model


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images)


class Detached(Wrapped):
    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images).detach()


class InNumpy(Wrapped):
    """Answers that were never part of torch's graph."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.inner(images.detach()).numpy().copy())


class FromNothing(Wrapped):
    """A gradient, but none towards the images."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images.detach()) * self.scale.detach().requires_grad_()


class _RandomGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, images: Tensor, answers: Tensor) -> Tensor:
        ctx.save_for_backward(images)
        return answers.clone()

    @staticmethod
    def backward(ctx, *_gradients: Tensor):
        return torch.randn_like(ctx.saved_tensors[0]), None


class Random(Wrapped):
    """Gradients that have nothing to do with its answers."""

    def forward(self, images: Tensor) -> Tensor:
        return _RandomGradient.apply(images, self.inner(images.detach()))


class _Gradient(torch.autograd.Function):
    """The same value everywhere."""

    @staticmethod
    def forward(ctx, images: Tensor, answers: Tensor, value: float) -> Tensor:
        ctx.save_for_backward(images)
        ctx.value = value
        return answers.clone()

    @staticmethod
    def backward(ctx, *_gradients: Tensor):
        return torch.full_like(ctx.saved_tensors[0], ctx.value), None, None


class Zero(Wrapped):
    def forward(self, images: Tensor) -> Tensor:
        return _Gradient.apply(images, self.inner(images.detach()), 0.0)


class NotANumber(Wrapped):
    def forward(self, images: Tensor) -> Tensor:
        return _Gradient.apply(images, self.inner(images.detach()), float("nan"))


class Rounded(Wrapped):
    """Steps instead of slopes."""

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images).round()


class Lookup(nn.Module):
    """Knows the images by heart, softly: a label for whatever is near one of them, with a smooth gradient."""

    def __init__(self, known: Tensor, right: Tensor) -> None:
        super().__init__()
        self.known, self.right = known.flatten(1), nn.functional.one_hot(right, 2).float()

    def forward(self, images: Tensor) -> Tensor:
        closeness = -torch.cdist(images.flatten(1), self.known).square()
        return 10 * (closeness.softmax(1) @ self.right)


class BatchDependent(Wrapped):
    """As batch normalisation in training mode: every answer depends on the images beside it."""

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images - images.mean() + 0.5)


class OtherWithGradients(Wrapped):
    def forward(self, images: Tensor) -> Tensor:
        return self.inner(1 - images if torch.is_grad_enabled() else images)


def judge(
    model: nn.Module, *, count: int = FEW, settings: AuditSettings = SETTINGS, right=None, held_out=None
) -> Audit:
    defense = vq.RandDisc(codes=32, iterations=2, seed=1)
    return audit(
        model, defense, images()[:count], (labels() if right is None else right)[:count],
        attacks=[ATTACK], ball=Linf(8 / 255), settings=settings, held_out=held_out,
    )  # fmt: skip


def outcomes(found: Audit) -> dict[str, str]:
    return {flag.name: flag.outcome for flag in found.flags}


@pytest.mark.parametrize("model", [Detached, InNumpy, FromNothing])
def test_a_model_without_a_gradient_fails_with_the_reason(model: type[nn.Module]) -> None:
    found = judge(model())
    assert outcomes(found)["R10"] == outcomes(found)["R4"] == FAIL
    for flag in found.flags:
        if flag.name in ("R1", "R2", "R3", "R6", "R7", "R8", "R9"):
            assert flag.outcome == NOT_RUN
            assert WITHOUT in flag.meaning
    assert WITHOUT in found.flags[3].meaning
    assert WITHOUT in found.flags[9].meaning
    assert found.failed


def test_without_a_gradient_an_ignorant_attack_is_not_believed_either() -> None:
    found = audit(
        Detached(), vq.RandDisc(codes=32, iterations=2, seed=1), images(), labels(),
        attacks=["square:queries=4"], ball=Linf(8 / 255), settings=SETTINGS,
    )  # fmt: skip
    assert outcomes(found)["R4"] == outcomes(found)["R10"] == FAIL
    assert WITHOUT in found.flags[0].meaning


def test_what_is_known_of_a_model_without_a_gradient_is_enough_to_resume(tmp_path: Path) -> None:
    chosen = {"attacks": [ATTACK], "ball": Linf(8 / 255), "settings": SETTINGS}
    defense = vq.RandDisc(codes=32, iterations=2, seed=1)
    first = audit(Detached(), defense, images(), labels(), **chosen, notes=Notes(tmp_path))
    measured = (tmp_path / NOTES).read_bytes()
    again = audit(Detached(), defense, images(), labels(), **chosen, notes=Notes(tmp_path))
    assert again == first
    assert (tmp_path / NOTES).read_bytes() == measured


def test_random_gradients_are_caught() -> None:
    found = judge(Random())
    assert outcomes(found)["R10"] == FAIL
    assert outcomes(found)["R9"] in (FAIL, NOT_RUN)
    assert not found.passed


@pytest.mark.parametrize("model", [Zero, NotANumber, Rounded])
def test_gradients_that_say_nothing_are_caught(model: type[nn.Module]) -> None:
    found = outcomes(judge(model()))
    assert (found["R1"], found["R10"]) == (FAIL, FAIL)


def test_a_table_of_known_images_is_suspicious() -> None:
    """On these images alone it looks good: all are right, attacked or not, and its gradient is true."""
    right = torch.arange(COUNT) % 2
    found = judge(Lookup(images(), right), right=right)
    assert found.natural.mean == 1.0
    assert found.reported.mean > 0.9
    assert outcomes(found)["R11"] == SUSPICIOUS
    assert "by heart" in found.flags[10].meaning
    assert found.failed


@pytest.mark.parametrize(
    ("model", "how"), [(BatchDependent, "when asked alone"), (OtherWithGradients, "when gradients are on")]
)
def test_an_answer_that_depends_on_more_than_its_image_is_caught(model: type[nn.Module], how: str) -> None:
    flag = judge(model()).flags[11]
    assert (flag.name, flag.outcome) == ("R12", FAIL)
    assert f"differently {how}" in flag.meaning


@pytest.mark.parametrize("name", audit_fakes.FAKES)
def test_every_fake_of_the_table_is_told_by_its_flag(name: str) -> None:
    """As paper/research/audit_fakes.py has it on real images: docs/attacks.md shows that table."""
    trick = audit_fakes.FAKES[name]
    defense = vq.RandDisc(codes=32, iterations=2, seed=1)
    known = audit_fakes.Known(network(), images()[:FEW], labels()[:FEW], defense)
    others = noise_images(2 * COUNT, 1, SIDE, SIDE, seed=9) * 0.8 + 0.1
    bright = (others.mean((1, 2, 3)) > images().mean()).long()
    held_out = (others, bright) if "held out" in trick.figure else None
    found = judge(trick.make(known), held_out=held_out)
    flag = next(each for each in found.flags if each.name == trick.flag)
    assert flag.outcome in (FAIL, SUSPICIOUS)
    assert any(figure.startswith(trick.figure) for figure in flag.figures) or flag.name == "R10"


def test_the_recorded_table_tells_every_fake_and_no_honest_model() -> None:
    rows = json.loads((ROOT / "paper" / "results" / "audit-fakes.json").read_text())["rows"]
    assert {row["name"] for row in rows if not row["honest"]} == set(audit_fakes.FAKES)
    for row in rows:
        assert list(row["outcomes"]) == list(TITLES)
        if row["honest"]:
            assert row["alarms"] == {}, row["name"]
        else:
            assert audit_fakes.FAKES[row["name"]].flag in row["alarms"], row["name"]


def test_a_trace_is_seen_in_the_defense_too() -> None:
    """It cheats in calls that are far off; that it counts is what there is to see."""

    class Counting(vq.RandDisc):
        asked = 0

        def forward(self, images: Tensor, *, streams: Tensor | None = None) -> Tensor:
            self.asked += 1
            return super().forward(images, streams=streams)

    defense = Counting(codes=32, iterations=2, seed=1)
    found = answers.Questions(network(), defense, images()).ask_again(images(), labels(), runs=2)
    assert found.traces == ("defense's asked",)
    assert max(found.differences.values()) < 1e-4


OWN = [
    lambda: vq.GaussianNoise(sigma=0.02),
    lambda: vq.RandDisc(codes=32, iterations=2, streams="content"),
    lambda: vq.Preprocessor(lambda pixels: pixels**1.1),
]


@pytest.mark.parametrize("make", OWN)
def test_a_defended_model_that_is_given_whole_raises_no_alarm_by_counting_its_draws(make) -> None:
    """Its streams, and whether its function has a gradient, are the project's own notes."""
    flag = judge(nn.Sequential(vq.defend(network(), make()))).flags[11]
    assert (flag.name, flag.outcome) == ("R12", PASS), flag.figures


class ByStreams(nn.Module):
    """Other answers once the defense inside, which is the project's own, has counted far enough."""

    def __init__(self, calls: int, noise: float) -> None:
        super().__init__()
        self.defended = vq.defend(network(), vq.GaussianNoise(sigma=noise))
        self.calls = calls

    def forward(self, images: Tensor) -> Tensor:
        logits = self.defended(images)
        return logits if int(self.defended.defense._next_stream) < self.calls else logits.roll(1, -1)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_count_of_draws_is_no_place_to_hide_a_count_of_calls(noise: float) -> None:
    flag = judge(ByStreams(10**6, noise)).flags[11]
    assert (flag.name, flag.outcome) == ("R12", FAIL)
    assert "differently when its own defenses have counted far" in flag.meaning


def test_only_the_projects_own_classes_may_count() -> None:
    class Mine(vq.GaussianNoise):
        pass

    Mine.__module__ = "vqshield.defenses.gaussian"
    flag = judge(vq.defend(network(), Mine(sigma=0.02))).flags[11]
    assert (flag.name, flag.outcome) == ("R12", SUSPICIOUS)
    assert flag.figures["changed by being asked"] == "classifier's defense._next_stream"


def test_what_a_module_keeps_is_seen_in_every_form() -> None:
    class Keeping(Wrapped):
        def __init__(self) -> None:
            super().__init__()
            self.number, self.seen, self.by_name, self.still = 0, [], {}, [1, 2]
            self.register_buffer("total", torch.zeros(3))
            self.inner.last = torch.zeros(2)

        def forward(self, images: Tensor) -> Tensor:
            self.number += 1
            self.seen.append(images)
            self.by_name[len(self.seen)] = "x"
            self.total += 1
            self.inner.last = self.inner.last + 1
            return super().forward(images)

    model = Keeping()
    before = answers.snapshot(model)
    assert answers.changed(before, answers.snapshot(model)) == []
    model(images())
    assert answers.changed(before, answers.snapshot(model)) == [
        "by_name",
        "inner.last",
        "number",
        "seen",
        "total",
    ]
    assert answers.snapshot(lambda pixels: pixels) == {}, "a function keeps nothing that could be seen"


def test_only_dropout_that_is_on_is_seen() -> None:
    pixels = images()
    layers = nn.Sequential(nn.Dropout(0.3), nn.Dropout2d(0.2), nn.AlphaDropout(0.1))
    assert answers.dropout_on(lambda: layers.eval()(pixels)) == []
    assert answers.dropout_on(lambda: layers.train()(pixels)) == [
        "alpha_dropout of 0.1", "dropout of 0.3", "dropout2d of 0.2",
    ]  # fmt: skip
    assert answers.dropout_on(lambda: nn.functional.dropout(pixels, p=0.0)) == []
    assert answers.dropout_on(lambda: torch.dropout(pixels, 0.4, True)) == ["dropout of 0.4"]


def test_logits_of_any_size_leave_the_same_once_they_are_divided() -> None:
    """An attack on cross-entropy stands still; divided by a constant, the same logits give it everything."""
    entropy = ATTACK.replace(",loss=margin", "")
    chosen = {"attacks": [entropy], "ball": Linf(8 / 255), "settings": SETTINGS}
    defense = vq.RandDisc(codes=32, iterations=2, seed=1)
    found = audit(nn.Sequential(network(), Times(1e5)), defense, images(), labels(), **chosen)
    flag = found.flags[12]
    assert (flag.name, flag.outcome) == ("R13", FAIL)
    left = [flag.figures[each].mean for each in ("attack", "attack on logits divided by a constant")]
    assert left[0] > 0.8
    assert left[1] < 0.4


class Bent(Wrapped):
    """A pixel counts where it is grey: the gradient is right, and no straight line over a whole budget."""

    def forward(self, images: Tensor) -> Tensor:
        score = torch.tanh(120 * (images.flatten(1) - 0.5)).sum(1) / 4
        return torch.stack([-score, score], 1)


class Rippled(Wrapped):
    """The true gradient of waves that are shorter than any step of an attack."""

    def forward(self, images: Tensor) -> Tensor:
        score = self.inner(images)[:, 1] / 3 + torch.sin(3000 * images.flatten(1)).sum(1) / 20
        return torch.stack([-score, score], 1)


@pytest.mark.parametrize(("model", "outcome"), [(Bent, PASS), (Rippled, FAIL)])
def test_r10_tells_a_loss_that_bends_from_one_that_leads_nowhere(
    model: type[nn.Module], outcome: str
) -> None:
    bare = vq.GaussianNoise(sigma=0.0, seed=1)  # the probe's surrogate is none for it: the identity serves
    found = audit(
        model(), bare, images(), model()(images()).argmax(1), attacks=["pgd:steps=4,step=0.02"],
        ball=Linf(16 / 255), settings=SETTINGS,
    )  # fmt: skip
    flag = found.flags[9]
    assert (flag.name, flag.outcome) == ("R10", outcome)
    assert flag.figures["correlation"] < 0.6
    assert any("steps of" in name for name in flag.figures) is (outcome == PASS)


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, logits: Tensor) -> Tensor:
        return self.factor * logits


class Noisy(Wrapped):
    """An honest random classifier: noise of its own, in evaluation mode too."""

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images + 0.05 * torch.randn_like(images))


def test_an_honest_random_classifier_may_answer_at_random() -> None:
    with torch_seeded(0):
        flag = judge(Noisy()).flags[11]
    assert (flag.name, flag.outcome) == ("R12", PASS)
    assert "draws at random itself" in flag.meaning


def test_a_model_in_training_mode_is_judged_in_evaluation_mode_and_left_as_it_was() -> None:
    trained = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.9), network())
    trained.train()
    trained[1].eval()  # a mode of its own
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    modes = [layer.training for layer in trained.modules()]
    seen = []
    hook = trained[0].register_forward_hook(lambda layer, *_: seen.append(layer.training))
    found = judge(trained)
    hook.remove()
    assert [layer.training for layer in trained.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    assert set(seen) == {False}
    assert to_plain(found) == to_plain(judge(trained.eval())), "as in evaluation mode from the start"


def test_its_mode_comes_back_after_an_error() -> None:
    class Broken(Wrapped):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("broken")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="broken"):
        judge(model)
    assert model.training


def test_two_images_show_nothing() -> None:
    found = judge(network(), count=2)
    assert not found.passed
    assert PASS not in outcomes(found).values()
    assert UNDECIDED in outcomes(found).values()


def test_an_honest_model_passes_what_the_fakes_do_not() -> None:
    settings = dataclasses.replace(SETTINGS, draws=64)
    found = outcomes(judge(network(), count=COUNT, settings=settings))
    assert {name: found[name] for name in ("R4", "R10", "R11", "R12")} == dict.fromkeys(
        ("R4", "R10", "R11", "R12"), PASS
    )
    assert list(found) == list(TITLES)

"""Threats as people type them, what they know of the defense, and that they leave everything as it was."""

import re

import pytest
import torch
from conftest import noise_images
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import vqshield as vq
from vqshield import attacks
from vqshield.attacks import (
    APGD,
    EOT,
    L2,
    PGD,
    Attack,
    FastAnswers,
    FastGradients,
    InBasis,
    Linf,
    RandomNoise,
    Square,
    ball,
    list_losses,
)
from vqshield.attacks.threats import LEVELS, Threat, threat
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import to_plain
from vqshield.defenses import GaussianNoise
from vqshield.runs.manifests import ThreatId
from vqshield.surrogates import Score, Soft, get, list_surrogates
from vqshield.surrogates import known_settings as surrogate_settings

BALL = Linf(0.1)
LABELS = torch.tensor([0, 1, 2])


def images(side: int = 8) -> Tensor:
    return noise_images(3, 3, side, side)


def linear(side: int = 8, classes: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * side**2, classes)).eval()


def draws_made(defense: vq.Defense) -> int:
    return int(defense.streams(images()[:1]))


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("pgd:steps=20,surrogate=none", "ignorant"),
        ("pgd:surrogate=none,eot=5", "ignorant"),
        ("square:surrogate=none", "ignorant"),
        ("noise:surrogate=none", "ignorant"),
        ("square:queries=1000,eot=5", "black-box"),
        ("square", "black-box"),
        ("noise", "black-box"),
        ("noise:surrogate=soft", "black-box"),
        ("pgd", "ste"),
        ("pgd:surrogate=ste,eot=1", "ste"),
        ("apgd:steps=5", "ste"),
        ("pgd:steps=100,eot=10", "eot"),
        ("apgd:eot=2,average=logits", "eot"),
        ("pgd:surrogate=soft", "adaptive"),
        ("pgd:steps=60,eot=5,surrogate=soft", "adaptive"),
        ("pgd:surrogate=score,eot=500,average=logits", "adaptive"),
        ("pgd:basis=dct8", "adaptive"),
        ("pgd:basis=block4,eot=5", "adaptive"),
        ("pgd:basis=pixels", "ste"),
        ("pgd:basis=pixels,eot=2", "eot"),
    ],
)
def test_the_text_says_how_much_the_attacker_knows(text: str, level: str) -> None:
    parsed = threat(text, BALL)
    assert parsed.level == level
    assert parsed.name == text
    assert level in LEVELS


def test_settings_go_where_they_belong() -> None:
    text = (
        "pgd:steps=7,eot=3,surrogate=soft,temperature=1/10,momentum=0.5,centres=unrolled,rounds=2,"
        "average=logits,basis=block2,noise=drawn,loss=margin"
    )
    parsed = threat(text, BALL, seed=11)
    assert parsed.attack == PGD(ball=BALL, steps=7, momentum=0.5, loss="margin", seed=11)
    assert (parsed.eot, parsed.average, parsed.basis) == (3, "logits", "block2")
    assert get(parsed.surrogate) == Soft(temperature=0.1, centres="unrolled", rounds=2, noise="drawn")


@given(temperature=st.floats(1e-6, 1e6), rounds=st.integers(1, 999))
def test_surrogate_settings_arrive_exactly(temperature: float, rounds: int) -> None:
    parsed = threat(f"pgd:surrogate=soft,temperature={temperature!r},rounds={rounds}", BALL)
    assert get(parsed.surrogate) == Soft(temperature=temperature, rounds=rounds)


def test_the_ball_and_the_seed_are_given_beside_the_text() -> None:
    for room in (Linf(0.2), L2(1.5)):
        assert threat("apgd:steps=3", room, seed=5).attack == APGD(ball=room, steps=3, seed=5)
    assert threat("square", BALL).attack == Square(ball=BALL, seed=0)
    assert threat("noise:tries=2", BALL).attack == RandomNoise(ball=BALL, tries=2)


def test_no_setting_of_a_surrogate_hides_one_of_an_attack() -> None:
    own = {"surrogate", "eot", "average", "basis"}
    for name in attacks.list_attacks():
        theirs = set(attacks.known_settings(name))
        assert not theirs & own
        for surrogate in list_surrogates():
            assert not theirs & set(surrogate_settings(surrogate))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hope", "attack='hope' is unknown; choose one of apgd, autoattack, noise, pgd, rays, square"),
        ("adaptive-v1", "attack='adaptive-v1' is unknown"),
        (
            "pgd:surrogate=magic",
            "surrogate='magic' is unknown; choose one of learned, none, own, score, soft, ste",
        ),
        ("pgd:surrogate=3", "surrogate='3' is unknown"),
        ("pgd:luck=1", "pgd has no setting 'luck'; it has surrogate, eot, average, basis, precision, steps"),
        (
            "pgd:surrogate=soft,luck=1",
            "pgd has no setting 'luck'; it has surrogate, eot, average, basis, precision, temperature, "
            "centres, rounds, noise, steps",
        ),
        ("pgd:seed=3", "pgd has no setting 'seed'; it has surrogate"),
        ("pgd:ball=3", "pgd has no setting 'ball'"),
        ("pgd:temperature=0.1", "pgd has no setting 'temperature'"),
        ("pgd:surrogate=none,temperature=0.1", "pgd has no setting 'temperature'"),
        ("square:steps=3", "square has no setting 'steps'; it has surrogate, eot, average, basis, precision"),
        ("pgd:surrogate=soft,temperature=0", "temperature=0 should be >= 1e-06"),
        ("pgd:steps=0", "steps=0 should be >= 1"),
        ("pgd:steps=2.5", "steps=2.5 should be a whole number"),
        ("pgd:eot=0", "eot=0 should be >= 1"),
        ("pgd:eot=many", "eot='many' should be a whole number"),
        ("pgd:eot=2.0", "eot=2.0 should be a whole number"),
        ("pgd:average=medians", "average='medians' is unknown; choose one of gradients, logits"),
        ("pgd:basis=wavelets", "basis='wavelets' is unknown; choose one of block, clusters, dct, pixels"),
        ("pgd:basis=2", "basis should be a name, not int"),
        ("pgd:steps=3,steps=4", "'steps' is set twice"),
        ("pgd:", "'pgd:' has no settings after the colon"),
        ("pgd:steps", "'steps' in 'pgd:steps' is not key=value"),
        ("", "'' does not start with a name"),
    ],
)
def test_mistakes_are_answered_with_what_is_known(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        threat(text, BALL)


def test_the_seed_is_not_among_the_settings_that_are_offered() -> None:
    with pytest.raises(InvalidInputError) as caught:
        threat("pgd:luck=1", BALL)
    offered = str(caught.value).partition("it has ")[2].split(", ")
    assert "seed" not in offered
    assert {"steps", "loss", "eot", "surrogate"} <= set(offered)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": "psychic"}, "level='psychic' is unknown; choose one of adaptive, black-box, eot"),
        ({"eot": 0}, "eot=0 should be >= 1"),
        ({"average": "mean"}, "average='mean' is unknown"),
        ({"surrogate": "magic"}, "surrogate='magic' is unknown"),
        ({"surrogate": "soft:rounds=0"}, "rounds=0"),
        ({"basis": "none"}, "basis='none' is unknown"),
    ],
)
def test_a_threat_of_ones_own_is_checked_as_well(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        Threat(**{"name": "mine", "level": "ste", "attack": PGD(ball=BALL), **settings})  # type: ignore[arg-type]


def test_an_ignorant_attacker_never_asks_the_defense() -> None:
    """The stream counter of the defense does not move, and the images are those of the bare classifier."""
    classifier, defense = linear(), vq.PRD(codes=4, seed=1)
    for text in (
        "pgd:steps=3,surrogate=none",
        "pgd:steps=3,surrogate=none,eot=7",
        "square:queries=9,surrogate=none",
    ):
        parsed = threat(text, BALL, seed=2)
        found = parsed(classifier, defense, images(), LABELS)
        assert torch.equal(found, parsed.attack(classifier, images(), LABELS))
    assert draws_made(defense) == 0


@pytest.mark.parametrize(
    ("text", "draws"),
    [("pgd:steps=3", 3), ("pgd:steps=3,eot=4", 12), ("pgd:steps=2,surrogate=soft,eot=5,basis=dct4", 10)],
)
def test_a_knowing_attacker_uses_so_many_draws_a_step(text: str, draws: int) -> None:
    defense = vq.PRD(codes=4, seed=1)
    threat(text, BALL)(linear(), defense, images(), LABELS)
    assert draws_made(defense) == 3 * draws


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("pgd:steps=3", lambda d: d),
        ("pgd:steps=3,eot=2", lambda d: EOT(d, draws=2)),
        ("pgd:steps=3,eot=2,average=logits", lambda d: EOT(d, draws=2, average="logits")),
        ("pgd:steps=3,eot=2,basis=block4", lambda d: InBasis(EOT(d, draws=2), "block4")),
        ("square:queries=9,eot=2", lambda d: EOT(d, draws=2)),
    ],
)
def test_a_threat_is_its_attack_on_the_wrapped_model(text: str, model) -> None:
    classifier, defense = linear(), vq.SWRD(size=2, codes=4, seed=1)
    parsed = threat(text, L2(1.0), seed=3)  # whose steps show every difference between gradients
    wrapped = model(vq.Defended(classifier, defense.reseeded(1)))
    expected = parsed.attack(wrapped, images(), LABELS)
    assert torch.equal(parsed(classifier, defense, images(), LABELS), expected)


def test_the_surrogate_decides_the_gradient() -> None:
    classifier, found = linear(), {}
    for surrogate in ("ste", "soft", "score", Soft(temperature=0.3), Score()):
        parsed = Threat(name="mine", level="adaptive", attack=PGD(ball=BALL, steps=2), surrogate=surrogate)
        found[str(surrogate)] = parsed(classifier, vq.PRD(codes=4, seed=1), images(), LABELS)
    assert torch.equal(found["score"], found["Score()"])
    kinds = [found["ste"], found["soft"], found["score"], found[str(Soft(temperature=0.3))]]
    for number, one in enumerate(kinds):
        assert not any(torch.equal(one, other) for other in kinds[number + 1 :])


def test_a_seeded_threat_on_a_seeded_defense_repeats() -> None:
    parsed = threat("pgd:steps=3,eot=2,surrogate=soft", BALL, seed=4)
    runs = [parsed(linear(), vq.SWRD(size=2, codes=4, seed=1), images(), LABELS) for _ in range(2)]
    assert torch.equal(*runs)


class Learning(nn.Module):
    """A network in training: batch normalisation that keeps statistics of all it sees, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4)
            )

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels)


@pytest.mark.parametrize(
    "text", ["pgd:steps=2,surrogate=none", "pgd:steps=2,eot=2,surrogate=soft,basis=dct4", "square:queries=6"]
)
def test_a_model_in_training_learns_nothing_from_an_attack(text: str) -> None:
    model = Learning().train()
    model.layers[0].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    threat(text, BALL)(model, vq.PRD(codes=4, seed=1), images(), LABELS)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert int(after["layers.1.num_batches_tracked"]) == 0
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [True, False, True, True, True, True]
    model(images())
    assert int(model.layers[1].num_batches_tracked) == 1, "it learns again afterwards"


def test_statistics_are_put_back_after_an_error_too() -> None:
    model = Learning().train()

    class Broken(Attack):
        ball = BALL

        def run(self, model, images: Tensor, labels: Tensor) -> Tensor:
            model(images)
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        Threat(name="broken", level="ste", attack=Broken())(model, vq.PRD(codes=4), images(), LABELS)
    assert int(model.layers[1].num_batches_tracked) == 0
    assert not model.layers[1].running_mean.any()
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("loss", list_losses())
@pytest.mark.parametrize("text", ["pgd:steps=1", "apgd:steps=1"])
def test_logits_without_a_row_per_image_are_named_whatever_the_loss(text: str, loss: str) -> None:
    def one_row(pixels: Tensor) -> Tensor:
        return pixels.flatten(1)[:1, :4]

    with pytest.raises(InvalidInputError, match=re.escape("logits of shape (1, 4) should be (3, classes)")):
        threat(f"{text},loss={loss}", BALL)(one_row, vq.PRD(codes=4), images(), LABELS)


@given(eps=st.floats(0.5, 20), seed=st.integers(0, 999))
def test_a_large_l2_budget_is_kept_in_single_precision(eps: float, seed: int) -> None:
    """Over thousands of values the rounding of a sum is no longer small beside the slack of an attack."""
    start = 0.3 * noise_images(4, 3, 32, 32, seed=seed)
    moved = start + 3 * noise_images(4, 3, 32, 32, seed=seed + 1)  # upwards: [0, 1] cuts nothing off
    room = ball("l2", eps)
    projected = room.project(moved, start)
    exact = (projected.double() - start.double()).flatten(1).norm(dim=1)
    for length in (exact, room.distance(projected, start)):
        assert float(length.max()) <= eps + 1e-6
        assert float(length.min()) >= eps * (1 - 1e-6)


def test_an_unbounded_l2_attack_runs() -> None:
    """The audit's: half of the range in each value, summed over the image."""
    eps = 0.5 * (3 * 32 * 32) ** 0.5
    start = noise_images(3, 3, 32, 32)
    parsed = threat("pgd:steps=4,step=20", L2(eps))
    found = parsed(linear(32), vq.PRD(codes=4, seed=1), start, LABELS)
    length = (found - start).flatten(1).norm(dim=1)
    assert float(length.max()) <= eps + 1e-6
    assert float(length.min()) > eps / 2


def test_the_usual_precision_is_named_nowhere_and_another_one_everywhere() -> None:
    """Seeds of audits come from this text, and manifests of earlier runs are compared with today's."""
    usual, fast = (threat(text, Linf(0.1)) for text in ("pgd:steps=2", "pgd:steps=2,precision=bf16"))
    assert repr(usual) == repr(usual.attack).join(
        ("Threat(name='pgd:steps=2', level='ste', attack=",
         ", surrogate='ste', eot=1, average='gradients', basis='pixels')")
    )  # fmt: skip
    assert repr(fast).endswith("basis='pixels', precision='bf16')")
    assert "precision" not in to_plain(ThreatId.of(usual))
    assert to_plain(ThreatId.of(fast))["precision"] == "bf16"
    assert threat("pgd:steps=2,precision=float32", Linf(0.1)).is_fast is False
    with pytest.raises(
        InvalidInputError, match="precision='half' is unknown; choose one of bf16, float32, tf32"
    ):
        threat("pgd:precision=half", Linf(0.1))
    with pytest.raises(InvalidInputError, match="precision=16 is unknown"):
        threat("pgd:precision=16", Linf(0.1))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_fast_threat_asks_the_defense_in_float32_and_drops_the_lost(precision: str) -> None:
    """The classifier alone is faster: what it is asked without gradients is what it always answers."""
    seen: list[torch.dtype] = []

    class Watched(vq.PRD):
        def forward(self, given, *, streams=None):
            seen.append(given.dtype)
            return super().forward(given, streams=streams)

    text = f"pgd:steps=4,eot=2,precision={precision}"
    found = threat(text, Linf(0.3))(linear(), Watched(codes=4, seed=1), images(), LABELS)
    assert set(seen) == {torch.float32} == {found.dtype}
    assert float((found - images()).abs().max()) <= 0.3 + 1e-6


def test_images_for_another_model_take_all_their_steps() -> None:
    """What is lost on the bare classifier, or on another network, may hold behind the defense."""
    asked: list[int] = []
    for surrogate, drop_lost in (("none", True), ("ste", False), ("ste", True)):
        model = linear()
        with torch.no_grad():
            model[1].weight.mul_(100)  # lost after a step or two
        asked.append(0)
        model.register_forward_hook(lambda _, given, __: asked.append(asked.pop() + len(given[0])))
        parsed = threat(f"pgd:steps=96,surrogate={surrogate},precision=bf16", Linf(0.5))
        parsed(model, vq.PRD(codes=4, seed=1), images(), LABELS, drop_lost=drop_lost)
    every = 96 * len(LABELS)
    assert asked[:2] == [every, every]
    assert asked[2] < every


def test_an_attack_without_gradients_asks_in_its_precision_and_others_follow_gradients_in_it() -> None:
    fast = {name: threat(f"{name}:precision=bf16", Linf(0.1)) for name in ("square", "rays", "pgd", "noise")}
    found = {
        name: type(each.attacked_model(linear(), GaussianNoise(sigma=0.1, seed=0)).classifier)
        for name, each in fast.items()
    }
    assert found == {"square": FastAnswers, "rays": FastAnswers, "pgd": FastGradients, "noise": FastGradients}
    assert isinstance(threat("square", Linf(0.1)).in_precision(linear()), nn.Sequential)

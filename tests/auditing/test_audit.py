"""The whole audit on a classifier that is made to flatter its defense.

Its answer is the brightness of an image, plus three times how much of a chequerboard there is in it. An
attack that knows nothing paints the board, which two centres an image wipe out; the identity taken for the
quantizer's gradient says the same. Only a gradient that knows that pixels of a cluster move together finds
the brightness.
"""

import dataclasses
import json
import math

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import L2, Attack, Ball, Linf
from vqshield.attacks.threats import Threat, threat
from vqshield.auditing import (
    FAIL,
    NOT_RUN,
    PARTS,
    PASS,
    QUICK,
    TITLES,
    Audit,
    AuditSettings,
    audit,
)
from vqshield.auditing.probes import Probes
from vqshield.core.errors import InvalidInputError
from vqshield.core.serialization import from_plain, to_plain

SIDE, COUNT = 8, 50
BALL = Linf(16 / 255)
IGNORANT = "pgd:steps=8,surrogate=none"
STRAIGHT = "pgd:steps=8,eot=2"
SOFT = "pgd:steps=16,eot=4,surrogate=soft,loss=margin"
CHEAP = AuditSettings(
    runs=3,
    batch=50,
    queries=10,
    directions=4,
    draws=16,
    probe="pgd:steps=12,eot=2,surrogate=soft,loss=margin",
)


def chequered() -> nn.Module:
    row, column = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    board = (row + column) % 2 * 2 - 1
    weight = 100 * (1 + 3 * board.flatten()) / SIDE**2
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 2)).requires_grad_(False).eval()
    model[1].weight.copy_(torch.stack([-weight, weight]))
    model[1].bias.copy_(torch.tensor([50.0, -50.0]))
    return model


def pictures() -> tuple[Tensor, Tensor]:
    """A dark and a bright half; the brightness of both is a little below or above one half."""
    labels = torch.arange(COUNT) % 2
    brightness = 0.5 + (2 * labels - 1) * (0.02 + 0.02 * noise_images(COUNT))
    halves = torch.where(torch.arange(SIDE) < SIDE // 2, -0.2, 0.2).expand(1, SIDE, SIDE)
    return brightness[:, None, None, None] + halves, labels


def defense() -> vq.Defense:
    return vq.RandDisc(codes=2, seed=1)


def run(*attacks: str, ball: Ball = BALL, settings: AuditSettings = CHEAP, **others) -> Audit:
    return audit(chequered(), defense(), *pictures(), attacks=attacks, ball=ball, settings=settings, **others)


def outcomes(found: Audit) -> dict[str, str]:
    return {flag.name: flag.outcome for flag in found.flags}


@pytest.fixture(scope="module")
def flattered() -> Audit:
    return run(IGNORANT)


@pytest.fixture(scope="module")
def believable() -> Audit:
    return run(SOFT)


def test_an_ignorant_attack_alone_is_caught(flattered: Audit) -> None:
    assert flattered.natural.mean == flattered.reported.mean == 1.0, "it leaves everything, which looks well"
    assert not flattered.passed
    found = outcomes(flattered)
    assert (found["R4"], found["R8"]) == (FAIL, FAIL)
    assert [found[name] for name in ("R1", "R2", "R3", "R7", "R9", "R10")] == [NOT_RUN] * 6
    assert (found["R5"], found["R6"]) == (PASS, PASS)
    meanings = {flag.name: flag.meaning for flag in flattered.flags}
    assert "it comes from attacks that ignore the defense" in meanings["R8"]
    assert "no attack given uses gradients of the defense" in meanings["R4"]
    assert meanings["R1"] == "no attack given uses gradients of the defense"


def test_the_probe_that_knows_the_defense_shows_what_is_left(flattered: Audit) -> None:
    figures = next(flag.figures for flag in flattered.flags if flag.name == "R8")
    assert figures["ignorant"].mean == 1.0
    assert figures["probe that knows the defense"].mean < 0.2


def test_a_gradient_that_does_not_know_how_quantizers_work_is_caught() -> None:
    found = run(STRAIGHT)
    assert found.reported.mean == 1.0
    flags = outcomes(found)
    assert (flags["R8"], flags["R10"]) == (FAIL, FAIL)
    meaning = next(flag.meaning for flag in found.flags if flag.name == "R8")
    assert "it comes from attacks that are too weak" in meaning
    assert not found.passed


def test_an_attack_that_knows_the_defense_passes_every_check(believable: Audit) -> None:
    assert outcomes(believable) == dict.fromkeys(TITLES, PASS)
    assert believable.passed
    assert believable.reported.mean <= 0.1
    assert believable.natural.mean == 1.0


def test_its_gradient_beats_the_identity_in_the_figures(believable: Audit) -> None:
    figures = believable.flags[9].figures
    assert figures["correlation"] == min(figures["soft"].corrected, figures["soft, attacked"].corrected) > 0.8
    assert figures["signs that agree"].mean > 0.8
    assert figures["ste"].pooled < 0.5
    assert figures["soft"].images == 24
    assert (figures["soft"].directions, figures["soft"].draws) == (4, 16)
    assert figures["soft"].step == BALL.eps


def test_figures_name_what_was_varied(believable: Audit) -> None:
    figures = {flag.name: list(flag.figures) for flag in believable.flags}
    assert figures["R1"] == ["left at eps=0.5", "limit"]
    assert figures["R2"] == ["steps 4", "steps 8", "steps 16"]
    assert figures["R3"] == [f"eps {16 / 255 * f:g}" for f in (0.5, 1, 2)]
    assert figures["R7"] == ["eot 4", "eot 8"]
    usual = believable.attacks[SOFT]
    assert believable.flags[1].figures["steps 16"] == believable.flags[6].figures["eot 4"] == usual


def test_what_is_varied_is_one_thing_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[Threat, None] = {}
    draws = Probes.draws

    def noted(self: Probes, chosen: Threat):
        asked[chosen] = None
        return draws(self, chosen)

    monkeypatch.setattr(Probes, "draws", noted)
    run(SOFT)
    eps = BALL.eps
    varied = [(each.attack.ball.eps, each.attack.steps, each.eot) for each in asked if each.name == SOFT]
    assert varied == [
        (eps, 16, 4), (0.5, 16, 4), (eps, 4, 4), (eps, 8, 4), (eps / 2, 16, 4), (2 * eps, 16, 4), (eps, 16, 8)
    ]  # fmt: skip
    others = [each for each in asked if each.name != SOFT]
    assert [each.level for each in others] == ["ignorant", "black-box", "black-box", "adaptive"]
    assert others[3].name == CHEAP.probe


@pytest.mark.parametrize("name", ["flattered", "believable"])
def test_an_audit_is_plain_json_without_nan(name: str, request: pytest.FixtureRequest) -> None:
    found: Audit = request.getfixturevalue(name)
    plain = json.loads(json.dumps(to_plain(found), allow_nan=False))
    assert plain["passed"] is found.passed
    assert plain["n"] == COUNT
    assert {flag["name"]: flag["outcome"] for flag in plain["flags"]} == outcomes(found)
    assert from_plain(Audit, plain, "here") == found


def test_a_seed_repeats_an_audit_and_another_gives_other_draws(believable: Audit) -> None:
    assert run(SOFT) == believable
    correlations = [
        each.flags[9].figures["correlation"]
        for each in (believable, run(SOFT, settings=dataclasses.replace(CHEAP, seed=1)))
    ]
    assert correlations[0] != correlations[1]


def test_the_defense_given_is_not_used_up() -> None:
    mine = defense()
    audit(chequered(), mine, *pictures(), attacks=[IGNORANT], ball=BALL, settings=CHEAP)
    assert mine.streams(pictures()[0][:1]).tolist() == [0]


def test_several_attacks_report_the_strongest_of_each_image() -> None:
    found = run(IGNORANT, STRAIGHT, SOFT)
    assert list(found.attacks) == [IGNORANT, STRAIGHT, SOFT]
    assert found.attacks[IGNORANT].mean == found.attacks[STRAIGHT].mean == 1.0
    assert found.reported.mean <= found.attacks[SOFT].mean + 1e-9 < 0.2
    assert list(found.flags[1].figures) == ["steps 4", "steps 8", "steps 16"], "SOFT is what is varied"


def test_a_suite_is_judged_by_its_members() -> None:
    found = run("adaptive-v1-quick")
    assert list(found.attacks) == ["adaptive-v1-quick/soft-margin", "adaptive-v1-quick/ste-margin"]
    assert found.reported.mean < 0.2
    assert list(found.flags[1].figures) == ["steps 5", "steps 10", "steps 20"]


def test_an_unbounded_l2_attack_may_change_as_much_in_sum() -> None:
    found = run("pgd:steps=8,surrogate=soft,step=1.0", ball=L2(0.6))
    far = 0.5 * math.sqrt(SIDE**2)
    assert f"left at eps={far:g}" in found.flags[0].figures
    step = found.flags[9].figures["ste"].step
    assert step == pytest.approx(0.6 / math.sqrt(SIDE**2)), "a step of each value, as long as the budget"


def test_progress_is_told_as_it_goes() -> None:
    told: list[str] = []
    run(SOFT, report=told.append)
    assert told == ["R5, the attacks given", "R4", "R6", "R8", "R1", "R2", "R3", "R7", "R9", "R10", "R11",
                    "R12", "R13", "R14"]  # fmt: skip
    assert len(told) == PARTS
    whole = list(told)
    told.clear()
    run(IGNORANT, report=told.append)
    assert told == whole, "those that cannot be run are counted, too"


def test_too_few_steps_to_vary_are_not_run_and_so_not_passed() -> None:
    found = run("pgd:steps=3,step=0.03,eot=4,surrogate=soft,loss=margin")
    assert outcomes(found)["R2"] == NOT_RUN
    assert "has no steps, or too few to vary" in found.flags[1].meaning
    assert not found.passed


class Function(nn.Module):
    """Without a linear layer."""

    def forward(self, images: Tensor) -> Tensor:
        model = chequered()
        return images.flatten(1) @ model[1].weight.T + model[1].bias


def test_without_features_to_plant_in_r9_is_not_run_with_the_reason() -> None:
    found = audit(Function(), defense(), *pictures(), attacks=[SOFT], ball=BALL, settings=CHEAP)
    assert outcomes(found) == {**dict.fromkeys(TITLES, PASS), "R9": NOT_RUN}
    assert "no linear layer" in found.flags[8].meaning
    assert not found.passed


def test_bad_input_is_named_before_any_work() -> None:
    images, labels = pictures()
    told: list[str] = []

    def start(**changes) -> None:
        chosen = {"images": images, "labels": labels, "attacks": [SOFT], **changes}
        audit(chequered(), defense(), ball=BALL, settings=CHEAP, report=told.append, **chosen)

    for changes, message in (
        ({"attacks": []}, "attacks should name at least one threat or suite, not none"),
        ({"attacks": ["hope"]}, "attack='hope' is unknown; choose one of adaptive-v1"),
        ({"attacks": ["pgd:luck=1"]}, "pgd has no setting 'luck'"),
        ({"images": images * 3}, "every value should lie in"),
        ({"images": images[0]}, "should have 4 dimensions"),
        ({"labels": labels[:3]}, r"labels of shape \(3,\) should be \(50,\)"),
        ({"labels": labels.float()}, "labels of type torch.float32 should be an int64 tensor"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            start(**changes)
    assert told == []


def test_quick_is_less_than_thorough() -> None:
    thorough = AuditSettings()
    for name in ("runs", "batch", "queries", "directions", "draws"):
        assert getattr(QUICK, name) < getattr(thorough, name)
    assert threat(thorough.probe, BALL).level == "adaptive"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded(Attack):
    """Notes what it is given, and gives it back."""

    ball: Ball

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", [])

    def run(self, model, images: Tensor, labels: Tensor) -> Tensor:
        self.seen.append((len(images), model(images)))
        return images


def probing(images: Tensor, labels: Tensor, model: nn.Module | None = None, **changes) -> Probes:
    return Probes(
        classifier=model or chequered(), defense=defense(), images=images, labels=labels,
        settings=dataclasses.replace(CHEAP, **changes),
    )  # fmt: skip


def probes(**changes) -> Probes:
    return probing(*pictures(), **changes)


def test_a_threat_is_run_once_in_chunks_and_another_one_anew() -> None:
    recorded = Recorded(ball=BALL)
    mine = Threat(name="recorded", level="ste", attack=recorded)
    measuring = probes(batch=12)
    first = measuring.draws(mine)
    again = measuring.draws(mine)
    assert all(torch.equal(a.predictions, b.predictions) for a, b in zip(first, again, strict=True))
    assert torch.equal(measuring.left(mine).predictions, first[1].predictions)
    assert [count for count, _ in recorded.seen] == [12, 12, 12, 12, 2]
    other = Threat(name="recorded", level="ste", attack=Recorded(ball=Linf(0.5)))
    measuring.draws(other)
    assert len(other.attack.seen) == 5


def test_every_chunk_is_attacked_with_draws_of_its_own() -> None:
    recorded = Recorded(ball=BALL)
    same = (each[:1].repeat_interleave(10, 0) for each in pictures())
    measuring = probing(*same, batch=2)
    measuring.draws(Threat(name="recorded", level="ste", attack=recorded))
    logits = torch.cat([logits for _, logits in recorded.seen])
    assert len(torch.unique(logits, dim=0)) == 10


def test_selection_report_and_natural_draws_are_independent() -> None:
    """Of a classifier that tells draws apart: its answer is the last bits of the quantized image."""

    class Parity(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            bits = (images.double().sum((1, 2, 3)) * 2**18).long() % 2
            return torch.nn.functional.one_hot(bits, 2).float()

    images, labels = pictures()
    images, labels = images.repeat(8, 1, 1, 1), labels.repeat(8)
    measuring = probing(images, labels, Parity(), runs=20)
    mine = Threat(name="recorded", level="ste", attack=Recorded(ball=BALL))
    selection, report = measuring.draws(mine)
    natural = measuring.natural()
    assert torch.equal(measuring.natural().predictions, natural.predictions), "repeatable"
    count = natural.predictions.numel()
    for one, other in ((selection, report), (selection, natural), (report, natural)):
        same = float((one.predictions == other.predictions).double().mean())
        assert abs(same - 0.5) < 4 * 0.5 / count**0.5


def test_fresh_defenses_differ_by_purpose_and_by_seed() -> None:
    measuring = probes()
    seeds = {measuring.fresh(purpose).seed for purpose in ("natural", "R9", "R10")}
    assert len(seeds) == 3
    assert probes().fresh("R9").seed == measuring.fresh("R9").seed
    assert probes(seed=1).fresh("R9").seed not in seeds
    assert measuring.fresh("R9").settings() == defense().settings()

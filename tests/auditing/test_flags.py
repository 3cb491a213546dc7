"""From figures to outcomes: every flag at its threshold and on either side of it."""

import json
import math
from pathlib import Path

import pytest
import torch

from vqshield.auditing import (
    FAIL,
    NOT_RUN,
    PASS,
    TITLES,
    Accuracy,
    Agreement,
    Audit,
    AuditSettings,
    Estimate,
    Flag,
    flags,
    read_audit,
)
from vqshield.draws import Draws
from vqshield.errors import FileFormatError
from vqshield.plain import from_plain, to_plain

TINY = 1e-9
AGREEMENT = Agreement(0.9, 0.8, 0.95, images=24, directions=4, draws=32, step=0.03)


def exact(mean: float) -> Accuracy:
    """Without any uncertainty, so that thresholds are sharp."""
    return Accuracy(mean, 0.0)


def test_an_accuracy_is_the_draws_mean_with_the_error_over_images() -> None:
    draws = Draws(torch.tensor([[0, 1, 0, 0], [0, 1, 1, 0]]), torch.zeros(4, dtype=torch.int64))
    found = Accuracy.of(draws)
    shares = torch.tensor([1.0, 0.0, 0.5, 1.0])
    assert found.mean == pytest.approx(float(shares.mean()))
    assert found.error == pytest.approx(float(shares.std()) / 2)
    assert str(Accuracy(0.1234, 0.0456)) == "12.3 ± 4.6 %"


@pytest.mark.parametrize(
    ("gap", "beyond"), [(2 - 1e-6, False), (2 + 1e-6, True), (0.0, False), (-5.0, False)]
)
def test_beyond_means_two_standard_errors_of_the_difference(gap: float, beyond: bool) -> None:
    mine, other = Accuracy(0.5 + gap * 0.05, 0.03), Accuracy(0.5, 0.04)  # hypot(0.03, 0.04) = 0.05
    flag = flags.below_natural(robust=mine, natural=other)
    assert (flag.outcome == FAIL) is beyond


@pytest.mark.parametrize(("left", "outcome"), [(0.0, PASS), (0.01, PASS), (0.01 + TINY, FAIL), (1.0, FAIL)])
def test_r1_an_unbounded_attack_leaves_at_most_one_percent(left: float, outcome: str) -> None:
    flag = flags.unbounded(Accuracy(left, 0.3), 0.5)  # no leniency for uncertainty
    assert (flag.name, flag.outcome) == ("R1", outcome)
    assert flag.figures == {"left at eps=0.5": Estimate(left, 0.3), "limit": 0.01}


@pytest.mark.parametrize(
    ("curve", "outcome"),
    [
        ([0.9, 0.5, 0.1], PASS),
        ([0.5, 0.5, 0.5], PASS),
        ([0.9, 0.1, 0.1 + TINY], FAIL),
        ([0.1, 0.1 + TINY, 0.1], FAIL),
        ([0.9], PASS),
    ],
)
@pytest.mark.parametrize(("name", "what"), [("R2", "steps"), ("R3", "eps")])
def test_r2_and_r3_more_effort_never_raises_accuracy(name: str, what: str, curve, outcome: str) -> None:
    flag = flags.monotone(name, what, [(2.0**i, exact(value)) for i, value in enumerate(curve)])
    assert (flag.name, flag.outcome) == (name, outcome)
    assert flag.figures == {f"{what} {2**i}": Estimate(value, 0.0) for i, value in enumerate(curve)}


def test_r2_allows_two_standard_errors_and_names_the_rise() -> None:
    error = 0.02
    allowed = 2 * math.hypot(error, error)
    for rise, outcome in ((allowed - TINY, PASS), (allowed + TINY, FAIL)):
        curve = [(5, Accuracy(0.3, error)), (10, Accuracy(0.3 + rise, error)), (20, Accuracy(0.2, error))]
        flag = flags.monotone("R2", "steps", curve)
        assert flag.outcome == outcome
        assert ("from steps 5 to 10" in flag.meaning) is (outcome == FAIL)


def test_r2_sees_a_slow_rise_over_several_points() -> None:
    """No step of it is beyond two standard errors, the whole is."""
    error = 0.02
    curve = [(n, Accuracy(0.3 + 0.04 * n, error)) for n in range(3)]
    for two in (curve[:2], curve[1:]):
        assert flags.monotone("R2", "steps", two).outcome == PASS
    flag = flags.monotone("R2", "steps", curve)
    assert flag.outcome == FAIL
    assert "from steps 0 to 2" in flag.meaning


@pytest.mark.parametrize(
    ("other", "outcome"), [(0.3, PASS), (0.298 + TINY, PASS), (0.298 - TINY, FAIL), (0.9, PASS)]
)
def test_r4_blind_attacks_may_be_better_by_two_thousandths(other: float, outcome: str) -> None:
    flag = flags.without_gradients(exact(0.3), {"square": exact(other), "transfer": exact(0.8)})
    assert (flag.name, flag.outcome) == ("R4", outcome)
    assert ("square beats" in flag.meaning) is (outcome == FAIL)
    assert flag.figures == {
        "with gradients": Estimate(0.3, 0.0),
        "square": Estimate(other, 0.0),
        "transfer": Estimate(0.8, 0.0),
    }


def test_r4_fails_where_no_attack_uses_gradients() -> None:
    flag = flags.without_gradients(None, {"square": exact(0.9)})
    assert (flag.name, flag.outcome) == ("R4", FAIL)
    assert "no attack given uses gradients of the defense" in flag.meaning
    assert flag.figures == {"square": Estimate(0.9, 0.0)}


def test_r4_names_the_best_of_the_blind() -> None:
    blind = {"square": exact(0.5), "transfer": exact(0.1)}
    assert "transfer beats" in flags.without_gradients(exact(0.8), blind).meaning


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        (lambda higher, lower: flags.below_natural(robust=higher, natural=lower), "R5"),
        (lambda higher, lower: flags.noise_is_weaker(attack=higher, noise=lower), "R6"),
    ],
)
def test_r5_and_r6_compare_within_two_standard_errors(flag, name: str) -> None:
    error = 0.01
    allowed = 2 * math.hypot(error, error)
    for gap, outcome in ((-0.4, PASS), (0.0, PASS), (allowed - TINY, PASS), (allowed + TINY, FAIL)):
        found = flag(Accuracy(0.5 + gap, error), Accuracy(0.5, error))
        assert (found.name, found.outcome) == (name, outcome)
        assert len(found.figures) == 2


@pytest.mark.parametrize(
    ("doubled", "outcome"),
    [(0.31 - TINY, PASS), (0.29 + TINY, PASS), (0.31 + TINY, FAIL), (0.29 - TINY, FAIL)],
)
def test_r7_twice_the_draws_change_less_than_a_point(doubled: float, outcome: str) -> None:
    flag = flags.draws_suffice(exact(0.3), exact(doubled), 5)
    assert (flag.name, flag.outcome) == ("R7", outcome)
    assert flag.figures == {"eot 5": Estimate(0.3, 0.0), "eot 10": Estimate(doubled, 0.0)}


@pytest.mark.parametrize(
    ("reported", "ignorant", "probe", "outcome", "said"),
    [
        (0.1, 0.6, 0.1, PASS, "knowing the defense helps"),
        (0.1, 0.6, 0.4, PASS, "knowing the defense helps"),
        (0.6, 0.6, 0.1, FAIL, "flatters the defense"),
        (0.2, 0.1, 0.2, FAIL, "does worse than one that ignores it"),
        (0.1 + TINY, 0.1, 0.3, FAIL, "does worse than one that ignores it"),
        (0.1, 0.1, 0.1, PASS, "knowing the defense helps"),
    ],
)
def test_r8_knowing_the_defense_helps(reported, ignorant, probe, outcome: str, said: str) -> None:
    flag = flags.knowing_helps(exact(reported), exact(ignorant), exact(probe), knows=True)
    assert (flag.name, flag.outcome) == ("R8", outcome)
    assert said in flag.meaning
    assert list(flag.figures.values()) == [Estimate(each, 0.0) for each in (reported, ignorant, probe)]


def test_r8_says_why_a_figure_flatters() -> None:
    for knows, why in ((True, "too weak"), (False, "ignore the defense")):
        flag = flags.knowing_helps(exact(0.66), exact(0.66), exact(0.05), knows=knows)
        assert why in flag.meaning
        assert "leaves 5.0 ± 0.0 %, not 66.0 ± 0.0 %" in flag.meaning


def test_r8_allows_two_standard_errors() -> None:
    error = 0.03
    allowed = 2 * math.hypot(error, error)
    for gap, outcome in ((allowed - TINY, PASS), (allowed + TINY, FAIL)):
        mine, other = Accuracy(0.3 + gap, error), Accuracy(0.3, error)
        assert flags.knowing_helps(mine, exact(0.9), other, knows=True).outcome == outcome
        assert flags.knowing_helps(mine, other, exact(0.9), knows=True).outcome == outcome


@pytest.mark.parametrize(
    ("found", "valid", "outcome"),
    [(20, 20, PASS), (19, 20, PASS), (18, 20, FAIL), (0, 20, FAIL), (1, 1, PASS), (0, 0, NOT_RUN)],
)
def test_r9_finds_ninety_five_of_a_hundred(found: int, valid: int, outcome: str) -> None:
    flag = flags.planted(found, valid, total=24, blindly=2)
    assert (flag.name, flag.outcome) == ("R9", outcome)
    if outcome != NOT_RUN:
        assert flag.figures == {
            "planted": 24,
            "confirmed": valid,
            "found": found,
            "found blindly": 2,
            "share": found / valid,
        }


@pytest.mark.parametrize(
    ("correlation", "outcome"), [(0.8, PASS), (0.8 - TINY, FAIL), (1.0, PASS), (-1.0, FAIL)]
)
def test_r10_gradients_correlate_at_least_as_asked(correlation: float, outcome: str) -> None:
    flag = flags.gradients_agree(correlation, {"ste": AGREEMENT})
    assert (flag.name, flag.outcome) == ("R10", outcome)
    assert flag.figures == {"correlation": correlation, "ste": AGREEMENT}


def test_flags_come_in_order_and_those_missing_were_not_run() -> None:
    given_ones = [flags.not_run("R10", "why not"), flags.flag("R2", PASS, "good")]
    found = flags.in_order(given_ones)
    assert [flag.name for flag in found] == [f"R{n}" for n in range(1, 11)] == list(TITLES)
    assert found[1] is given_ones[1]
    assert found[9].meaning == "why not"
    assert {flag.outcome for flag in found if flag not in given_ones} == {NOT_RUN}


def test_a_flag_says_what_ought_to_hold() -> None:
    for name, title in TITLES.items():
        assert flags.not_run(name, "why").title == title


def audit_of(*found: Flag, passed: bool) -> Audit:
    return Audit(
        passed=passed, n=24, natural=exact(0.9), reported=Accuracy(0.1, 0.02), attacks={"pgd": exact(0.1)},
        flags=found,
    )  # fmt: skip


@pytest.mark.parametrize("outcome", [FAIL, NOT_RUN])
def test_an_audit_that_says_it_passed_must_have(outcome: str) -> None:
    good = [flags.flag(name, PASS, "so") for name in TITLES]
    assert audit_of(*good, passed=True).passed
    with pytest.raises(FileFormatError, match="passed is False"):
        audit_of(*good, passed=False)
    for place, name in enumerate(TITLES):
        mixed = [*good[:place], flags.flag(name, outcome, "so"), *good[place + 1 :]]
        assert not audit_of(*mixed, passed=False).passed
        with pytest.raises(FileFormatError, match="passed is True"):
            audit_of(*mixed, passed=True)


def test_an_audit_is_plain_enough_for_json() -> None:
    found = [
        flags.unbounded(Accuracy(0.0, 0.0), 0.5),
        flags.monotone("R2", "steps", [(5, Accuracy(0.5, 0.1)), (10, Accuracy(0.4, 0.1))]),
        flags.without_gradients(None, {"square": exact(0.9)}),
        flags.planted(3, 4, 5, 1),
        flags.gradients_agree(0.9, {"soft": AGREEMENT}),
    ]
    audit = audit_of(*flags.in_order(found), passed=False)
    plain = json.loads(json.dumps(to_plain(audit), allow_nan=False))
    assert from_plain(Audit, plain, "here") == audit
    assert list(plain) == ["passed", "n", "natural", "reported", "attacks", "flags"]
    assert (plain["n"], plain["natural"]) == (24, {"mean": 0.9, "error": 0.0})
    assert plain["reported"] == {"mean": 0.1, "error": 0.02}
    assert plain["attacks"] == {"pgd": {"mean": 0.1, "error": 0.0}}
    assert [flag["name"] for flag in plain["flags"]] == list(TITLES)
    assert plain["flags"][0] == {
        "name": "R1",
        "title": TITLES["R1"],
        "outcome": PASS,
        "meaning": found[0].meaning,
        "figures": {"left at eps=0.5": {"mean": 0.0, "standard_error": 0.0}, "limit": 0.01},
    }


RECORDED = sorted((Path(__file__).parents[2] / "results").glob("**/audit*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=str)
def test_recorded_audits_are_read_and_written_back_to_the_byte(path: Path) -> None:
    report = read_audit(path)
    assert report.passed
    assert report.audit.n >= 100
    assert (json.dumps(report.plain(), indent=1) + "\n").encode() == path.read_bytes()


def test_there_are_recorded_audits() -> None:
    assert len(RECORDED) >= 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eps": "much"}, r"eps is 'much'; it should be a finite number"),
        ({"luck": 1}, "unknown key 'luck'"),
        ({"passed": False}, "passed is False, but not all flags say the same"),
        ({"settings": {"runs": 0}}, "runs=0 should be >= 1"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, change: dict[str, object], message: str) -> None:
    held = json.loads(RECORDED[0].read_text())
    (tmp_path / "audit.json").write_text(json.dumps({**held, **change}))
    with pytest.raises(ValueError, match=message):
        read_audit(tmp_path / "audit.json")


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"audit\.json"):
        read_audit(tmp_path / "audit.json")


@pytest.mark.parametrize("name", ["runs", "batch", "queries", "directions", "draws"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_bad_settings_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name}={value} should be"):
        AuditSettings(**{name: value})


@pytest.mark.parametrize("seed", [-1, 2**63, 0.5])
def test_a_bad_seed_is_named(seed: object) -> None:
    with pytest.raises(ValueError, match=f"seed={seed}"):
        AuditSettings(seed=seed)  # type: ignore[arg-type]

"""From figures to outcomes: every flag at its limit and on either side of it."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vqshield.auditing import (
    FAIL,
    NOT_RUN,
    PASS,
    POWER,
    SUSPICIOUS,
    TITLES,
    UNDECIDED,
    Agreement,
    Audit,
    AuditReport,
    AuditSettings,
    Flag,
    Uncertain,
    flags,
    read_audit,
)
from vqshield.auditing.answers import Answers
from vqshield.auditing.planting import Planted
from vqshield.core.errors import FileFormatError
from vqshield.models.draws import Draws

AGREEMENT = Agreement(0.9, 0.8, 0.95, 24, 4, 32, 0.03, gradient_reliability=0.9, corrected=0.97, error=0.02)
SURE = Uncertain(0.95, 0.02)
COUNT = 30


def left(right: int, images: int = COUNT, runs: int = 1) -> Draws:
    """The first so many images right, the others wrong."""
    wrong = (torch.arange(images) >= right).long()
    return Draws(wrong.expand(runs, -1), torch.zeros(images, dtype=torch.int64))


def shown(draws: Draws) -> Uncertain:
    return Uncertain(draws.mean, draws.standard_error)


def test_an_accuracy_is_the_draws_mean_with_the_error_over_images() -> None:
    draws = Draws(torch.tensor([[0, 1, 0, 0], [0, 1, 1, 0]]), torch.zeros(4, dtype=torch.int64))
    found = Uncertain.of(draws)
    shares = torch.tensor([1.0, 0.0, 0.5, 1.0])
    assert found.mean == pytest.approx(float(shares.mean()))
    assert found.standard_error == pytest.approx(float(shares.std()) / 2)
    assert str(Uncertain(0.1234, 0.0456)) == "12.3 ± 4.6 %"


COMPARISONS = [
    ("R2", lambda higher, lower: flags.monotone("R2", "steps", [(5, lower), (10, higher)])),
    ("R3", lambda higher, lower: flags.monotone("R3", "eps", [(0.1, lower), (0.2, higher)])),
    ("R5", lambda higher, lower: flags.below_natural(robust=higher, natural=lower)),
    ("R6", lambda higher, lower: flags.noise_is_weaker(attack=higher, noise=lower)),
    ("R8", lambda higher, lower: flags.knowing_helps(higher, left(COUNT), lower, knows=True)),
    ("R8", lambda higher, lower: flags.knowing_helps(higher, lower, left(COUNT), knows=True)),
]


@pytest.mark.parametrize(("name", "compare"), COMPARISONS)
def test_ten_images_that_all_change_the_same_way_are_more_than_luck(name: str, compare) -> None:
    """Of so many coins all fall alike once in a thousand times; of nine, which three errors are, twice."""
    gaps = ((-9, PASS), (0, PASS), (4, PASS), (5, UNDECIDED), (9, UNDECIDED), (10, FAIL), (20, FAIL))
    for gap, outcome in gaps:
        found = compare(left(10 + gap), left(10))
        assert (found.name, found.outcome) == (name, outcome), gap


@pytest.mark.parametrize(("name", "compare"), COMPARISONS)
def test_the_error_is_that_of_the_difference_on_the_same_images(name: str, compare) -> None:
    """The same two means: once the same images are right in both, once they change in both directions."""
    lower = left(12)
    nested, crossed = left(23), Draws(1 - left(30 - 23).predictions, lower.labels)
    assert nested.mean == crossed.mean
    assert compare(nested, lower).outcome == FAIL
    assert compare(crossed, lower).outcome == UNDECIDED, "12 are lost and 23 won: much luck in that"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40))
def test_no_two_are_beyond_each_other(pairs: list[tuple[int, int]]) -> None:
    one, other = (
        Draws((torch.arange(5)[:, None] >= torch.tensor(rights)).long(), torch.zeros(len(pairs)).long())
        for rights in zip(*pairs, strict=True)
    )
    found = [flags.below_natural(*both).outcome for both in ((one, other), (other, one), (one, one))]
    assert found.count(FAIL) <= 1
    assert found[2] == PASS


@pytest.mark.parametrize(
    ("right", "images", "outcome"),
    [
        (0, 20, UNDECIDED), (2, 20, UNDECIDED), (3, 20, FAIL), (20, 20, FAIL), (0, 24, PASS),
        (3, 24, UNDECIDED), (1, 50, PASS), (2, 50, UNDECIDED), (4, 50, UNDECIDED), (5, 50, FAIL),
        (5, 200, PASS), (6, 200, UNDECIDED), (7, 200, UNDECIDED), (8, 200, FAIL), (1, 1, UNDECIDED),
        (2, 2, FAIL),
    ],
)  # fmt: skip
def test_r1_an_unbounded_attack_leaves_no_more_than_one_percent_explains(right, images, outcome) -> None:
    draws = left(right, images)
    flag = flags.unbounded(draws, 0.5)
    assert (flag.name, flag.outcome) == ("R1", outcome)
    assert ("do not rule out an attack that 10 %" in flag.meaning) is (outcome == UNDECIDED)
    assert flag.figures == {"left at eps=0.5": shown(draws), "limit": 0.01}


@pytest.mark.parametrize(("name", "what"), [("R2", "steps"), ("R3", "eps")])
def test_r2_and_r3_name_the_rise(name: str, what: str) -> None:
    curve = [(1.0, left(5)), (2.0, left(12)), (4.0, left(16))]
    for two, outcome in ((curve[:2], UNDECIDED), (curve[1:], PASS)):
        assert flags.monotone(name, what, two).outcome == outcome
    flag = flags.monotone(name, what, curve)
    assert flag.outcome == FAIL, "no step of it is beyond luck, the whole is"
    assert f"from {what} 1 to 4" in flag.meaning
    assert flag.figures == {f"{what} {value:g}": shown(draws) for value, draws in curve}
    assert flags.monotone(name, what, curve[::-1]).outcome == PASS
    assert flags.monotone(name, what, curve[:1]).outcome == PASS


def test_r4_blind_attacks_may_be_better_by_luck_only() -> None:
    for right, outcome in ((15, PASS), (6, UNDECIDED), (4, FAIL), (0, FAIL)):
        flag = flags.without_gradients(left(15), {"square": left(right), "transfer": left(20)})
        assert (flag.name, flag.outcome) == ("R4", outcome), right
        assert ("square beats" in flag.meaning) is (outcome == FAIL)
        assert list(flag.figures) == ["with gradients", "square", "transfer"]


def test_r4_names_the_best_of_the_blind() -> None:
    blind = {"square": left(10), "transfer": left(2)}
    assert "transfer beats" in flags.without_gradients(left(25), blind).meaning


def test_r4_fails_where_no_attack_uses_gradients() -> None:
    flag = flags.without_gradients(None, {"square": left(27)})
    assert (flag.name, flag.outcome) == ("R4", FAIL)
    assert "no attack given uses gradients of the defense" in flag.meaning
    assert flag.figures == {"square": shown(left(27))}


@pytest.mark.parametrize(
    ("doubled", "outcome"), [(15, PASS), (16, PASS), (24, UNDECIDED), (6, UNDECIDED), (27, FAIL), (3, FAIL)]
)
def test_r7_twice_the_draws_change_no_more_than_a_point_and_luck(doubled: int, outcome: str) -> None:
    flag = flags.draws_suffice(left(15), left(doubled), 5)
    assert (flag.name, flag.outcome) == ("R7", outcome)
    assert flag.figures == {"eot 5": shown(left(15)), "eot 10": shown(left(doubled))}


def test_r7_sees_a_small_change_of_many_images() -> None:
    usual, doubled = left(100, 2000), left(160, 2000)
    assert flags.draws_suffice(usual, doubled, 5).outcome == FAIL, "three points of 2000 images"
    assert flags.draws_suffice(usual, left(115, 2000), 5).outcome == PASS, "less than one"


def test_r8_says_why_a_figure_flatters() -> None:
    for knows, why in ((True, "too weak"), (False, "ignore the defense")):
        flag = flags.knowing_helps(left(20), left(20), left(3), knows=knows)
        assert why in flag.meaning
        assert f"leaves {shown(left(3))}, not {shown(left(20))}" in flag.meaning
    assert (
        "does worse than one that ignores" in flags.knowing_helps(left(20), left(1), left(20), True).meaning
    )


@pytest.mark.parametrize(
    ("found", "valid", "outcome"),
    [
        (24, 24, PASS), (20, 24, PASS), (19, 24, UNDECIDED), (18, 24, FAIL), (0, 20, FAIL), (0, 3, FAIL),
        (10, 10, PASS), (7, 7, PASS), (6, 6, UNDECIDED), (1, 1, UNDECIDED), (0, 0, NOT_RUN),
    ],
)  # fmt: skip
def test_r9_finds_ninety_five_of_a_hundred_or_has_bad_luck(found: int, valid: int, outcome: str) -> None:
    flag = flags.planted(Planted(24, valid, found, blindly=2))
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
    ("corrected", "error", "outcome"),
    [
        (0.8, 0.0, PASS),
        (0.799, 0.0, FAIL),
        (0.7, 0.051, PASS),
        (0.7, 0.049, FAIL),
        (-1.0, 0.1, FAIL),
        (0.38, 0.217, UNDECIDED),
        (0.6, 0.2, PASS),
        (0.6, 0.22, UNDECIDED),
    ],
)
def test_r10_fails_beyond_its_errors_at_either_place(corrected: float, error: float, outcome: str) -> None:
    poor = dataclasses.replace(AGREEMENT, corrected=corrected, error=error)
    for places in ({"soft": poor, "soft, attacked": AGREEMENT}, {"soft": AGREEMENT, "soft, attacked": poor}):
        flag = flags.gradients_agree(places, Uncertain(0.78, 0.02), {"ste": AGREEMENT})
        assert (flag.name, flag.outcome) == ("R10", outcome)
        assert list(flag.figures) == ["correlation", "signs that agree", "soft", "soft, attacked", "ste"]
        assert flag.figures["correlation"] == min(corrected, 0.97)


@pytest.mark.parametrize(
    ("share", "error", "outcome"),
    [(0.7, 0.03, PASS), (0.5, 0.1, FAIL), (0.7, 0.02, FAIL), (0.65, 0.06, UNDECIDED)],
)
def test_r10_looks_at_signs_as_well(share: float, error: float, outcome: str) -> None:
    flag = flags.gradients_agree({"soft": AGREEMENT}, Uncertain(share, error), {})
    assert flag.outcome == outcome
    assert ("wrong for some images" in flag.meaning) is (outcome == FAIL)


@pytest.mark.parametrize("name", ["reliability", "gradient_reliability"])
def test_r10_is_undecided_where_all_is_sampling_noise(name: str) -> None:
    noisy = dataclasses.replace(AGREEMENT, **{name: 0.1}, corrected=0.2)
    flag = flags.gradients_agree({"soft": noisy}, SURE, {})
    assert flag.outcome == UNDECIDED
    assert "take more draws" in flag.meaning


def test_r10_fails_without_any_gradient() -> None:
    nothing = Agreement(0.0, 0.0, 0.0, 24, 4, 32, 0.03, gradient_reliability=0.0, corrected=0.0, error=0.0)
    assert flags.gradients_agree({"soft": nothing}, Uncertain(0.0, 1.0), {}).outcome == FAIL, "all zeros"
    assert flags.no_gradient("it is detached").outcome == FAIL


def test_r11_is_suspicious_where_moved_images_do_much_worse() -> None:
    good = (left(28), left(24))
    assert flags.as_good_elsewhere("mirrored", [good]).outcome == PASS
    assert flags.as_good_elsewhere("mirrored", [good, (left(2), left(3))]).outcome == PASS
    for natural, attacked, what in (
        ((left(30), left(10)), None, "natural"), (good, (left(30), left(0)), "attacked"),
    ):  # fmt: skip
        flag = flags.as_good_elsewhere("mirrored", [natural, attacked] if attacked else [natural])
        assert (flag.name, flag.outcome) == ("R11", SUSPICIOUS)
        assert f"{what} accuracy falls when images are mirrored" in flag.meaning
        assert shown((attacked or natural)[1]) == flag.figures[f"{what}, mirrored"]


@pytest.mark.parametrize(
    ("elsewhere", "outcome"), [(38, PASS), (30, UNDECIDED), (20, SUSPICIOUS), (0, SUSPICIOUS)]
)
def test_r11_compares_with_held_out_images_as_another_set(elsewhere: int, outcome: str) -> None:
    good, worse = (left(28), left(27)), (left(28), left(elsewhere, 40))
    for pairs in ([worse], [good, worse]):
        flag = flags.as_good_elsewhere("mirrored", [good, good], pairs)
        assert (flag.name, flag.outcome) == ("R11", outcome)
        assert ("falls on held-out images" in flag.meaning) is (outcome == SUSPICIOUS)
        assert "natural, held out" in flag.figures


def test_r10_counts_two_errors_where_signs_agree_with_it_and_three_elsewhere() -> None:
    """Of one recorded honest audit: 0.625 ± 0.086, two errors below the limit, 83 % of the signs right."""
    doubtful = dataclasses.replace(AGREEMENT, corrected=0.625, error=0.086)
    assert flags.gradients_agree({"soft": doubtful}, Uncertain(0.83, 0.05), {}).outcome == UNDECIDED
    assert flags.gradients_agree({"soft": doubtful}, Uncertain(0.78, 0.05), {}).outcome == FAIL
    clear = dataclasses.replace(AGREEMENT, corrected=0.5, error=0.086)
    assert flags.gradients_agree({"soft": clear}, Uncertain(0.83, 0.05), {}).outcome == FAIL


def test_r10_in_small_steps_is_asked_for_where_the_direction_is_better_than_chance() -> None:
    assert flags.leads_somewhere(Uncertain(0.7, 0.05))
    assert not flags.leads_somewhere(Uncertain(0.55, 0.05))
    coarse = flags.flag("R10", FAIL, "bad", {"correlation": 0.4})
    found = flags.agree_in_small(coarse, flags.flag("R10", PASS, "good", {"correlation": 0.99}), 0.002)
    assert (found.outcome, found.figures) == (
        PASS, {"correlation": 0.4, "correlation, steps of 0.002": 0.99},
    )  # fmt: skip


def test_r12_is_suspicious_of_traces_and_of_dropout_and_fails_before_that() -> None:
    same = {"when asked again": 0.0}
    for more, word in (
        ({"traces": ("classifier's asked",)}, "asked"),
        ({"traces": ("classifier's {part}.asked",)}, "the classifier's {part}.asked:"),
        ({"dropout": ("dropout of 0.5",)}, "on"),
    ):
        flag = flags.same_answers(Answers(same, **more))
        assert (flag.name, flag.outcome) == ("R12", SUSPICIOUS)
        assert word in flag.meaning
        assert next(iter(more.values()))[0] in flag.figures.values()
        assert flags.same_answers(Answers({"when asked again": 0.5}, **more)).outcome == FAIL


def test_r13_fails_where_dividing_the_logits_helps_the_attack() -> None:
    for flat, outcome in ((0, PASS), (2, PASS), (3, UNDECIDED), (4, SUSPICIOUS)):
        assert flags.not_flat(flat, 24, 5.0, None).outcome == outcome
    for pair, outcome in (
        (None, SUSPICIOUS),
        ((left(20), left(18)), SUSPICIOUS),
        ((left(25), left(2)), FAIL),
    ):
        flag = flags.not_flat(24, 24, 4e4, pair)
        assert (flag.name, flag.outcome) == ("R13", outcome)
        assert flag.figures["images without a slope"] == "24 of 24"
        assert len(flag.figures) == (2 if pair is None else 4)


def test_r14_has_a_limit() -> None:
    found = [flags.continuous(jump) for jump in (0.0, 0.1, 0.11, 1.0)]
    assert [(flag.name, flag.outcome) for flag in found] == [
        ("R14", PASS), ("R14", PASS), ("R14", SUSPICIOUS), ("R14", SUSPICIOUS),
    ]  # fmt: skip


def test_r12_compares_probabilities_of_a_model_that_is_not_random() -> None:
    for value, outcome in ((0.0, PASS), (0.01, PASS), (0.011, FAIL), (float("nan"), FAIL)):
        flag = flags.same_answers(Answers({"when asked again": 0.0, "when asked alone": value}))
        assert (flag.name, flag.outcome) == ("R12", outcome)
        assert ("differently when asked alone" in flag.meaning) is (outcome == FAIL)


def test_r12_compares_accuracies_of_a_model_that_is_random() -> None:
    for other, outcome in ((15, PASS), (18, PASS), (20, UNDECIDED), (28, FAIL), (3, FAIL)):
        flag = flags.same_answers(
            Answers({"when asked again": 0.7}, True, {"when asked alone": (left(15), left(other))})
        )
        assert flag.outcome == outcome


@pytest.mark.parametrize("name", [name for name in TITLES if name != "R9"])
def test_on_fewer_images_than_it_needs_a_check_may_fail_and_never_passes(name: str) -> None:
    least, misses = POWER[name]
    place = list(TITLES).index(name)
    for images, outcome in ((least, PASS), (least - 1, UNDECIDED), (2, UNDECIDED)):
        flag = flags.in_order([flags.flag(name, PASS, "good")], images)[place]
        assert flag.outcome == outcome
        if outcome == UNDECIDED:
            assert flag.meaning == f"these images do not rule out {misses}; it takes {least}, not {images}"
    assert flags.in_order([flags.flag(name, FAIL, "bad")], 2)[place].meaning == "bad", (
        "what is found is found"
    )


def binomial(count: int, total: int, chance: float) -> float:
    return math.comb(total, count) * chance**count * (1 - chance) ** (total - count)


COUNTS = [
    ("R1", 0.01, 0.1, range(38, 101), lambda count, images: flags.unbounded(left(count, images), 0.5)),
    (
        "R9",
        0.05,
        0.5,
        range(7, 25),
        lambda count, images: flags.planted(Planted(images, images, images - count, 0)),
    ),
    (
        "R13",
        0.01,
        0.25,
        range(15, 25),
        lambda count, images: flags.not_flat(count, images, 1.0, None),
    ),
]


@pytest.mark.parametrize(("name", "good", "bad", "images", "judge"), COUNTS, ids=[row[0] for row in COUNTS])
def test_nine_of_ten_good_counts_pass_and_one_of_ten_bad_ones(name, good, bad, images, judge) -> None:
    """Binomial sums over the counts that pass, from the smallest number of images on, and not below it."""
    chances = {}
    for number in range(images.start - 1, images.stop):
        passing = [count for count in range(number + 1) if judge(count, number).outcome == PASS]
        chances[number] = [
            sum(binomial(count, number, chance) for count in passing) for chance in (good, bad)
        ]
    below, _ = chances.pop(POWER[name][0] - 1)
    assert below < 0.9
    assert min(chance for chance, _ in chances.values()) >= 0.9
    assert max(chance for _, chance in chances.values()) <= 0.1


def changed(up: int, down: int, images: int) -> tuple[Draws, Draws]:
    """Some images that the second attack wins alone, some that the first does; neither wins the others."""
    place = torch.arange(images)
    lost = [(place < down), (place >= images - up)]
    return tuple(Draws(each[None].long(), torch.zeros(images, dtype=torch.int64)) for each in lost)


ONE_PAIR = [
    ("R5", lambda one, other: flags.below_natural(one, other)),
    ("R6", lambda one, other: flags.noise_is_weaker(noise=other, attack=one)),
]


@pytest.mark.parametrize(("name", "compare"), ONE_PAIR, ids=[row[0] for row in ONE_PAIR])
def test_nine_of_ten_equal_attacks_pass_a_comparison(name: str, compare) -> None:
    """The trinomial sum: either attack wins an image alone with chance 1/8, as Luck's of false alarms do."""

    def passing(images: int) -> float:
        chance = 0.0
        for differ in range(images + 1):
            ups = [
                up for up in range(differ + 1)
                if compare(*changed(up, differ - up, images)).outcome == PASS
            ]  # fmt: skip
            share = sum(math.comb(differ, up) for up in ups) / 2**differ
            chance += binomial(differ, images, 1 / 4) * share
        return chance

    least = POWER[name][0]
    assert passing(least - 1) < 0.9 <= min(passing(least), passing(least + 1), passing(50))


ALL_PAIRS = [
    *ONE_PAIR,
    ("R2", lambda one, other: flags.monotone("R2", "steps", [(5, other), (10, one)])),
    ("R3", lambda one, other: flags.monotone("R3", "eps", [(0.1, other), (0.2, one)])),
    ("R4", lambda one, other: flags.without_gradients(one, {"square": other})),
    ("R7", lambda one, other: flags.draws_suffice(one, other, 5)),
    ("R8", lambda one, other: flags.knowing_helps(one, one, other, knows=True)),
    ("R11", lambda one, other: flags.as_good_elsewhere("mirrored", [(one, other)])),
]


@pytest.mark.parametrize(("name", "compare"), ALL_PAIRS, ids=[row[0] for row in ALL_PAIRS])
@pytest.mark.parametrize("images", [None, 50, 75, 100])
def test_a_difference_that_a_comparison_should_see_passes_once_in_ten(images, name: str, compare) -> None:
    """Binomial: each image is won by the second attack alone with that chance."""
    count = images or POWER[name][0]
    gap = {"R7": 0.26, "R11": 0.30}.get(name, 0.25)
    passing = [up for up in range(count + 1) if compare(*changed(up, 0, count)).outcome == PASS]
    assert 0 in passing
    assert sum(binomial(up, count, gap) for up in passing) <= 0.1


def test_an_audit_needs_what_its_most_demanding_check_needs() -> None:
    assert list(POWER) == list(TITLES)
    documented = (RESULTS.parents[1] / "docs" / "adaptive-attacks.md").read_text()
    for name, (least, detected) in POWER.items():
        assert re.search(rf"^\| {name} \| {least} \| .+ \| {detected} \|$", documented, re.MULTILINE)
    assert max(least for least, _ in POWER.values()) == flags.LEAST_IMAGES == 50


def test_flags_come_in_order_and_those_missing_were_not_run() -> None:
    given_ones = [flags.not_run("R10", "why not"), flags.flag("R2", PASS, "good")]
    found = flags.in_order(given_ones, 50)
    assert [flag.name for flag in found] == [f"R{n}" for n in range(1, 15)] == list(TITLES)
    assert found[1] is given_ones[1]
    assert found[9].meaning == "why not"
    assert {flag.outcome for flag in found if flag not in given_ones} == {NOT_RUN}


def test_every_check_says_what_to_do_next() -> None:
    for check in flags.CHECKS.values():
        assert check.next.endswith(".")
        assert check.next not in (check.good, check.bad)


def test_a_flag_says_what_ought_to_hold() -> None:
    for name, title in TITLES.items():
        assert flags.not_run(name, "why").title == title


def exact(mean: float) -> Uncertain:
    return Uncertain(mean, 0.0)


def audit_of(*found: Flag, passed: bool) -> Audit:
    return Audit(
        passed=passed, n=24, natural=exact(0.9), reported=Uncertain(0.1, 0.02), attacks={"pgd": exact(0.1)},
        flags=found,
    )  # fmt: skip


@pytest.mark.parametrize("outcome", [FAIL, NOT_RUN, SUSPICIOUS, UNDECIDED, "too few images"])
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
        flags.unbounded(left(0), 0.5),
        flags.monotone("R2", "steps", [(5, left(15)), (10, left(12))]),
        flags.without_gradients(None, {"square": left(27)}),
        flags.planted(Planted(5, 4, 3, 1)),
        flags.gradients_agree({"soft": AGREEMENT}, SURE, {}),
        flags.as_good_elsewhere("mirrored", [(left(28), left(0))]),
    ]
    audit = audit_of(*flags.in_order(found, 50), passed=False)
    report = AuditReport(
        data="data", classifier="model", defense="prd", given=("pgd",), norm="linf", eps=0.1,
        settings=AuditSettings(), machine={}, seconds=1.0, **vars(audit),
    )  # fmt: skip
    plain = json.loads(json.dumps(report.plain(), allow_nan=False))
    assert AuditReport.from_plain(plain, "here") == report
    assert list(plain)[-6:] == ["passed", "n", "natural", "reported", "attacks", "flags"]
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


RESULTS = Path(__file__).parents[2] / "paper" / "results"
BOARDS = sorted(RESULTS.glob("leaderboard-*/rows/*/audit/audit.json"))
RECORDED = sorted(
    path for path in RESULTS.glob("**/audit*.json") if path.name != "audit-fakes.json" and path not in BOARDS
)


@pytest.mark.parametrize("path", RECORDED, ids=str)
def test_recorded_audits_are_read_and_written_back_to_the_byte(path: Path) -> None:
    report = read_audit(path)
    assert report.passed
    assert report.audit.n >= 100
    assert (json.dumps(report.plain(), indent=1) + "\n").encode() == path.read_bytes()


@pytest.mark.parametrize("path", BOARDS, ids=str)
def test_audits_of_a_leaderboard_are_read_and_written_back_to_the_byte(path: Path) -> None:
    """Whatever they say: a board judges everybody's defense."""
    report = read_audit(path)
    assert report.audit.n >= 50
    assert (json.dumps(report.plain(), indent=1) + "\n").encode() == path.read_bytes()


def test_there_are_recorded_audits() -> None:
    assert len(RECORDED) >= 3
    assert len(BOARDS) >= 11


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


def test_the_lowest_figure_is_that_of_any_attack_within_the_budget() -> None:
    weaker = flags.monotone("R3", "eps", [(0.1, left(0)), (0.2, left(0))])
    natural = flags.below_natural(left(3), left(0))
    assert audit_of(weaker, natural, passed=True).lowest == Uncertain(0.1, 0.02)
    probed = flags.knowing_helps(left(15), left(15), left(1), knows=True)
    assert audit_of(probed, weaker, passed=False).lowest == shown(left(1))


def test_a_poor_gradient_is_no_reason_to_doubt_that_nothing_is_left() -> None:
    figures = {"correlation": 0.3, "signs that agree": Uncertain(0.6, 0.02)}
    poor = flags.flag(
        "R10", FAIL, "its gradient (soft) is a poor guide: a better one would find more", figures
    )
    nothing, something = left(0, runs=3), left(1, runs=3)
    found = flags.nothing_more_to_find(poor, nothing)
    assert found.outcome == PASS
    assert found.meaning.startswith(f"{poor.meaning}; no image is right in any draw")
    unsure = dataclasses.replace(poor, outcome=UNDECIDED)
    assert flags.nothing_more_to_find(unsure, nothing).outcome == PASS
    assert found.figures == poor.figures
    assert flags.nothing_more_to_find(poor, something) == poor
    without = flags.no_gradient("the classifier has none")
    assert flags.nothing_more_to_find(without, nothing) == without

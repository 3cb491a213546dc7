"""Tables in terminals and logs of any width: folded, printed in pieces, and never cut."""

import re
from types import SimpleNamespace

import pytest

from terminal import assert_nothing_is_cut, printed
from vqshield.attacks import Linf
from vqshield.certification.summary import (
    BoundSummary,
    DrawsSummary,
    RadiusPoint,
    VoteSummary,
    bounds_table,
)
from vqshield.demo.page import demo_table
from vqshield.demo.study import DemoRow
from vqshield.evaluation.page import evaluation_table
from vqshield.evaluation.summary import EvaluationRow
from vqshield.reports.folding import FoldingTable
from vqshield.runs.manifests import ThreatId


def evaluation():
    rows = [
        EvaluationRow(
            defense=defense, attack=attack, level="none" if attack == "none" else "adaptive", mean=0.123,
            std=0.0456, standard_error=0.0789, vote=0.234, worst=0.0345, runs=10, n=10_000, seconds=5025.0,
        )
        for defense in ("none", "swrd:size=3,codes=25,sigma=12/255")
        for attack in ("none", "pgd:steps=20,eot=20", "autoattack:version=rand,surrogate=soft,restarts=5")
    ]  # fmt: skip
    manifest = SimpleNamespace(ball=Linf(8 / 255), attacks=("pgd",))
    return evaluation_table(
        SimpleNamespace(title="cifar10-sample, small-cifar10", rows=rows, manifest=manifest)
    ).terminal()


def certificates():
    point = RadiusPoint(
        radius=0.125, linf=0.0123, vote=0.512, vote_statement=0.423, draw=0.334, draw_statement=0.245
    )
    vote = VoteSummary(
        images=1000, draws=100_000, alpha=0.001, confidence=0.999, allowed_failures=3, curve=(point,) * 3,
        accuracy=0.756, abstained=0.067, mean_radius=0.178, sigma_eff=0.189, copies=9, right=0.7,
        largest_radius=0.3, largest_linf=0.01,
    )  # fmt: skip
    bound = BoundSummary(certified_accuracy=0.612, union=0.523, binomial=0.534, binomial_holding=900)
    draws = DrawsSummary(
        draws=1000, delta=0.005, eps=8 / 255, attack=ThreatId(name="autoattack:version=rand"), accuracy=0.7,
        bounds={"proposition1": bound, "empirical_bernstein": bound}, images=10_000,
    )  # fmt: skip
    title = "cifar10, swrd:size=3,codes=25"
    return [each.terminal() for each in (vote.table(title), bounds_table(title, (draws,)))]


def demo():
    threats = ("none", "transfer", "ignorant", "score", "adaptive")
    rows = [
        DemoRow(
            defense=defense, settings={"codes": 25}, threat=threat, attack="PGD", natural=0.812,
            robust=0.1 + place / 10, standard_error=0.0123, runs=5, n=100,
        )
        for defense in ("randdisc", "prd", "swrd")
        for place, threat in enumerate(threats)
    ]  # fmt: skip
    return demo_table(
        SimpleNamespace(title="What the shield is worth", rows=rows, epsilon=8 / 255)
    ).terminal()


TABLES = {
    "evaluation": evaluation,
    "vote": lambda: certificates()[0],
    "draws": lambda: certificates()[1],
    "demo": demo,
}


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", TABLES)
def test_nothing_is_cut(name, width):
    assert_nothing_is_cut(TABLES[name](), width)


def test_where_it_fits_it_is_one_table_with_title_and_caption_once():
    for name, make in TABLES.items():
        table = make()
        text = printed(table, 200)
        first = str(table.columns[0].header)
        assert sum("─" in line for line in text.splitlines()) == 1, name
        assert text.index(str(table.title)) < text.index(first) < text.index(str(table.caption)[:20]), name


def pieces(width):
    table = FoldingTable("name", "aaaaaaaa", "bbbbbbbb", "cccccccc", title="title", caption="caption")
    table.columns[0].overflow = "fold"
    table.add_row("a name of many words", "11111111", "22222222", "33333333", end_section=True)
    table.add_row("short", "44444444", "55555555", "66666666")
    return printed(table, width)


def test_what_does_not_fit_beside_stands_below_with_the_names_again():
    text = pieces(40)
    assert text.count("name ") == 2 + 2, "the heading, and the name of the first row, twice"
    assert text.index("22222222") < text.index("55555555") < text.index("33333333") < text.index("66666666")
    assert text.count("title") == text.count("caption") == 1
    assert text.index("title") < text.index("11111111")
    assert text.index("66666666") < text.index("caption")


def test_names_are_folded_before_values_move():
    assert pieces(60).count("short") == 1
    assert "a name of many words" not in pieces(52)
    assert pieces(52).count("short") == 1


def test_in_a_terminal_too_narrow_for_one_value_it_is_folded_and_not_cut():
    letters = "".join(re.sub(r"[^1-6]", "", line) for line in pieces(16).splitlines())
    assert sorted(letters) == sorted("".join(str(digit) * 8 for digit in range(1, 7)))

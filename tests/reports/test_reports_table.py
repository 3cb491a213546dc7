"""The demo's table in the terminal, and the pivot behind both reports."""

import io
import sys

import pytest
from rich.console import Console
from vqshield.reports.pivot import pivot

from vqshield.errors import MissingExtraError
from vqshield.reports import demo_table


def row(defense, threat, robust, **other):
    fixed = {"settings": {"codes": 25}, "attack": "PGD", "natural": 0.8, "std": 0.012, "n": 100}
    return {"defense": defense, "threat": threat, "robust": robust, **fixed, **other}


def text_of(rows, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(demo_table({"title": "A [bold]title[/bold]", "rows": rows}))
    return console.file.getvalue()


def test_one_line_per_defense_one_column_per_threat():
    text = text_of([row("prd", "none", 0.8), row("prd", "eot", 0.03), row("swrd", "ignorant", 0.66)])
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "80.0 ± 1.2" in lines["prd"]
    assert "3.0 ± 1.2" in lines["prd"]
    assert "not run" in lines["prd"]
    assert "66.0 ± 1.2" in lines["swrd"]
    assert "N = 100" in text
    assert "A [bold]title[/bold]" in text  # a title is text, not markup


def test_threats_stand_from_weak_to_strong_in_whatever_order_they_come():
    rows = [row("prd", threat, 0.1) for threat in ("adaptive", "eot", "ignorant", "ste", "none")]
    assert pivot(rows).threats == ("none", "ignorant", "ste", "eot", "adaptive")


def test_of_two_attacks_under_one_threat_the_stronger_counts():
    rows = [row("prd", "ste", 0.3), row("prd", "ste", 0.1, attack="longer"), row("prd", "ste", 0.2)]
    cell = pivot(rows).lines[0].cells["ste"]
    assert (cell.mean, cell.attack) == (0.1, "longer")


def test_natural_accuracy_is_known_from_an_attack_alone_but_not_its_deviation():
    natural = pivot([row("prd", "ste", 0.3)]).lines[0].cells["none"]
    assert (natural.mean, natural.std) == (0.8, None)


def test_two_settings_of_one_defense_are_two_lines():
    rows = [row("prd", "ste", 0.3), row("prd", "ste", 0.4, settings={"codes": 70})]
    assert len(pivot(rows).lines) == 2
    assert "codes=70" in text_of(rows)


def test_it_fits_a_narrow_terminal():
    rows = [row("randdisc", threat, 0.5) for threat in ("none", "ignorant", "ste", "eot", "adaptive")]
    assert all(len(line) <= 80 for line in text_of(rows, width=80).splitlines())
    assert text_of(rows, width=80).count("50.0 ± 1.2") == 4


def test_without_rich_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(MissingExtraError, match="rich is not installed"):
        demo_table({"rows": []})

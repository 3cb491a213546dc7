"""The figures that the page keeps in view are those that were measured, and say when they are of others."""

import json
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest

from vqshield_app.choices import list_choices, usual
from vqshield_app.fragments import recorded_panel

ROOT = Path(__file__).resolve().parents[2]


def test_the_packages_figures_are_those_of_results() -> None:
    packaged = resources.files("vqshield_app") / "assets" / "demo.json"
    assert packaged.read_bytes() == (ROOT / "paper" / "results" / "demo.json").read_bytes(), (
        "paper/results/demo.json changed: run python paper/tools/update_docs.py"
    )


@pytest.mark.parametrize("defense", list_choices())
def test_every_choice_has_its_own_adaptive_figure(defense: str) -> None:
    choice = usual(defense)
    rows = json.loads((ROOT / "paper" / "results" / "demo.json").read_text())["rows"]
    (adaptive,) = [r for r in rows if r["defense"] == choice.title and r["threat"] == "adaptive"]
    panel = recorded_panel(choice)
    shown = re.findall(r'<div class="(\w+)"><dt>.*?</dt><dd>([\d.]+)<', panel)
    assert dict(shown)["adaptive"] == f"{100 * adaptive['robust']:.1f}"
    assert "differ" not in panel
    assert f"{adaptive['n']} CIFAR-10 test images, ε = 8/255" in panel
    assert "Audit not run" in panel
    assert ("noise=shared" in panel) == (defense == "hardened"), "else it names another shield"


@pytest.mark.parametrize("change", [{"codes": 26}, {"sigma": 5.0}, {"tau": 0.0}, {"beta": 0.5}, {"size": 2}])
def test_other_settings_were_not_measured_and_the_panel_says_so(change: dict[str, float]) -> None:
    choice = replace(usual("swrd"), **change)
    assert "Your settings differ and were not measured" in recorded_panel(choice)


def test_a_setting_that_the_defense_does_not_have_makes_no_difference() -> None:
    choice = replace(usual("randdisc"), beta=7.0, size=4)
    assert choice.is_recorded

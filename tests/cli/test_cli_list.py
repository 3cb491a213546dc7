"""`vqshield list` shows what the registries hold, with the settings read from the code."""

import inspect
import json

import pytest
from typer.testing import CliRunner

import vqshield as vq
from vqshield.attacks import ball, list_attacks
from vqshield.attacks.suites import list_suites
from vqshield.attacks.threats import threat
from vqshield.classifiers import classifier_forms, list_classifiers
from vqshield.cli.application import app
from vqshield.core.settings import format_settings
from vqshield.data import list_datasets
from vqshield.defenses import known_settings
from vqshield.quantization.kernels import list_backends
from vqshield.surrogates import list_surrogates

REGISTRIES = {
    "defenses": vq.defenses.list_all_defenses,
    "attacks": list_attacks,
    "suites": list_suites,
    "surrogates": list_surrogates,
    "classifiers": lambda: (*list_classifiers(), *classifier_forms()),
    "data": list_datasets,
    "backends": list_backends,
}


def run(*arguments):
    result = CliRunner().invoke(app, ["list", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_holds_every_registered_name():
    listing = json.loads(run("--json"))
    assert {kind: [entry["name"] for entry in entries] for kind, entries in listing.items()} == {
        kind: list(registry()) for kind, registry in REGISTRIES.items()
    }


@pytest.mark.parametrize("kind", REGISTRIES)
def test_one_kind_alone(kind):
    assert list(json.loads(run(kind, "--json"))) == [kind]
    text = run(kind)
    assert text.startswith(kind)
    assert all(name in text for name in REGISTRIES[kind]())


def test_each_defense_is_described_with_its_settings():
    for entry in json.loads(run("defenses", "--json"))["defenses"]:
        assert entry["description"]
        assert "\n" not in entry["description"]
        known = known_settings(entry["name"])
        assert list(entry["settings"]) == list(known)
        needed = [key for key, value in entry["settings"].items() if value == "required"]
        assert needed == [key for key, value in known.items() if value is inspect.Parameter.empty]
        assert {key: value for key, value in entry["settings"].items() if key not in needed} == {
            key: value for key, value in known.items() if key not in needed
        }
        assert entry["name"] not in vq.list_defenses() or entry["settings"]["codes"] == 25


def test_noise_is_shown_in_the_unit_people_use():
    assert "tau=4/255" in run("defenses").replace("\n", " ")


def test_an_unknown_kind_is_answered_with_the_known_ones():
    result = CliRunner().invoke(app, ["list", "colours"])
    assert result.exit_code == 2
    assert "colours" in result.stderr
    assert "backends" in result.stderr


def test_each_attack_is_described_with_its_settings_and_their_defaults():
    entries = {entry["name"]: entry for entry in json.loads(run("attacks", "--json"))["attacks"]}
    for name, entry in entries.items():
        assert entry["description"]
        text = format_settings({key: each for key, each in entry["settings"].items() if each is not None})
        threat(f"{name}:{text}", ball("linf", 8 / 255))  # what is listed can be typed
    assert entries["pgd"]["settings"]["steps"] == 20
    assert entries["pgd"]["settings"]["surrogate"] == "ste"
    assert entries["square"]["settings"]["queries"] == 5000
    assert "seed" not in entries["pgd"]["settings"]
    assert "queries=5000" in run("attacks").replace("\n", " ")

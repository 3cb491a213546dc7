"""`vqshield list` shows what the registries hold, with the settings read from the code."""

import json

import pytest
from typer.testing import CliRunner

import vqshield as vq
from vqshield.attacks import attacks
from vqshield.classifiers import classifier_forms, classifiers
from vqshield.cli.application import app
from vqshield.clustering import backends
from vqshield.data import datasets
from vqshield.defenses import known_settings
from vqshield.experiments.reproduction.files import experiments
from vqshield.suites import suites
from vqshield.surrogates import surrogates

REGISTRIES = {
    "defenses": vq.defenses,
    "attacks": attacks,
    "suites": suites,
    "surrogates": surrogates,
    "classifiers": lambda: (*classifiers(), *classifier_forms()),
    "data": datasets,
    "backends": backends,
    "experiments": experiments,
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
        assert entry["settings"] == known_settings(entry["name"])
        assert entry["settings"]["codes"] == 25


def test_noise_is_shown_in_the_unit_people_use():
    assert "tau=4/255" in run("defenses").replace("\n", " ")


def test_an_unknown_kind_is_answered_with_the_known_ones():
    result = CliRunner().invoke(app, ["list", "colours"])
    assert result.exit_code == 2
    assert "colours" in result.stderr
    assert "backends" in result.stderr

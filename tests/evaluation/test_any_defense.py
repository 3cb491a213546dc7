"""Defenses of a user's own through the whole house: evaluated, audited and certified like registered ones."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import noise_images
from torch import Tensor, nn
from typer.testing import CliRunner

import vqshield as vq
from vqshield.auditing import AuditSettings
from vqshield.auditing.study import AuditStudy
from vqshield.cli.application import app
from vqshield.core.errors import InvalidInputError
from vqshield.evaluation.study import Evaluation
from vqshield.runs.executors import LocalExecutor

IMAGES, LABELS = noise_images(4, 3, 8, 8), torch.arange(4)
FEW = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)
MODULE = """
import torch

def noisy(images):
    return (images + 0.05 * torch.rand_like(images)).clamp(0, 1)
"""


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(3 * 8 * 8, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images.flatten(1))


def noisy(images: Tensor) -> Tensor:
    return (images + 0.05 * torch.rand_like(images)).clamp(0, 1)


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "their_shield.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "their_shield:noisy"
    sys.modules.pop("their_shield", None)


def test_a_function_in_memory_is_evaluated_repeatably() -> None:
    model = vq.defend(Network(), noisy)
    attacks = ["pgd:steps=2,surrogate=none", "pgd:steps=2,eot=2,surrogate=own"]
    found = [vq.evaluate(model, IMAGES, LABELS, attacks=attacks, samples=3, eps=0.1) for _ in range(2)]
    assert found[0].rows == found[1].rows
    assert [row.defense for row in found[0].rows] == ["none", *["in memory: noisy"] * 4]
    (defense,) = found[0].manifest.defenses
    assert defense.settings["function"] == "noisy"
    assert len(defense.settings["source"]) == 16


DEPENDING = """
import random
from pathlib import Path
import torch
import vqshield as vq

GENERATOR = random.SystemRandom()

def darker(images):
    return images * float(Path("strength").read_text())

class Darker(vq.Defense):
    def forward(self, images, *, streams=None):
        return darker(images)

    def settings(self):
        return {}

def made():
    return Darker()

def unrepeatable(images):
    return (darker(images) + 0.1 * GENERATOR.random()).clamp(0, 1)
"""


@pytest.mark.parametrize("name", ["darker", "made", "unrepeatable"])
def test_a_defense_that_answers_otherwise_is_another_one(user_module: str, name: str) -> None:
    """The same source; what else it reads decides what it makes of images."""
    Path("their_shield.py").write_text(DEPENDING)
    given = {"defense": f"their_shield:{name}", "samples": 2, "out": "out"}

    def measure(strength: str) -> None:
        Path("strength").write_text(strength)
        vq.evaluate(Network(), IMAGES, LABELS, **given)

    measure("0.5")
    measure("0.5")
    (defense,) = Evaluation.read(Path("out")).manifest.defenses
    assert len(defense.settings["source"]) == 16
    assert (defense.answers is None) == (name == "unrepeatable")
    if defense.answers is not None:
        with pytest.raises(InvalidInputError, match=r"records made with defenses\.0\.answers="):
            measure("0.51")


def test_functions_in_memory_that_only_a_variable_tells_apart_do_not_mix(tmp_path: Path) -> None:
    def darker(strength: float) -> vq.defenses.ImageFunction:
        return lambda images: images * strength

    vq.evaluate(vq.defend(Network(), darker(0.5)), IMAGES, LABELS, samples=2, out=tmp_path)
    vq.evaluate(vq.defend(Network(), darker(0.5)), IMAGES, LABELS, samples=2, out=tmp_path)
    with pytest.raises(InvalidInputError, match=r"records made with defenses\.0\.answers="):
        vq.evaluate(vq.defend(Network(), darker(0.6)), IMAGES, LABELS, samples=2, out=tmp_path)


def test_a_model_without_a_separable_defense_is_attacked_by_its_own_gradient() -> None:
    class Whole(Network):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(noisy(images))

    attacks = ["pgd:steps=2,eot=2", "pgd:steps=2", "square:queries=3"]
    found = vq.evaluate(Whole(), IMAGES, LABELS, attacks=attacks, samples=2, eps=0.1, defense="none")
    levels = {row.attack: row.level for row in found.rows}
    assert (levels[attacks[0]], levels[attacks[1]], levels[attacks[2]]) == ("eot", "white-box", "black-box")
    report = vq.audit(Whole(), IMAGES, LABELS, defense="none", attacks="pgd:steps=1", settings=FEW)
    assert report.defense == "none"


def test_a_function_in_memory_is_audited_and_certified() -> None:
    given = {"attacks": "pgd:steps=1", "settings": FEW}
    report = vq.audit(vq.defend(Network(), noisy), IMAGES, LABELS, **given)
    assert report.defense == "noisy"
    assert vq.audit(Network(), IMAGES, LABELS, defense=noisy, **given).audit == report.audit
    model = vq.defend(Network(), noisy)
    found = vq.certify(model, IMAGES, LABELS, certificate="draws", bound_samples=5, eps=0.1)
    assert found.manifest.defense.name == "in memory: noisy"
    with pytest.raises(InvalidInputError, match="no certificate is known for Preprocessor"):
        vq.certify(vq.defend(Network(), noisy), IMAGES, LABELS, certificate="vote", selection=2, samples=5)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, "--limit", "2", "--device", "cpu", "--out", "out"])
    return result.exit_code, result.output


def test_a_file_outside_the_project_is_evaluated_by_one_command(user_module: str) -> None:
    code, said = run("evaluate", "--defense", user_module, "--attack", "pgd:steps=1", "--samples", "2")
    assert code == 0, said
    manifest = Evaluation.read(Path("out")).manifest
    assert manifest.defenses[0].name == user_module
    assert len(manifest.defenses[0].settings["source"]) == 16
    Path("their_shield.py").write_text(MODULE.replace("0.05", "0.06"))
    code, said = run("evaluate", "--defense", user_module, "--attack", "pgd:steps=1", "--samples", "2")
    assert code == 2
    assert "defenses.0.settings.source" in said


def test_an_executor_measures_an_audit_as_one_cell(tmp_path: Path) -> None:
    given = {"defense": "prd:codes=3,iterations=2", "attacks": "pgd:steps=1", "settings": FEW}
    here = vq.audit(Network(), IMAGES, LABELS, **given)
    there = vq.audit(Network(), IMAGES, LABELS, **given, out=tmp_path, executor=LocalExecutor())
    assert there.audit == here.audit
    assert json.loads((tmp_path / "audit.json").read_text())["natural"]["mean"] == here.audit.natural.mean
    assert AuditStudy.read(tmp_path).manifest.settings == FEW
    with pytest.raises(InvalidInputError, match="executor is given without a folder"):
        vq.audit(Network(), IMAGES, LABELS, **given, executor=LocalExecutor())


@pytest.mark.parametrize("command", ["evaluate", "certify", "audit"])
def test_every_command_takes_an_executor(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def caught(*_: object, **given: object) -> None:
        asked.update(given)
        raise InvalidInputError("enough")

    module = __import__(f"vqshield.cli.{command}", fromlist=[command])
    monkeypatch.setattr(module, "run_audit" if command == "audit" else "measure", caught)
    monkeypatch.chdir(tmp_path)
    run(command, "--executor", "processes", "--workers", "3", "--task-cpus", "2")
    assert (asked["executor"].workers, asked["executor"].cpus) == (3, 2)
    run(command)
    assert asked["executor"] is None
    code, said = run(command, "--workers", "3")
    assert code == 2
    assert "--executor processes" in said.replace("\n", " ")

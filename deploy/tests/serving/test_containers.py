"""The container files: linted, without privileges, and with options that the command has."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vqshield.cli.application import load_command

DEPLOY = Path(__file__).resolve().parents[2]
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()


def service() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="compose files are YAML")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["vqshield"]


def options() -> dict[str, Any]:
    return {flag: each for each in load_command("serve").params for flag in each.opts}


def test_the_container_file_passes_its_linter() -> None:
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([linter, "--no-color", DEPLOY / "Containerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_container_runs_without_root_and_is_checked() -> None:
    final = CONTAINERFILE.rpartition("\nFROM ")[2]
    assert "\nUSER 10001:10001\n" in final
    assert "/healthz" in final
    entry = final.partition("ENTRYPOINT ")[2].split("\n")[0]
    assert entry == '["vqshield", "serve", "--host", "0.0.0.0", "--port", "8000"]'
    for line in CONTAINERFILE.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert (DEPLOY.parent / source).exists(), source


def test_the_composed_service_has_no_privileges_and_enough_time_to_stop() -> None:
    composed = service()
    assert composed["read_only"] is True
    assert composed["cap_drop"] == ["ALL"]
    assert composed["security_opt"] == ["no-new-privileges:true"]
    assert composed["user"] == "10001:10001"
    assert (DEPLOY / composed["build"]["context"] / composed["build"]["dockerfile"]).resolve().is_file()
    from vqshield_deploy.serving.server import STOP_S

    assert int(composed["stop_grace_period"].removesuffix("s")) > STOP_S


def test_the_composed_command_parses() -> None:
    command = service()["command"]
    flags = [each for each in command if each.startswith("--")]
    assert set(flags) <= set(options())
    load_command("serve").make_context("serve", list(command))

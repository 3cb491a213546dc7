"""The command as a whole: every command explains itself, and every expected failure ends in one line."""

import inspect
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import vqshield
from vqshield.cli import main
from vqshield.cli.application import app, command_function, command_help, commands, load_command
from vqshield.core.errors import VqshieldError

RUNNER = CliRunner()


def test_the_commands():
    assert set(commands()) >= {"demo", "purify", "train", "list"}


@pytest.mark.parametrize("name", commands())
def test_every_command_and_each_of_its_options_has_help(name):
    command = load_command(name)
    assert command.help
    assert len(command.help.strip()) > 20
    silent = [option.name for option in command.params if not getattr(option, "help", None)]
    assert silent == [], f"without help text: {silent}"
    assert RUNNER.invoke(app, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize("name", commands())
def test_help_is_read_from_the_file_without_importing_it(name):
    assert command_help(name) == inspect.getdoc(command_function(name))


def test_the_help_of_all_imports_no_command_and_no_torch():
    code = "import sys; from vqshield.cli.application import app\ntry: app(['--help'])\n"
    code += "except SystemExit: print({'vqshield.cli.demo', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("set()")


@pytest.mark.parametrize(
    ("problem", "code", "line"),
    [
        (VqshieldError("size=0 should be >= 1"), 2, "error: size=0 should be >= 1\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_expected_failure_ends_in_one_line(monkeypatch, problem, code, line):
    def failing(*_, **__):
        raise problem

    monkeypatch.setattr("vqshield.cli.purify.as_defense", failing)
    result = RUNNER.invoke(app, ["purify", "a.png", "--out", "out"])
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", line)


def test_a_fault_of_ours_is_not_hidden(monkeypatch):
    def failing(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("vqshield.cli.purify.as_defense", failing)
    result = RUNNER.invoke(app, ["purify", "a.png", "--out", "out"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_without_the_extra_main_says_what_to_install(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "vqshield.cli.application")
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        "error: typer is not installed; in a clone of vqshield, get it with: "
        'pip install ".[cli]" -c constraints.txt\n'
    )


def test_a_missing_file_of_ours_is_not_called_a_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "vqshield.cli.application", None)
    with pytest.raises(ModuleNotFoundError, match="application"):
        main()


def test_main_runs_the_application(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["vqshield", "--version"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("vqshield ")


@pytest.mark.slow
def test_python_dash_m():
    done = subprocess.run(
        [sys.executable, "-m", "vqshield", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith(f"vqshield {vqshield.__version__}, commit ")

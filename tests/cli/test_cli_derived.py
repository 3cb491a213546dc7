"""Options derived from Python calls: a command and its call have the same parameters, defaults and texts."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from vqshield.cli.application import command_function, commands, load_command
from vqshield.cli.derived import (
    Derivation,
    Option,
    Presets,
    PythonOnly,
    Values,
    derived,
    documented,
    option_type,
    parameters,
)
from vqshield.cli.options import SHARED

BY_HAND = {"bench", "list", "doctor", "app"}
"""Commands without a Python call, or whose call is not imported for their help."""
DERIVED = sorted({*commands()} - BY_HAND)


def derivation(command: str) -> Derivation:
    found: Derivation = vars(command_function(command))["derivation"]
    return found


@pytest.mark.parametrize("command", DERIVED)
def test_every_parameter_of_a_call_is_an_option_with_its_default_or_says_why_not(command: str) -> None:
    options = {each.name: each for each in load_command(command).params}
    made = derivation(command)
    for source in made.sources:
        for name, parameter in parameters(source).items():
            how = made.declared.get(name, Option())
            if name not in made.options:
                assert isinstance(how, PythonOnly), f"{name} is neither an option nor declared PythonOnly"
                assert len(how) > 5
                continue
            option = options[made.options[name].name]
            if isinstance(how, Option) and how.default is not None:
                default, reason = how.default
                assert default != parameter.default, f"{name}: the declared default is the call's"
                assert len(reason) > 5
            elif name == "executor":  # the name of one, which becomes the executor
                default = "local"
            else:
                default = parameter.default
            if default is inspect.Parameter.empty:
                assert option.required
            else:
                assert not option.required
                default = default or None if option.multiple else default
                assert option.default == (Path(default) if isinstance(option.default, Path) else default)


@pytest.mark.parametrize("command", DERIVED)
def test_every_declaration_is_about_a_parameter(command: str) -> None:
    made = derivation(command)
    known = {name for source in made.sources for name in parameters(source)} | {*made.options}
    assert {*made.declared} - {*SHARED} <= known


@pytest.mark.parametrize("command", DERIVED)
def test_no_command_has_more_than_twelve_parameters_by_hand(command: str) -> None:
    function = derivation(command).function
    assert len(inspect.signature(function).parameters) <= 12


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long.

    Attributes:
        steps: number of steps.
        seeds: seeds of the steps.
    """

    steps: int = 9
    seeds: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group of options.

    Attributes:
        out: folder.
    """

    out: Path
    as_json: bool = False


def verb(
    model: "int | str" = "small",
    *,
    eps: float | None = None,
    attacks: str | Sequence[str] = (),
    settings: Settings | None = None,
    out: Path | str | None = None,
) -> dict[str, Any]:
    """Measure.

    Args:
        model: name of a `model`,
            such as "small".
        eps, attacks: budget, attacks.

    Returns:
        nothing: that matters.
    """
    return {"model": model, "eps": eps, "attacks": attacks, "settings": settings, "out": out}


def run(*arguments: str) -> tuple[Any, ...]:
    seen: list[Any] = []

    @derived(
        verb,
        Presets(Settings(), Settings(steps=1)),
        model=Option("classifier"),
        eps=Option(type=str, parse=lambda text, typed: float(text) / (2 if typed["quick"] else 1)),
        settings=PythonOnly("made from its fields"),
        out=Option(default=(Path("here"), "it is kept")),
    )
    def command(values: Values, group: Group, quick: bool = False) -> None:
        """Measure, in words."""
        settings = values.settings(Settings(steps=1) if quick else Settings())
        seen.extend((values.call(verb, settings=settings), group))

    application = typer.Typer()
    application.command()(command)
    result = CliRunner().invoke(application, arguments)
    assert result.exit_code == 0, result.output
    return (*seen, result.output)


def test_a_command_calls_with_what_was_typed_and_leaves_the_rest_to_the_defaults() -> None:
    called, group, _ = run()
    assert called == {
        "model": "small", "eps": None, "attacks": (), "settings": Settings(), "out": Path("here"),
    }  # fmt: skip
    assert group == Group(out=Path("here"))
    called, group, _ = run(
        "--classifier", "mine", "--eps", "8", "--attacks", "a", "--attacks", "b", "--quick", "--seeds", "5",
        "--out", "there", "--as-json",
    )  # fmt: skip
    assert called["settings"] == Settings(steps=1, seeds=(5,))
    assert called == {
        "model": "mine", "eps": 4.0, "attacks": ("a", "b"), "settings": called["settings"],
        "out": Path("there"),
    }  # fmt: skip
    assert group == Group(out=Path("there"), as_json=True)


def test_the_help_comes_from_the_docstring_with_the_defaults_of_both_presets() -> None:
    text = " ".join(run("--help")[-1].split())
    for shown in (
        "Measure, in words.",
        "Name of a model, such as small.",
        "Number of steps (default: 9; with",
    ):
        assert shown in text.replace(" │ │ ", " ")


def test_documented_reads_one_section() -> None:
    assert documented(verb) == {
        "model": 'name of a `model`, such as "small".',
        "eps": "budget, attacks.",
        "attacks": "budget, attacks.",
    }
    assert documented(run) == {}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str | None, str),
        (Path | str | None, Path),
        (float, float),
        (Literal["a", "b"] | None, str),
        (str | Sequence[str], list[str]),
        (tuple[int, ...], list[int]),
        (Sequence[str | Path] | None, list[Path]),
    ],
)
def test_what_can_be_typed_for_a_parameter(annotation: object, expected: object) -> None:
    assert option_type(annotation, "it") == expected


def test_what_cannot_be_typed_has_to_be_declared() -> None:
    with pytest.raises(TypeError, match=r"it: .* declare an Option with a type, or PythonOnly"):
        option_type(dict[str, int], "it")

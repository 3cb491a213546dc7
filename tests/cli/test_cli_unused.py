"""Every option of every command affects the result, or is refused next to the others (issue 35)."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import vqshield as vq
from vqshield.cli.application import app, commands, load_command, unused_options
from vqshield.cli.unused import refuse_unused
from vqshield.core.errors import InvalidInputError
from vqshield.data import load

RECORDED = "device executor out fresh render_only as_json"
"""What commands that keep records have in common; --render-only is held against all others below."""
ALWAYS = {
    "demo": "out limit steps eot samples calls seed as_json",
    "evaluate": f"attack defense data classifier calibrate limit samples seed batch {RECORDED}",
    "audit": f"attack defense data classifier norm eps limit seed quick strict {RECORDED}",
    "certify": f"norm defense data classifier limit batch precision {RECORDED}",
    "reproduce": "ids only limit samples attack batch_norm seed precision device out executor dry_run "
    "render_only as_json",
    "purify": "images out defense seed overwrite max_pixels as_json",
    "train": "data_dir data arch epochs batch lr optimizer schedule weight_decay label_smoothing padding "
    "flip normalise cutout ema seed defense start device precision compile out fresh test_every as_json",
    "download": "name data_dir as_json",
    "bench": "device seconds threads as_json",
    "list": "kind as_json",
    "harden": "classifier defense method data data_dir limit test_limit epochs batch lr ema cutout seed "
    "device precision compile out name fresh as_json",
    "calibrate": "classifier defense data limit method samples batch seed device out name as_json",
    "doctor": "as_json",
    "serve": "host port workers threads api_keys proxy access_log classifier defense mean std class_names "
    "side votes seed device max_bytes max_pixels max_batch wait_ms queue connections receive_s answer_s rate",
    "ladder": "defense source control attack calls train_dir data classifier calibrate norm eps limit "
    f"samples seed batch quick precision {RECORDED}",
    "export": "file defense classifier shape overwrite as_json",
    "leaderboard": "rows classifier calibrate source attack calls audit_limit data norm eps limit samples "
    f"seed batch quick precision {RECORDED}",
    "app": "host port browser",
    "gate": "policy out fresh as_json",
    "compare": "before after radius as_json",
}
"""Options that no value of another one leaves without effect."""
PLACE, L1 = ["--data-dir", "."], ["--norm", "l1"]
WHEN = {
    "evaluate": {
        **dict.fromkeys(
            ("norm", "eps", "selection", "curve", "pictures"),
            (([], ["--attack", "pgd"], "without --attack"),),
        ),
        "precision": [
            ([], ["--attack", "pgd"], "without --attack"),
            (["--attack", "pgd:precision=bf16"], ["--attack", "pgd"], "where every --attack names its own"),
        ],
    },
    "audit": {"precision": [(["--attack", "pgd:precision=bf16"], [], "where every --attack names its own")]},
    "certify": {
        **dict.fromkeys(
            ("attack", "eps", "bound_samples", "delta"),
            (
                (["--certificate", "vote"], ["--certificate", "draws"], "without --certificate draws or all"),
                (["--certificate", "sequential"], [], "without --certificate draws or all"),
                (L1, [], "with --norm l1"),
            ),
        ),
        **dict.fromkeys(
            ("selection", "samples", "alpha"),
            (
                (["--certificate", "draws"], ["--certificate", "vote"], "with --certificate draws"),
                (L1, [], "with --norm l1"),
            ),
        ),
        "radius": [(["--certificate", "draws"], L1, "with --certificate draws")],
        "certificate": [(L1, [], "with --norm l1")],
        "after": [([], L1, "without --norm l1")],
        "seed": [(L1, [*L1, "--after", "swrd"], "with --norm l1 and without --after")],
    },
    "ladder": dict.fromkeys(
        ("train_data", "own_arch", "own_epochs"), (([], ["--train-dir", "."], "without --train-dir"),)
    ),
    "train": {
        "momentum": [([*PLACE, "--optimizer", "adam"], PLACE, "with --optimizer adam")],
        "nesterov": [
            ([*PLACE, "--optimizer", "adam"], PLACE, "with --optimizer adam"),
            ([*PLACE, "--momentum", "0"], PLACE, "with --momentum 0"),
        ],
        **dict.fromkeys(
            ("milestones", "drop"), ((PLACE, [*PLACE, "--schedule", "step"], "without --schedule step"),)
        ),
        "border": [([*PLACE, "--padding", "0"], PLACE, "with --padding 0")],
        "decay": [([*PLACE, "--weight-decay", "0"], PLACE, "with --weight-decay 0")],
    },
    "calibrate": dict.fromkeys(("data_dir", "split"), ((["--data", "."], [], "with a folder as --data"),)),
    "reproduce": {"fresh": [(["T2", "--dry-run"], ["T2"], "with --dry-run")]},
    "serve": {
        **dict.fromkeys(
            ("selection", "alpha", "abstain", "sequential"), (([], ["--votes", "20"], "with --votes 1"),)
        ),
        "burst": [([], ["--rate", "5"], "without --rate")],
    },
}
"""Options that others leave without effect: where they are refused, where they are not, and why."""
EXECUTORS = {"workers": "2", "address": "auto", "task_cpus": "2", "task_gpus": "1", "retries": "2"}
ELSEWHERE = {
    **{
        (command, option): ([], value, "--executor local, which has no such option")
        for command in ("evaluate", "audit", "certify", "ladder", "leaderboard", "reproduce")
        for option, value in EXECUTORS.items()
    },
    **{
        (command, "data_dir"): (
            ["--defense", "prd"] if command == "certify" else [],
            ".",
            "(--data-dir) is given for 'cifar10-sample', which is bundled",
        )
        for command in ("evaluate", "audit", "certify", "ladder", "leaderboard")
    },
    **{
        ("reproduce", option): ([], f"mnist={value}", "is given for mnist, which nothing here is about")
        for option, value in {"data_dir": ".", "data": "npz", "classifier": "small-cifar10"}.items()
    },
    ("audit", "held_out"): (
        ["--executor", "processes"], "cifar10-sample=.", "(--data-dir) is given for 'cifar10-sample'",
    ),
}  # fmt: skip
"""Options that their own code refuses next to others, as it depends on the value."""
CHOICES = {("train", "border"): "black", ("train", "decay"): "all"}
"""Values of options that take no others."""
SUMMED_UP = {
    "certify": {"norm", "radius"}, "evaluate": set(), "ladder": set(), "leaderboard": set(),
    "audit": {"strict"}, "reproduce": {"ids"},
}  # fmt: skip


def parameters(command: str) -> dict[str, Any]:
    return {each.name: each for each in load_command(command).params if each.name != "help"}


def typed(parameter: Any, value: str = "1") -> list[str]:
    """The option as one types it."""
    if parameter.param_type_name == "argument":
        return [value]
    return [parameter.opts[0]] if getattr(parameter, "is_flag", False) else [parameter.opts[0], value]


def check(command: str, arguments: list[str]) -> None:
    context: typer.Context = load_command(command).make_context(command, list(arguments))
    refuse_unused(unused_options(command), context)


@pytest.mark.parametrize("command", commands())
def test_of_every_option_it_is_known_when_it_matters(command: str) -> None:
    """A new option has to be entered here: it always matters, or it is refused where it does not."""
    sometimes = [*WHEN.get(command, {}), *(option for name, option in ELSEWHERE if name == command)]
    assert sorted([*ALWAYS[command].split(), *sometimes]) == sorted(parameters(command))


def test_every_rule_is_tried() -> None:
    tried = {(command, option, why) for command, options in WHEN.items()
             for option, cases in options.items() for _, _, why in cases}  # fmt: skip
    for command in commands():
        for rule in unused_options(command):
            assert {*(rule.options or rule.kept).split()} <= set(parameters(command))
            for option in rule.options.split():
                assert any(rule.why.startswith(why) for c, o, why in tried if (c, o) == (command, option))


@pytest.mark.parametrize(
    ("command", "option", "unused", "used", "why"),
    [
        (command, option, *case)
        for command, options in WHEN.items()
        for option, cases in options.items()
        for case in cases
    ],
)
def test_an_option_without_effect_is_refused_with_both_names(
    command: str, option: str, unused: list[str], used: list[str], why: str
) -> None:
    parameter = parameters(command)[option]
    given = typed(parameter, CHOICES.get((command, option), "1"))
    check(command, [*used, *given])
    with pytest.raises(InvalidInputError, match=f"{parameter.opts[0]} given {why}"):
        check(command, [*unused, *given])
    check(command, unused)  # what nobody typed is no reason to refuse


@pytest.mark.parametrize("command", SUMMED_UP)
def test_a_summary_of_what_is_there_takes_no_settings(command: str) -> None:
    kept = {"out", "as_json", "render_only", *SUMMED_UP[command]}
    first = ["T2"] if command == "reproduce" else []
    for name, parameter in parameters(command).items():
        arguments = [*first, "--render-only", *typed(parameter)]
        if name in kept:
            check(command, arguments)
        else:
            with pytest.raises(InvalidInputError, match="given with --render-only, with no effect"):
                check(command, arguments)


@pytest.mark.parametrize(("command", "option"), ELSEWHERE)
def test_a_value_that_is_not_used_ends_the_command(command: str, option: str, tmp_path: Path) -> None:
    given, value, message = ELSEWHERE[command, option]
    out = tmp_path / "out"
    first = ["T2"] if command == "reproduce" else []
    arguments = [command, *first, *given, *typed(parameters(command)[option], value), "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not list(out.glob("*/**/records.jsonl"))


def test_a_folder_that_is_not_read_is_refused_in_python_too(tmp_path: Path) -> None:
    held = vq.data.sample(2)
    tensors = held.floats(), held.labels
    with pytest.raises(InvalidInputError, match=r"data_dir=.* is given with tensors"):
        vq.evaluate("small-cifar10", *tensors, data_dir=tmp_path)
    with pytest.raises(InvalidInputError, match=r"data_dir=.* is given with tensors"):
        vq.harden("small-cifar10", "none", *tensors, data_dir=tmp_path, out=tmp_path)
    with pytest.raises(InvalidInputError, match=r"\(--data-dir\) is given for 'cifar10-sample'.*\(--data\)"):
        load("cifar10-sample", "test", tmp_path)


def test_a_board_of_bare_classifiers_is_not_calibrated(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app, ["leaderboard", "bare", "--calibrate", "cifar10-sample", "--out", str(out)]
    )
    assert result.exit_code == 2, result.output
    assert "--calibrate given without a row that has a defense" in " ".join(result.stderr.split())

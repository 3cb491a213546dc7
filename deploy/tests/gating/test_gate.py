"""A gate says worse, ok or not measured, in words, in an exit code, in JSON, JUnit XML and Markdown."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from typer.testing import CliRunner

import vqshield as vq
from vqshield.cli.application import app
from vqshield.core.errors import FileFormatError
from vqshield.core.serialization import from_plain
from vqshield_deploy.gating.gate import CheckResult, GateReport, gate
from vqshield_deploy.gating.policy import Policy
from vqshield_deploy.gating.reports import gate_markdown, junit

N = 40


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same forty images: a good model, another sample of it, and one that is much worse."""
    home = tmp_path_factory.mktemp("gate")
    for name, defense, seed in (("good", "prd", 0), ("again", "prd", 1), ("bad", "prd:codes=2", 0)):
        vq.evaluate(defense=defense, seed=seed, limit=N, samples=3, out=home / name)
    return home


def policy(folder: Path, text: str, *, level: float = 0.05) -> Path:
    file = folder / "policy.toml"
    file.write_text(f"level = {level}\nleast_images = {N}\n{text}")
    return file


def checked(runs: Path, tmp_path: Path, run: str, *rules: str) -> GateReport:
    lines = [f'run.mine.folder = "{runs / run}"']
    lines += [f'[[check]]\nrun = "mine"\n{rule}' for rule in rules]
    return gate(policy(tmp_path, "\n".join(lines)), out=tmp_path / "out")


def test_an_equal_and_a_resampled_model_pass(runs: Path, tmp_path: Path) -> None:
    rule = f'attack = "clean"\nbaseline = "{runs / "good"}"'
    for run in ("good", "again"):
        report = checked(runs, tmp_path, run, rule, 'attack = "clean"\nleast = 0.6')
        assert (report.status, report.exit_code) == ("ok", 0)
        assert report.notes == ([] if run == "good" else [report.notes[0]])
    assert "seed: 0 → 1" in report.notes[0]


def test_a_worse_model_fails_with_its_difference(runs: Path, tmp_path: Path) -> None:
    report = checked(runs, tmp_path, "bad", f'attack = "clean"\nbaseline = "{runs / "good"}"')
    (check,) = report.checks
    assert (report.status, report.exit_code, check.status) == ("worse", 1, "worse")
    assert check.change is not None
    assert check.change.change < -0.2
    assert check.p_value == check.change.p_value < 0.01
    assert check.differing["defenses.0.name"] == "prd → prd:codes=2"
    better = checked(runs, tmp_path, "good", f'attack = "clean"\nbaseline = "{runs / "bad"}"')
    assert better.exit_code == 0


def test_a_threshold_fails_where_the_accuracy_is_below_it_by_more_than_noise(
    runs: Path, tmp_path: Path
) -> None:
    report = checked(runs, tmp_path, "bad", 'attack = "clean"\nleast = 0.9', 'attack = "clean"\nleast = 0.1')
    assert [each.status for each in report.checks] == ["worse", "ok"]
    assert report.exit_code == 1


def test_more_checks_make_each_of_them_more_careful(runs: Path, tmp_path: Path) -> None:
    """A drop that one check finds at its level is not found among many others that hold."""
    shares = checked(runs, tmp_path, "good", 'attack = "clean"\nleast = 0').checks[0].accuracy
    assert shares is not None
    tight = f'attack = "clean"\nleast = {shares.mean + 1.8 * (0.2 * 0.8 / N) ** 0.5:.3f}'
    alone = checked(runs, tmp_path, "good", tight)
    among = checked(runs, tmp_path, "good", tight, *['attack = "clean"\nleast = 0.1'] * 9)
    p_value = alone.checks[0].p_value
    assert p_value is not None
    assert 0.005 < p_value <= 0.05
    assert (alone.status, among.status) == ("worse", "ok")


@pytest.mark.parametrize(
    ("run", "rule", "reason"),
    [
        ("good", 'attack = "pgd"\nleast = 0.5', "has no result 'pgd' of 'model'; it has 'clean' of 'bare'"),
        ("good", 'attack = "clean"\nbaseline = "nowhere"', "no run was started there"),
        ("good", 'verdict = "passed"', "is of evaluate, which has no verdict"),
        ("nowhere", 'attack = "clean"\nleast = 0.5', "no run was started there"),
    ],
)
def test_what_cannot_be_measured_is_neither_ok_nor_worse(
    run: str, rule: str, reason: str, runs: Path, tmp_path: Path
) -> None:
    report = checked(runs, tmp_path, run, rule)
    assert (report.status, report.exit_code) == ("not measured", 2)
    assert reason in report.checks[0].reason
    both = checked(runs, tmp_path, "bad", rule, 'attack = "clean"\nleast = 0.9')
    assert both.exit_code == 1  # what is certain counts


def test_a_baseline_with_other_attacks_or_images_does_not_count(runs: Path, tmp_path: Path) -> None:
    vq.evaluate(defense="prd", limit=N, samples=2, out=tmp_path / "samples")
    vq.evaluate(defense="prd", limit=N - 1, samples=3, out=tmp_path / "images")
    for name, reason in (
        ("samples", r"other settings (runs: 2 → 3); measure it again"),
        ("images", "not the same"),
    ):
        report = checked(runs, tmp_path, "good", f'attack = "clean"\nbaseline = "{tmp_path / name}"')
        assert report.exit_code == 2
        assert reason in report.checks[0].reason


def test_too_few_images_are_not_measured(runs: Path, tmp_path: Path) -> None:
    file = policy(
        tmp_path, f'run.a.folder = "{runs / "good"}"\n[[check]]\nrun="a"\nattack="clean"\nleast=0.1'
    )
    file.write_text(file.read_text().replace(f"least_images = {N}", "least_images = 200"))
    report = gate(file, out=tmp_path / "out")
    assert report.exit_code == 2
    assert "40 images; least_images=200" in report.checks[0].reason


def test_an_audits_verdict_is_compared_by_its_severity(tmp_path: Path) -> None:
    few = vq.auditing.AuditSettings(
        runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True
    )
    found = vq.audit(limit=2, attacks="pgd:steps=1", defense="prd", settings=few, out=tmp_path / "audit")
    assert not found.passed
    strict = checked(tmp_path, tmp_path, "audit", 'verdict = "passed"')
    assert (strict.exit_code, strict.checks[0].reason) == (1, f"the verdict is {found.audit.verdict}")
    assert checked(tmp_path, tmp_path, "audit", 'verdict = "failed"').exit_code == 0


A_CHECK = 'level = 0.05\nrun.a.folder = "a"\n[[check]]\nrun = "a"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("level = 0.05", r"every run needs a \[\[check\]\]"),
        ("level = 0", "level=0.0 should be above 0"),
        ("level = nan", "level is nan; it should be a finite number"),
        ("levl = 0.05", "has the unknown key 'levl'.*Did you mean 'level'"),
        ("level = [", "is not TOML"),
        ('level = 0.05\nleast_images = 3\nrun.a.folder="a"', "least_images=3 should be >= 30"),
        ('level = 0.05\nrun.a.folder = "a"\nrun.a.command = "evaluate"', "either a command or the folder"),
        (
            'level = 0.05\nrun.a.command = "harden"',
            "should begin with one of evaluate, ladder",
        ),
        ('level = 0.05\nrun.a.command = "evaluate --out=x"', "--out=x in command.* is the gate's"),
        ('level = 0.05\nrun.a.command = "evaluate \'x"', "cannot be split"),
        ('level = 0.05\nrun."../a".folder = "a"', "a name of letters, digits"),
        (
            A_CHECK.replace('run = "a"', 'run = "b"') + '\nverdict = "passed"',
            "of run 'b'; the runs are a",
        ),
        ('level = 0.05\nrun.a.folder = "a"', r"every run needs a \[\[check\]\]"),
        (A_CHECK, "attack and least, attack and baseline"),
        (
            A_CHECK + '\nattack = "clean"\nverdict = "passed"',
            "attack and least, attack and baseline",
        ),
        (
            A_CHECK + '\nattack = "clean"\nleast = 60',
            "least=60.0 should be from 0 to 1",
        ),
        (
            A_CHECK + '\nattack = "clean"\nleast = 1\ntolerance = 0.1',
            "tolerance=0.1 belongs to baseline",
        ),
        (
            A_CHECK + '\nattack = "certified@x"\nleast = 1',
            "radius='x' should be one number",
        ),
        (A_CHECK + '\nverdict = "good"', "one of passed, failed"),
    ],
)
def test_a_wrong_policy_ends_with_2_and_says_where(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(FileFormatError, match=message):
        Policy.read(file)
    result = CliRunner().invoke(app, ["gate", str(file), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "error: could not measure: " in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_missing_policy_ends_with_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["gate", str(tmp_path / "none.toml"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "is not a file" in result.stderr


def test_the_command_writes_what_it_shows(runs: Path, tmp_path: Path) -> None:
    file = policy(
        tmp_path, f'run.mine.folder = "{runs / "bad"}"\n[[check]]\nrun="mine"\nattack="clean"\nleast=0.9'
    )
    out = tmp_path / "out"
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["gate", str(file), "--out", str(out)])
    assert result.exit_code == 1
    assert "Gate: worse" in result.stdout
    held = from_plain(GateReport, json.loads((out / "gate.json").read_text()), "gate.json")
    assert held.status == "worse"
    again = CliRunner().invoke(app, ["gate", str(file), "--out", str(out), "--json", "--fresh"])
    assert again.exit_code == 1
    assert json.loads(again.stdout) == json.loads((out / "gate.json").read_text())
    assert (tmp_path / "out.1" / "gate.json").is_file()
    suite = ElementTree.parse(out / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "1", "0")
    assert "Gate: worse" in (out / "summary.md").read_text()


def test_nothing_but_a_worse_model_ends_with_1(runs: Path, tmp_path: Path) -> None:
    """A full disk or a fault in the program is no statement about the model."""
    file = policy(
        tmp_path, f'run.mine.folder = "{runs / "good"}"\n[[check]]\nrun="mine"\nattack="clean"\nleast=0.1'
    )
    (tmp_path / "out").write_text("a file")
    result = CliRunner().invoke(app, ["gate", str(file), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "could not measure" in result.stderr


HOSTILE = ']]> <script>alert(1)</script> | `a` \x1b[31m \x00 \n# b & "quoted" [x](javascript:alert(1))'


def test_texts_of_others_stay_texts_in_every_report() -> None:
    check = CheckResult(
        run="a", title=HOSTILE, rule=HOSTILE, status="not measured", reason=HOSTILE,
        differing={HOSTILE: HOSTILE},
    )  # fmt: skip
    report = GateReport(
        policy="p", status="not measured", level=0.05, checks=(check, replace(check, status="worse"))
    )
    suite = ElementTree.fromstring(junit(report))
    assert [len(case) for case in suite] == [1, 1]
    assert "<script>alert(1)</script>" in str(suite[0][0].get("message"))
    page = MarkdownIt("js-default").enable("table").render(gate_markdown(report))
    assert "<script" not in page
    assert "<a " not in page
    assert page.count("<h3>") == 1
    assert page.count("<tr>") == 3
    assert "\x1b" not in gate_markdown(report)
    assert "\x00" not in gate_markdown(report)


def test_a_run_that_crashes_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import os\ndef load(): os._exit(1)\n")
    file = policy(
        tmp_path,
        """
        [run.crash]
        command = "evaluate --classifier mine:load --limit 40 --samples 1"
        [run.typo]
        command = "evaluate --limt 40"
        [[check]]
        run = "crash"
        attack = "clean"
        least = 0.1
        [[check]]
        run = "typo"
        attack = "clean"
        least = 0.1
        """,
    )
    report = gate(file, out=tmp_path / "out")
    assert report.exit_code == 2
    assert "ended with 1" in report.checks[0].reason
    assert "ended with 2" in report.checks[1].reason
    assert "limt" in report.checks[1].reason


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gate"


@pytest.mark.slow
def test_the_gate_runs_in_a_fresh_clone_of_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes as it is; fails once the model is worse; says so where it cannot be measured."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    shutil.copytree(EXAMPLE, origin)
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for arguments in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "First"]):
        subprocess.run(["git", *arguments], cwd=origin, check=True)
    subprocess.run(["git", "clone", "-q", str(origin), str(clone)], check=True)
    monkeypatch.chdir(clone)

    def run() -> int:
        return CliRunner().invoke(app, ["gate", "policy.toml", "--fresh"]).exit_code

    assert run() == 0, (clone / "vqshield-gate" / "summary.md").read_text()
    model = clone / "model.py"
    model.write_text(model.read_text().replace("STRIDE = 1", "STRIDE = 2"))
    assert run() == 1, (clone / "vqshield-gate" / "summary.md").read_text()
    model.write_text("def load():\n    raise RuntimeError('no weights')\n")
    assert run() == 2
    assert "no weights" in (clone / "vqshield-gate" / "summary.md").read_text()

"""The gate: measure what a policy names, test every check, and say whether a build is worse."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vqshield.auditing.results import Verdict
from vqshield.core.errors import InvalidInputError, VqshieldError
from vqshield.core.progress import Progress, no_progress
from vqshield.models.draws import Accuracy
from vqshield.reports.table import Cell, Column, Mark, Table, Tabular
from vqshield_deploy.gating.comparison import differing_settings, refuse_different
from vqshield_deploy.gating.finished import FinishedRun, read_run
from vqshield_deploy.gating.policy import Check, PlannedRun, Policy
from vqshield_deploy.gating.statistics import PairedChange, Shares, below, holm, paired_change

Status = Literal["ok", "worse", "not measured"]
EXIT_CODES: Mapping[Status, int] = {"ok": 0, "worse": 1, "not measured": 2}
_MARKS: Mapping[Status, Mark] = {"ok": "good", "worse": "bad", "not measured": "unsure"}
_VERDICTS: tuple[Verdict, ...] = ("passed", "undecided", "suspicious", "failed")
"""From the best to the worst."""
_UNDER_TEST = (
    "classifier", "defense", "defenses", "after", "coverage", "subjects", "not_measured", "code", "machine",
    "seed", "batch", "batch_norm",
)  # fmt: skip
"""Settings that a run and its baseline may differ in; with other attacks, accuracies do not compare."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What a check found.

    Attributes:
        title, rule: the result that it is about, and what must hold.
        accuracy: of this run; change: from the baseline.
        p_value: the chance of a result like this if the rule holds; None for a verdict.
        reason: why it is worse, or was not measured.
        differing: settings that differ from the baseline's, by name.
    """

    run: str
    title: str
    rule: str
    status: Status = "ok"
    accuracy: Accuracy | None = None
    change: PairedChange | None = None
    p_value: float | None = None
    reason: str = ""
    differing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GateReport(Tabular):
    """What a gate found.

    Attributes:
        status: "worse" if a check failed, else "not measured" if one could not be measured, else "ok".
        level: of all checks together.
        checks: in the order of the policy.
    """

    policy: str
    status: Status
    level: float
    checks: tuple[CheckResult, ...]

    @property
    def exit_code(self) -> int:
        """0: ok, 1: worse, 2: not measured."""
        return EXIT_CODES[self.status]

    @property
    def table(self) -> Table:
        """A line per check."""
        names = {"check": "check", "rule": "rule", "status": "status"}
        return Table(
            title=f"Gate: {self.status}",
            columns=[
                *(Column(name, title) for name, title in names.items()),
                Column("accuracy", "accuracy", "percent"),
                Column("change", "change", "percent", format="+.1f"),
                Column("standard_error", "s.e.", "percent"),
                Column("p_value", "p", "number", format=".2g"),
                Column("n", "N", "count"),
            ],
            rows=[
                [
                    each.title,
                    each.rule,
                    Cell(each.status, mark=_MARKS[each.status]),
                    each.accuracy,
                    None if each.change is None else each.change.change,
                    None if each.change is None else each.change.standard_error,
                    each.p_value,
                    each.accuracy and each.accuracy.n,
                ]
                for each in self.checks
            ],
            caption="accuracy in % ± standard error over images; s.e.: of the change; p: of such a result if "
            f"the rule holds; level {self.level:g} for all checks together (Holm)",
        )

    @property
    def notes(self) -> list[str]:
        """Why checks are not ok, and which settings differ from a baseline's."""
        lines = [f"{each.title}: {each.reason}." for each in self.checks if each.reason]
        for each in self.checks:
            settings = "; ".join(f"{name}: {values}" for name, values in each.differing.items())
            lines += [f"{each.title}: not as in the baseline: {settings}."] if settings else []
        return lines


def gate(
    policy: Path | str, *, out: Path | str = "vqshield-gate", progress: Progress = no_progress
) -> GateReport:
    """Measure what a policy names, and say whether a build is worse than it may be.

    Args:
        policy: a TOML file with a level, runs and checks; paths in it are relative to the current directory.
        out: keep the runs in this folder, in runs/NAME; an interrupted gate resumes there.
        progress: called with the run that is measured, the runs that are done, and how many there are.

    Returns:
        The outcome of each check. `exit_code` is 0 (ok), 1 (worse) or 2 (not measured).

    Raises:
        FileFormatError: the file is not a policy. An error in a run is the outcome of its checks.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = vq.evaluate(limit=40, samples=1, out=folder / "run")
        >>> _ = (folder / "policy.toml").write_text(f'''
        ... level = 0.05
        ... least_images = 40
        ... run.clean.folder = "{folder}/run"
        ... check = [{{run = "clean", attack = "clean", least = 0.6}}]
        ... ''')
        >>> report = gate(folder / "policy.toml", out=folder / "out")
        >>> report.status, report.exit_code
        ('ok', 0)
    """
    rules, runs = Policy.read(policy), dict[str, FinishedRun | str]()
    for number, (name, planned) in enumerate(rules.run.items()):

        def report(said: str, name: str = name, number: int = number) -> None:
            progress(f"{name}: {said}", number, len(rules.run))

        report("measured")
        radii = [radius for each in rules.check if each.run == name for radius in each.radii]
        try:
            runs[name] = read_run(_measured(planned, Path(out) / "runs" / name, report), radii=radii)
        except (VqshieldError, OSError) as error:
            runs[name] = str(error)
    results = [_result(each, runs[each.run], rules) for each in rules.check]
    # A check that was not measured counts as well: the level of the others must not depend on it.
    p_values = {
        number: 1.0 if result.p_value is None else result.p_value
        for number, (check, result) in enumerate(zip(rules.check, results, strict=True))
        if check.verdict is None
    }
    for number in holm(p_values, rules.level):
        results[number] = replace(results[number], status="worse", reason="worse by more than noise")
    worst = max((result.status for result in results), key=("ok", "not measured", "worse").index)
    return GateReport(policy=str(policy), status=worst, level=rules.level, checks=tuple(results))


def _measured(planned: PlannedRun, folder: Path, report: Callable[[str], None]) -> Path:
    """The folder of a run. A process of its own measures it: the gate survives its crash."""
    if planned.folder is not None:
        return planned.folder
    command = [sys.executable, "-P", "-m", "vqshield", *planned.arguments, "--out", str(folder)]
    said = ""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None  # a pipe
        try:
            for line in process.stderr:
                said = line.decode(errors="replace").strip()[:1000] or said
                report(said)
        except BaseException:
            process.terminate()
            raise
    if process.returncode not in (0, 3, 4):  # the last two: an audit did not pass
        raise InvalidInputError(f"`vqshield {planned.command}` ended with {process.returncode}: {said}")
    return folder


def _result(check: Check, run: FinishedRun | str, rules: Policy) -> CheckResult:
    """The outcome of a check by itself. Only all p-values together say what is worse by more than noise."""
    result = CheckResult(run=check.run, title=check.title, rule=check.rule)
    try:
        if isinstance(run, str):
            raise InvalidInputError(run)
        if check.verdict is not None:
            if run.verdict is None:
                raise InvalidInputError(f"{run.folder} is of {run.kind}, which has no verdict; give an audit")
            worse = _VERDICTS.index(run.verdict) > _VERDICTS.index(check.verdict)
            return replace(result, status="worse" if worse else "ok", reason=f"the verdict is {run.verdict}")
        attack, shares = run.shares(check.subject, str(check.attack))
        result = replace(result, accuracy=shares.accuracy)
        if (n := len(shares.right)) < rules.least_images:
            raise InvalidInputError(f"{n} images; least_images={rules.least_images} in the policy")
        if check.least is not None:
            return replace(result, p_value=below(shares, check.least))
        return _compared(check, run, attack, shares, result)
    except (VqshieldError, OSError) as error:
        return replace(result, status="not measured", reason=str(error).rstrip("."))


def _compared(
    check: Check, run: FinishedRun, attack: str, shares: Shares, result: CheckResult
) -> CheckResult:
    assert check.baseline is not None  # the third rule
    baseline = read_run(check.baseline, radii=check.radii)
    refuse_different(baseline, run)
    differing = differing_settings(baseline, run)
    if other := [name for name in differing if name.partition(".")[0] not in _UNDER_TEST]:
        raise InvalidInputError(
            f"the baseline {check.baseline} was measured with other settings ({other[0]}: "
            f"{differing[other[0]]}); measure it again"
        )
    change = paired_change(baseline.shares(check.subject, attack)[1], shares, tolerance=check.tolerance)
    return replace(result, change=change, p_value=change.p_value, differing=differing)

"""The tables of docs/attacks.md and of README.md about attacks, from the records in paper/results/."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import recorded
from recorded import Machine, stem
from tables import listed, machine, percent, table
from vqshield.auditing import TITLES
from vqshield.classifiers import BUNDLED
from vqshield.core.display_names import NONE, display_defense
from vqshield.core.serialization import Json
from vqshield.evaluation.study import Evaluation, EvaluationRow, EvaluationSummary
from vqshield.runs.manifests import AttackId

MEASURED, EXPLORED = "attacks-cifar10-resnet18", "explored-attacks-cifar10-resnet18"
SUITE = "adaptive-v1"
FAKES = "audit-fakes.json"
HONEST = "false-alarms-audit.json"


def read(folder: str) -> EvaluationSummary:
    """A summary that `vqshield evaluate` wrote."""
    return recorded.read(EvaluationSummary, f"{folder}/summary.json")


def accuracy(row: EvaluationRow) -> str:
    """Mean ± standard error over images, in percent."""
    return f"{100 * row.mean:.1f} ± {100 * row.standard_error:.1f}"


def footnote(summary: EvaluationSummary) -> str:
    """What the values were measured with."""
    used = summary.manifest
    return (
        f"\nFirst {used.data.images} CIFAR-10 test images, ε = {round(used.eps * 255)}/255 (L∞), "
        f"{stem(used.classifier.name)}; mean of {summary.rows[-1].runs} "
        f"runs ± standard error over images, seed {used.seed}; {used.machine['device']}, "
        f"torch {used.machine['torch']}."
    )


def informed() -> str:
    """README: one line a defense, from no attack to the strongest."""
    summary = read(MEASURED)
    plain, stronger = (attack.name for attack in summary.manifest.attacks[:2])
    columns = {NONE: "natural", plain: "ignorant (PGD-20)", stronger: "PGD-100 + STE + EOT-10",
               SUITE: f"`{SUITE}`"}  # fmt: skip
    lines = [
        [display_defense(defense), *(accuracy(_row(summary, defense, attack)) for attack in columns)]
        for defense in _defenses(summary)
    ]
    return "\n".join(
        [
            *table(["accuracy in %", *columns.values()], lines),
            f"{footnote(summary)} {_audited()}",
        ]
    )


def _audited() -> str:
    """Which of these defenses was audited, and by which checks."""
    audit = recorded.read(AuditRecord, "audit-cifar10-resnet18.json")
    names = [flag.name for flag in audit.flags]
    passed = all(flag.outcome == "pass" for flag in audit.flags)
    return (
        f"Of these, {display_defense(audit.defense)} alone was [audited](docs/attacks.md#the-audit), on "
        f"{audit.n} images and by {len(names)} of today's {len(TITLES)} checks, {names[0]} to {names[-1]}"
        f"{', which all passed' if passed else ''}."
    )


def members() -> str:
    """Every attack of the run against every defense."""
    return _attacks_by_defense(read(MEASURED))


def explored() -> str:
    """What else was tried."""
    return _attacks_by_defense(read(EXPLORED))


def without() -> str:
    """What the suite leaves when one of its members is taken away."""
    whole = Evaluation.read(recorded.RESULTS / MEASURED)
    suite = next(attack for attack in whole.manifest.attacks if attack.name == SUITE)
    defenses = [defense.name for defense in whole.manifest.defenses]
    lines = []
    for left_out in (None, *(threat.name for threat in suite.threats)):
        kept = tuple(threat for threat in suite.threats if threat.name != left_out)
        names = {NONE, *(threat.name for threat in kept)}
        less = replace(
            whole,
            manifest=replace(whole.manifest, attacks=(AttackId(name=SUITE, threats=kept),)),
            records=[record for record in whole.records if record.attack in names],
            seconds={},
        )
        found = EvaluationSummary.of(less)
        left = [f"{100 * _row(found, defense, SUITE).mean:.2f}" for defense in defenses]
        lines.append([(left_out or "nothing").removeprefix(f"{SUITE}/"), *left])
    return "\n".join(table([f"{SUITE} without", *map(display_defense, defenses)], lines))


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One red flag of an audit."""

    name: str
    title: str
    outcome: str
    figures: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """Of what an audit was made with, the seed."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """What `vqshield audit` wrote; given: the attacks that were audited."""

    classifier: str
    defense: str
    given: tuple[str, ...]
    norm: str
    eps: float
    n: int
    settings: AuditSettings
    seconds: float
    machine: Machine
    flags: tuple[Flag, ...]


def audits() -> str:
    """The recorded audits side by side."""
    paths = sorted(recorded.RESULTS.glob("audit-*.json"))
    records = [recorded.read(AuditRecord, path.name) for path in paths if path.name != FAKES]
    heads = [
        f"{display_defense(record.defense)}, {stem(record.classifier)}, N = {record.n}" for record in records
    ]
    lines = [f"| | | {' | '.join(heads)} |", "|---" * (2 + len(records)) + "|"]
    for flags in zip(*(record.flags for record in records), strict=True):
        found = [f"**{flag.outcome}**: {'; '.join(_figures(flag.figures))}" for flag in flags]
        lines.append(f"| {flags[0].name} | {flags[0].title} | {' | '.join(found)} |")
    for record in records:
        lines.append(
            f"\n{record.classifier}: attacks {', '.join(record.given)}, {record.norm} "
            f"ε = {round(record.eps * 255)}/255, seed {record.settings.seed}, "
            f"{record.seconds:.0f} s on {record.machine['device']} ({record.machine['processor']}), "
            f"torch {record.machine['torch']}."
        )
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class FakeRow:
    """One audit of a fake, or of an honest model."""

    name: str
    honest: bool
    defense: str
    classifier: str
    natural: float
    reported: float
    outcomes: Mapping[str, str]
    alarms: Mapping[str, Flag]
    flag: str | None = None
    figure: str | None = None

    @property
    def given_away_by(self) -> str:
        """The flag that tells a fake, and its figure."""
        if self.flag is None or self.figure is None:
            return ""
        shown = [text for text in _figures(self.alarms[self.flag].figures) if text.startswith(self.figure)]
        return f"{self.flag}: {shown[0] if shown else 'no gradient'}"


@dataclass(frozen=True, kw_only=True)
class FakesRecord:
    """What paper/research/audit_fakes.py wrote."""

    data: str
    images: int
    attacks: Mapping[str, str]
    settings: AuditSettings
    machine: Machine
    rows: tuple[FakeRow, ...]


MARKS = {"pass": "", "fail": "**F**", "suspicious": "**S**", "undecided": "?", "not run": "–",
         "too few images": "–"}  # fmt: skip


def fakes() -> str:
    """Which flags every fake raises, and every honest model."""
    record = recorded.read(FakesRecord, FAKES)
    flags = list(record.rows[0].outcomes)
    lines = []
    for row in sorted(record.rows, key=lambda row: row.honest):
        name = f"honest: {row.name}" if row.honest else row.name
        accuracies = [percent(row.natural), percent(row.reported)]
        marks = [MARKS[row.outcomes[flag]] for flag in flags]
        lines.append([name, *accuracies, *marks, row.given_away_by])
    heads = ["model", "natural", "attacked", *flags, "given away by"]
    return "\n".join([
        *table(heads, lines),
        f"\n{record.images} images of {record.data} and as many held out, {record.attacks['others']}, seed "
        f"{record.settings.seed}; accuracies in %, of which an honest model keeps little under attack; "
        f"{machine(record.machine)}. Written by paper/research/audit_fakes.py.",
    ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HonestAudit:
    """One audit of paper/research/audit_false_alarms.py."""

    defense: str
    images: int
    seed: int
    outcomes: Mapping[str, str]
    alarms: Mapping[str, Json]
    classifier: str = BUNDLED

    @property
    def model(self) -> str:
        """What a reader calls it."""
        if self.classifier != BUNDLED:
            return "trained adversarially"
        return "bare" if self.defense == "gaussian:sigma=0.0" else display_defense(self.defense)


@dataclass(frozen=True, kw_only=True)
class HonestRecord:
    """What paper/research/audit_false_alarms.py wrote."""

    data: str
    machine: Machine
    each: tuple[HonestAudit, ...]


def false_alarms() -> str:
    """How many audits of honest models raise an alarm, by model and number of images."""
    record = recorded.read(HonestRecord, HONEST)
    sizes = sorted({audit.images for audit in record.each})
    lines = []
    for model in dict.fromkeys(audit.model for audit in record.each):
        groups = [
            [audit for audit in record.each if (audit.model, audit.images) == (model, size)] for size in sizes
        ]
        lines.append([model, *(f"{sum(bool(a.alarms) for a in group)} of {len(group)}" for group in groups)])
    raised = [audit for audit in record.each if audit.alarms]
    names = [f"{'/'.join(audit.alarms)} of {audit.model} at N = {audit.images}" for audit in raised]
    earlier = sum(list(audit.outcomes) != list(TITLES) for audit in record.each)
    return "\n".join([
        *table(["alarms in audits of", *(f"N = {size}" for size in sizes)], lines),
        f"\n{len(raised)} of {len(record.each)} whole audits raised an alarm"
        f"{f': {listed(names)}' if raised else ''}. "
        f"Images of {record.data}, the bundled classifier but where it says otherwise, one seed an audit; "
        f"{machine(record.machine)}. "
        + (f"{earlier} of them are from before R13, R14 and today's rule of R10. " if earlier else "")
        + "Written by paper/research/audit_false_alarms.py.",
    ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Left:
    """What attacks leave, in shares."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f}"


@dataclass(frozen=True, kw_only=True)
class SuiteSubject:
    """A classifier behind the defense, under every member of the suites."""

    name: str
    classifier: str
    natural: Left
    members: Mapping[str, Left]
    candidates: Mapping[str, Left]
    suites: Mapping[str, Left]
    without: Mapping[str, Mapping[str, Left]]
    with_candidate: Mapping[str, Left]


@dataclass(frozen=True, kw_only=True)
class SuiteRecord:
    """What paper/research/suite_members.py wrote."""

    data: str
    images: int
    defense: str
    eps: float
    runs: int
    seed: int
    precision: str
    environment: Machine
    rows: tuple[SuiteSubject, ...]


def suite_members(name: str = "suite-members.json") -> str:
    """What the suites leave, whole, without each member and with each candidate, of every subject."""
    record = recorded.read(SuiteRecord, name)
    subjects = record.rows
    lines = [["none (natural)", *(str(each.natural) for each in subjects)]]
    for version in subjects[0].suites:
        lines.append([f"`{version}`", *(str(each.suites[version]) for each in subjects)])
        for member in subjects[0].without[version]:
            lines.append([
                f"{version} without {member}", *(str(each.without[version][member]) for each in subjects)
            ])  # fmt: skip
    for member in subjects[0].members:
        lines.append([f"{member} alone", *(str(each.members[member]) for each in subjects)])
    for candidate in subjects[0].candidates:
        lines.append([f"{candidate}, alone", *(str(each.candidates[candidate]) for each in subjects)])
        more = [str(each.with_candidate[candidate]) for each in subjects]
        lines.append([f"adaptive-v2 with {candidate}", *more])
    heads = ["attack", *(f"{each.name} ({stem(each.classifier)})" for each in subjects)]
    return "\n".join([
        *table(heads, lines),
        f"\n{display_defense(record.defense)}, first {record.images} test images of {record.data}, "
        f"ε = {round(record.eps * 255)}/255 (L∞); accuracy in % ± standard error over images, {record.runs} "
        f"runs, seed {record.seed}, gradients in {record.precision}; {machine(record.environment)}.",
    ])  # fmt: skip


def _figures(figures: Mapping[str, Json]) -> list[str]:
    texts = []
    for name, value in figures.items():
        if isinstance(value, dict) and "pooled" in value:
            texts.append(f"{name} {value['pooled']:.2f} over {value['images']} images")
        elif isinstance(value, dict):
            texts.append(f"{name} {100 * value['mean']:.1f} ± {100 * value['standard_error']:.1f}")
        else:
            texts.append(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}")
    return texts


def _attacks_by_defense(summary: EvaluationSummary) -> str:
    defenses = _defenses(summary)
    lines = []
    for attack in dict.fromkeys(row.attack for row in summary.rows if row.defense in defenses):
        rows = [_row(summary, defense, attack) for defense in defenses]
        seconds = sum(row.seconds or 0 for row in rows) / len(rows)
        name = {NONE: "none (natural)", "adaptive": "minimum over all of these"}.get(attack, f"`{attack}`")
        level = rows[0].level if attack != NONE else ""
        lines.append([name, level, *map(accuracy, rows), f"{seconds:.0f}"])
    heads = ["attack", "level", *map(display_defense, defenses), "s"]
    return "\n".join([*table(heads, lines), f"{footnote(summary)} s: seconds a defense."])


def _defenses(summary: EvaluationSummary) -> list[str]:
    return [defense.name for defense in summary.manifest.defenses]


def _row(summary: EvaluationSummary, defense: str, attack: str) -> EvaluationRow:
    found = summary.row(defense, attack)
    assert found is not None, f"there is no row of {defense} under {attack}"
    return found


ATTACK_TABLES: dict[str, Callable[[], str]] = {
    "informed": informed,
    "attack-members": members,
    "attack-explored": explored,
    "attack-without": without,
    "attack-audits": audits,
    "attack-fakes": fakes,
    "attack-false-alarms": false_alarms,
    "attack-suite-members": suite_members,
}

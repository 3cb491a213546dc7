"""The tables of docs/attacks.md and of README.md about attacks, from the records in paper/results/."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import recorded
from recorded import Record
from tables import accuracy, listed, machine, percent, table
from vqshield.auditing import TITLES
from vqshield.classifiers import BUNDLED
from vqshield.core.display_names import NONE, display_defense
from vqshield.core.serialization import Json
from vqshield.evaluation.study import Evaluation
from vqshield.evaluation.summary import EvaluationRow, EvaluationSummary
from vqshield.runs.manifests import AttackId

MEASURED, EXPLORED = "attacks-cifar10-resnet18", "explored-attacks-cifar10-resnet18"
SUITE = "adaptive-v1"
FAKES = "audit-fakes.json"
HONEST = "false-alarms-audit.json"


def read(folder: str) -> EvaluationSummary:
    """A summary that `vqshield evaluate` wrote."""
    return recorded.read(EvaluationSummary, f"{folder}/summary.json")


def footnote(summary: EvaluationSummary) -> str:
    """What the values were measured with."""
    used = summary.manifest
    return (
        f"First {used.data.images} CIFAR-10 test images, ε = {round(used.eps * 255)}/255 (L∞), "
        f"{recorded.stem(used.classifier.name)}; mean of {summary.rows[-1].runs} "
        f"runs ± standard error over images, seed {used.seed}; {used.machine['device']}, "
        f"torch {used.machine['torch']}."
    )


def informed() -> str:
    """README: one line a defense, from no attack to the strongest."""
    summary = read(MEASURED)
    plain, stronger = (attack.name for attack in summary.manifest.attacks[:2])
    columns = {NONE: "clean", plain: "defense-unaware (PGD-20)", stronger: "PGD-100 + STE + EOT-10",
               SUITE: f"`{SUITE}`"}  # fmt: skip
    lines = [
        [display_defense(defense), *(_shown(_row(summary, defense, attack)) for attack in columns)]
        for defense in _defenses(summary)
    ]
    return table(["accuracy in %", *columns.values()], lines, f"{footnote(summary)} {_audited()}")


def _audited() -> str:
    """The audited defenses, and the checks of their audits."""
    audit = recorded.load("audit-cifar10-resnet18.json")
    names = [flag.name for flag in audit.flags]
    passed = all(flag.outcome == "pass" for flag in audit.flags)
    return (
        f"Of these, {display_defense(audit.defense)} alone was [audited](adaptive-attacks.md#the-audit), on "
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
    return table([f"{SUITE} without", *map(display_defense, defenses)], lines)


def audits() -> str:
    """The recorded audits side by side."""
    paths = sorted(recorded.RESULTS.glob("audit-*.json"))
    records = [recorded.load(path.name) for path in paths if path.name != FAKES]
    heads = [
        f"{display_defense(record.defense)}, {recorded.stem(record.classifier)}, N = {record.n}"
        for record in records
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


MARKS = {"pass": "", "fail": "**F**", "suspicious": "**S**", "undecided": "?", "not run": "–",
         "too few images": "–"}  # fmt: skip


def fakes() -> str:
    """Which flags every fake raises, and every honest model."""
    record = recorded.load(FAKES)
    flags = list(record.rows[0].outcomes)
    lines = []
    for row in sorted(record.rows, key=lambda row: row.honest):
        name = f"honest: {row.name}" if row.honest else row.name
        accuracies = [percent(row.natural), percent(row.reported)]
        marks = [MARKS[row.outcomes[flag]] for flag in flags]
        lines.append([name, *accuracies, *marks, _given_away_by(row)])
    heads = ["model", "clean", "attacked", *flags, "given away by"]
    return table(
        heads,
        lines,
        f"{record.images} images of {record.data} and as many held out, {record.attacks['others']}, seed "
        f"{record.settings.seed}; accuracies in %: expected to be low under attack; "
        f"{machine(record.machine)}. Written by paper/research/audit_fakes.py.",
    )


def _given_away_by(row: Record) -> str:
    """The flag that detects a fake, and its number."""
    flag, figure = row.get("flag"), row.get("figure")
    if flag is None or figure is None:
        return ""
    shown = [text for text in _figures(row.alarms[flag].figures) if text.startswith(figure)]
    return f"{flag}: {shown[0] if shown else 'no gradient'}"


def false_alarms() -> str:
    """How many audits of honest models raise an alarm, by model and number of images."""
    record = recorded.load(HONEST)
    sizes = sorted({audit.images for audit in record.each})
    lines = []
    for model in dict.fromkeys(map(_model, record.each)):
        groups = [
            [audit for audit in record.each if (_model(audit), audit.images) == (model, size)]
            for size in sizes
        ]
        lines.append([model, *(f"{sum(bool(a.alarms) for a in group)} of {len(group)}" for group in groups)])
    raised = [audit for audit in record.each if audit.alarms]
    names = [f"{'/'.join(audit.alarms)} of {_model(audit)} at N = {audit.images}" for audit in raised]
    earlier = sum(list(audit.outcomes) != list(TITLES) for audit in record.each)
    return table(
        ["alarms in audits of", *(f"N = {size}" for size in sizes)],
        lines,
        f"{len(raised)} of {len(record.each)} whole audits raised an alarm"
        f"{f': {listed(names)}' if raised else ''}. "
        f"Images of {record.data}, the bundled classifier but where it says otherwise, one seed an audit; "
        f"{machine(record.machine)}. "
        + (f"{earlier} of them are from before R13, R14 and today's rule of R10. " if earlier else "")
        + "Written by paper/research/audit_false_alarms.py.",
    )


def _model(audit: Record) -> str:
    """What a reader calls the model of an audit."""
    if audit.get("classifier", BUNDLED) != BUNDLED:
        return "trained adversarially"
    return "bare" if audit.defense == "gaussian:sigma=0.0" else display_defense(audit.defense)


def suite_members(name: str = "suite-members.json") -> str:
    """What the suites leave, whole, without each member and with each candidate, of every subject."""
    record = recorded.load(name)
    subjects = record.rows

    def line(title: str, left: Iterable[Record]) -> list[str]:
        return [title, *(accuracy(each.mean, each.error) for each in left)]

    lines = [line("none (clean)", (each.natural for each in subjects))]
    for version in subjects[0].suites:
        lines.append(line(f"`{version}`", (each.suites[version] for each in subjects)))
        for member in subjects[0].without[version]:
            left = (each.without[version][member] for each in subjects)
            lines.append(line(f"{version} without {member}", left))
    for member in subjects[0].members:
        lines.append(line(f"{member} alone", (each.members[member] for each in subjects)))
    for candidate in subjects[0].candidates:
        lines.append(line(f"{candidate}, alone", (each.candidates[candidate] for each in subjects)))
        more = (each.with_candidate[candidate] for each in subjects)
        lines.append(line(f"adaptive-v2 with {candidate}", more))
    heads = ["attack", *(f"{each.name} ({recorded.stem(each.classifier)})" for each in subjects)]
    return table(
        heads,
        lines,
        f"{display_defense(record.defense)}, first {record.images} test images of {record.data}, "
        f"ε = {round(record.eps * 255)}/255 (L∞); accuracy in % ± standard error over images, {record.runs} "
        f"runs, seed {record.seed}, gradients in {record.precision}; {machine(record.environment)}.",
    )


def _figures(figures: Mapping[str, Json]) -> list[str]:
    texts = []
    for name, value in figures.items():
        if isinstance(value, dict) and "pooled" in value:
            texts.append(f"{name} {value['pooled']:.2f} over {value['images']} images")
        elif isinstance(value, dict):
            texts.append(f"{name} {accuracy(value['mean'], value['standard_error'])}")
        else:
            texts.append(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}")
    return texts


def _attacks_by_defense(summary: EvaluationSummary) -> str:
    defenses = _defenses(summary)
    lines = []
    for attack in dict.fromkeys(row.attack for row in summary.rows if row.defense in defenses):
        rows = [_row(summary, defense, attack) for defense in defenses]
        seconds = sum(row.seconds or 0 for row in rows) / len(rows)
        name = {NONE: "none (clean)", "adaptive": "minimum over all of these"}.get(attack, f"`{attack}`")
        level = rows[0].level if attack != NONE else ""
        lines.append([name, level, *map(_shown, rows), f"{seconds:.0f}"])
    heads = ["attack", "level", *map(display_defense, defenses), "s"]
    return table(heads, lines, f"{footnote(summary)} s: seconds a defense.")


def _shown(row: EvaluationRow) -> str:
    return accuracy(row.mean, row.standard_error)


def _defenses(summary: EvaluationSummary) -> list[str]:
    return [defense.name for defense in summary.manifest.defenses]


def _row(summary: EvaluationSummary, defense: str, attack: str) -> EvaluationRow:
    found = summary.row(defense, attack)
    assert found is not None, f"no row of {defense} under {attack}"
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

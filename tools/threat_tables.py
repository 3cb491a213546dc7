"""The tables of docs/threats.md: who attacks, what to use, what is left of it.

A section whose measurement is not there yet is not there either: its text is made here, with its figures.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import recorded
from recorded import Classifier, Images, Machine
from tables import listed, machine, percent, percent_or_dash, signed, table

from vqshield.data.corruptions import list_corruptions
from vqshield.names import NONE, display_defense
from vqshield.reports.ladder import figure_text
from vqshield.studies.ladder import MAIN, LadderRow, LadderSummary, Subject

LADDERS = ("ladder-cifar10-resnet18/summary.json", "ladder-small-cifar10-hardened/summary.json")
"""The ladder of a full-size classifier, and until there is one, that of the bundled one."""
CORRUPTIONS = ("corruptions-cifar10-resnet18.json", "corruptions-small-cifar10.json")
FRONTIER, TWINS = "harden-frontier.json", "harden-twins.json"

THREATS = {
    "natural": "nobody: clean images",
    "transfer": "sends images made for other networks, knows nothing of yours",
    "ignorant": "has your weights, does not expect a shield",
    "score": "asks your model and sees its scores",
    "decision": "asks your model and sees its decisions alone",
    "grey-box": "knows the shield, trains a network of their own behind it",
    "white-box": "has your weights and knows the shield",
}
TITLES = {
    MAIN: "tuned shield",
    "light": "light tuned shield",
    "published": "shield as published",
    "noise": "Gaussian noise, tuned",
    "adversarial": "adversarial training",
    "bare": "nothing",
}
"""What the subjects of a ladder are called, and in which order they are shown."""


def _first(names: Sequence[str]) -> str | None:
    return next((name for name in names if (recorded.RESULTS / name).exists()), None)


def threats() -> str:
    """Who attacks, what kept most in this measurement, and what each subject keeps."""
    name = _first(LADDERS)
    if name is None:
        return ""
    summary = recorded.read(LadderSummary, name)
    subjects = sorted(summary.plan.subjects, key=lambda each: list(TITLES).index(each.name))
    rows = []
    for rung, words in THREATS.items():
        calls = sorted({row.calls for row in summary.rows if row.rung == rung}, key=lambda each: each or 0)
        if not calls:
            continue
        found = {each.name: summary.row(rung, each.name, calls[-1]) for each in subjects}
        asked = f" ({calls[-1]:,} calls an image)" if calls[-1] else ""
        best = _best(found) if rung != "natural" else []
        rows.append(
            [
                words + asked,
                listed(TITLES[each] for each in best) if best else "",
                *map(_cell, found.values()),
            ]
        )
    heads = ["who attacks", "kept most", *(TITLES[each.name] for each in subjects)]
    return "\n".join([*table(heads, rows), "", _made_with(summary, subjects)])


def _best(found: Mapping[str, LadderRow | None]) -> list[str]:
    """The subject that kept most, and those that are within two standard errors of the difference."""
    known = {name: row for name, row in found.items() if row is not None}
    top = max(known.values(), key=lambda row: row.mean)
    return [
        name
        for name, row in known.items()
        if (top.mean - row.mean) ** 2 <= 4 * (top.standard_error**2 + row.standard_error**2)
    ]


def _cell(row: LadderRow | None) -> str:
    return "–" if row is None else figure_text(row)


def _made_with(summary: LadderSummary, subjects: Sequence[Subject]) -> str:
    who = "; ".join(
        f"{TITLES[each.name]}: {recorded.stem(each.classifier)}"
        + ("" if each.defense == NONE else f" behind {display_defense(each.defense)}")
        for each in subjects
    )
    most = max(row.n for row in summary.rows)
    fewer = {row.rung: row.n for row in summary.rows if row.n < most}
    some = "".join(f", {rung}: {n:,}" for rung, n in fewer.items())
    missing = dict.fromkeys(each.rung for each in summary.plan.not_measured if each.rung in ("grey-box",))
    measured = {row.rung for row in summary.rows}
    left = [rung for rung in missing if rung not in measured]
    unsaid = f" Not measured with these: {listed(left)}." if left else ""
    white = next((row for row in summary.rows if row.rung == "white-box"), None)
    attack = "" if white is None else f" White-box: {_suite(white)}."
    return (
        f"Accuracy in % ± standard error over {most:,} images of {summary.data}{some}; ε = "
        f"{round(summary.plan.settings.eps * 255)}/255 (L∞), {summary.plan.settings.runs} draws behind each "
        f"figure, seed {summary.plan.settings.seed}; {machine(summary.machine)}. “Kept most” names the best, "
        f"and what is within two standard errors of it. {who[0].upper()}{who[1:]}.{attack}{unsaid}"
    )


def _suite(row: LadderRow) -> str:
    return f"`{row.attacks[0].partition('/')[0]}`" if row.attacks else "none"


@dataclass(frozen=True, kw_only=True)
class CorruptedRow:
    """Accuracy of one model under one corruption; severity 0: the images as they are."""

    subject: str
    defense: str
    kind: str
    severity: int
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Corrupted:
    """What research/corruptions.py wrote."""

    data: Images
    classifier: Classifier
    complete: bool
    environment: Machine
    rows: tuple[CorruptedRow, ...]


def corruptions() -> str:
    """Of every model: clean accuracy, the mean over the kinds at each severity, and each kind by itself."""
    name = _first(CORRUPTIONS)
    if name is None:
        return ""
    found = recorded.read(Corrupted, name)
    models = dict.fromkeys((row.subject, row.defense) for row in found.rows)
    bare = _mean(found.rows, "bare", NONE, list_corruptions())
    rows, gains = [], {}
    for subject, defense in models:
        own = [row for row in found.rows if (row.subject, row.defense) == (subject, defense)]
        cells = [
            statistics.fmean(row.accuracy for row in own if row.severity == severity) for severity in range(6)
        ]
        whole = _mean(found.rows, subject, defense, list_corruptions())
        gains[subject, defense] = whole - bare
        rows.append(
            [_model(subject, defense), *map(percent, cells), percent(whole), signed(100 * (whole - bare))]
        )
    heads = ["model", "clean", *(f"severity {number}" for number in range(1, 6)), "mean of 1 to 5", "to bare"]
    kinds = _kinds(found.rows, models)
    return "\n".join(
        [
            *table(heads, rows),
            f"\nAccuracy in %, mean over {len(list_corruptions())} kinds of corruption "
            f"(`vqshield.data.corruptions`); {found.data.images:,} CIFAR-10 test images, one draw an image; "
            f"{machine(found.environment)}.",
            f"\n{_helps(gains)} By kind, mean over severities:\n",
            *kinds,
        ]
    )


def _helps(gains: Mapping[tuple[str, str], float]) -> str:
    """Whether shields help, in a sentence."""
    shielded = {key: gain for key, gain in gains.items() if key[1] != NONE}
    if not shielded:
        return ""
    better = [key for key, gain in shielded.items() if gain > 0]
    if not better:
        return "No shield helps against corruptions on the whole: each costs accuracy there."
    if len(better) == len(shielded):
        return "Every shield measured helps against corruptions on the whole."
    return f"On the whole only {listed(_model(*key) for key in better)} helps against corruptions."


def _kinds(rows: Sequence[CorruptedRow], models: Mapping[tuple[str, str], None]) -> list[str]:
    lines = [
        [kind.replace("-", " "), *(percent(_mean(rows, *model, [kind])) for model in models)]
        for kind in list_corruptions()
    ]
    return table(["corruption", *(_model(*model) for model in models)], lines)


def _mean(rows: Sequence[CorruptedRow], subject: str, defense: str, kinds: Sequence[str]) -> float:
    return statistics.fmean(
        row.accuracy for row in rows if (row.subject, row.defense) == (subject, defense) and row.kind in kinds
    )


def _model(subject: str, defense: str) -> str:
    behind = "" if defense == NONE else f" behind {display_defense(defense)}"
    return f"{subject}{behind}" if subject == "bare" or behind else f"{subject}, no shield"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A shield, and how the classifier was fine-tuned behind it."""

    name: str
    defense: str
    method: str
    epochs: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is left on one rung."""

    mean: float
    standard_error: float
    vote: float
    n: int


@dataclass(frozen=True, kw_only=True)
class HardenedRow:
    """A subject of research/harden_frontier.py."""

    subject: Trained
    training: Mapping[str, object] | None
    training_seconds: float
    rungs: Mapping[str, Measured]

    def at(self, rung: str) -> float | None:
        """The share left, where it was measured."""
        found = self.rungs.get(rung)
        return None if found is None else found.mean

    @property
    def epochs(self) -> int:
        """Those that it was trained for."""
        return int(str((self.training or {}).get("epochs", self.subject.epochs)))

    @property
    def title(self) -> str:
        """Shield and method."""
        method = self.subject.method.partition(":")[0]
        trained = "as given" if not self.epochs else f"{method}, {self.epochs} epochs"
        return f"{display_defense(self.subject.defense)}: {trained}"


@dataclass(frozen=True, kw_only=True)
class Hardened:
    """What research/harden_frontier.py wrote."""

    classifier: Classifier
    images: int
    square_images: int
    machine: Machine
    rows: tuple[HardenedRow, ...]


def frontier() -> str:
    """Every shield that was tried, with its fine-tuning, and whether one keeps all that is wanted."""
    if not (recorded.RESULTS / FRONTIER).exists():
        return ""
    found = recorded.read(Hardened, FRONTIER)
    rungs = ("natural", "transfer", "ignorant", "square", "square5", "adaptive")
    heads = ["shield and fine-tuning", "natural", "vote of the draws", "transfer", "ignorant",
             "Square, 2,000 queries", "Square, 2,000 × 5 draws", "through the shield", "s"]  # fmt: skip
    lines = []
    for row in found.rows:
        natural = row.rungs.get("natural")
        shown = [percent_or_dash(row.at(rung)) for rung in rungs]
        shown.insert(1, "–" if natural is None else percent(natural.vote))
        lines.append([row.title, *shown, f"{row.training_seconds:.0f}"])
    return "\n".join(
        [
            "## Which shield, tuned how",
            "",
            f"{found.classifier.stem} fine-tuned behind each shield by `vqshield harden`. Transfer is from "
            "the classifier as it was before the tuning, the nearest relative that an attacker could have. "
            "“As given”: not tuned. Where there is no quantizer, the last attack goes through the noise.",
            "",
            *table(heads, lines),
            "",
            f"In %; first {found.images:,} CIFAR-10 test images, queries: {found.square_images}; s: seconds "
            f"of the fine-tuning, beside other work on the same GPU; {machine(found.machine)}.",
        ]
    )


def twins() -> str:
    """Adversarial training with and without a shield: is there a gain over the line without?"""
    if not (recorded.RESULTS / TWINS).exists():
        return ""
    found = recorded.read(Hardened, TWINS)
    points = {
        (row.subject.seed, row.subject.defense != NONE, row.subject.method): row
        for row in found.rows
        if {"natural", "adaptive"} <= set(row.rungs)
    }
    seeds = sorted({seed for seed, *_ in points})
    gains = {seed: gain for seed in seeds if (gain := _above_line(points, seed)) is not None}
    if not gains:
        return ""
    lines = [
        [str(row.subject.seed), display_defense(row.subject.defense), _budget(row), str(row.epochs),
         *(f"{percent(row.rungs[rung].mean)} ± {percent(row.rungs[rung].standard_error)}"
           for rung in ("natural", "adaptive"))]
        for row in sorted(points.values(), key=lambda row: (row.subject.seed, row.subject.defense != NONE))
    ]  # fmt: skip
    mean = statistics.fmean(gains.values())
    error = statistics.stdev(gains.values()) / len(gains) ** 0.5 if len(gains) > 1 else None
    each = ", ".join(f"{signed(100 * gain)} (seed {seed})" for seed, gain in gains.items())
    spread = "" if error is None else f" ± {100 * error:.1f}"
    verdict = (
        "Adversarial training through the shield is better than without it"
        if error is not None and mean > 2 * error
        else "Adversarial training through the shield is not better than without it"
    )
    return "\n".join(
        [
            "## Adversarial training through a shield",
            "",
            f"**{verdict}.** Networks that differ by the shield alone, at equal epochs and attack steps: "
            "without it at two budgets, which gives a line from more natural accuracy to more robustness, "
            "and with it. How many points of accuracy under the adaptive attack the trained shield lies "
            f"above (+) or below (−) that line, at its own natural accuracy: {each}; mean "
            f"{signed(100 * mean)}{spread}.",
            "",
            *table(["seed", "shield", "trained at ε", "epochs", "natural", "adaptive"], lines),
            "",
            f"In % ± standard error over images; {found.classifier.stem}, first {found.images:,} CIFAR-10 "
            f"test images; attacked at ε = 8/255 through the shield where there is one; "
            f"{machine(found.machine)}.",
        ]
    )


def _budget(row: HardenedRow) -> str:
    settings = dict(each.split("=") for each in row.subject.method.partition(":")[2].split(","))
    return settings["eps"]


def _above_line(points: Mapping[tuple[int, bool, str], HardenedRow], seed: int) -> float | None:
    """The mean distance, over the networks with a shield, to the line through those without, of one seed.

    Beyond the end of more natural accuracy there is no line: what lies there is left out. What has less than
    the other end is compared with that end.
    """
    own = [row for (which, *_), row in points.items() if which == seed]
    without = sorted(_point(row) for row in own if row.subject.defense == NONE)
    if len(without) < 2 or without[0][0] == without[-1][0]:
        return None
    (x0, y0), (x1, y1) = without[0], without[-1]
    shielded = [(max(x, x0), y) for x, y in (_point(row) for row in own if row.subject.defense != NONE)]
    gains = [y - (y0 + (y1 - y0) * (x - x0) / (x1 - x0)) for x, y in shielded if x <= x1]
    return statistics.fmean(gains) if gains else None


def _point(row: HardenedRow) -> tuple[float, float]:
    return row.rungs["natural"].mean, row.rungs["adaptive"].mean


THREAT_TABLES: dict[str, Callable[[], str]] = {
    "threats": threats,
    "threats-frontier": frontier,
    "threats-twins": twins,
    "threats-corruptions": corruptions,
}

"""The tables of docs/threats.md: who attacks, what to use, and accuracy under attack.

A section whose measurement is not there yet is not there either: its text is made here, with its numbers.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

import recorded
from recorded import Record
from tables import accuracy, listed, machine, percent, percent_or_dash, signed, table
from vqshield.core.display_names import NONE, display_defense
from vqshield.ladders.study import MAIN, LadderRow, LadderSummary, Subject
from vqshield_paper.corruptions import list_corruptions

LADDER = "ladder-cifar10-resnet18/summary.json"
CARDS = "resnet18-cifar10-"
CORRUPTIONS = "corruptions-cifar10-resnet18.json"
FRONTIER, TWINS = "harden-frontier.json", "harden-twins.json"

THREATS = {
    "natural": "none: clean images",
    "transfer": "sends images made for other classifiers",
    "ignorant": "has your weights, does not know the defense",
    "score": "queries your model, sees scores",
    "decision": "queries your model, sees classes",
    "grey-box": "knows the defense, trains a classifier behind it",
    "white-box": "has your weights, knows the defense (adaptive)",
}
TITLES = {
    MAIN: "swRD and noise, fine-tuned",
    "light": "swRD, fine-tuned",
    "published": "swRD as published",
    "noise": "Gaussian noise, fine-tuned",
    "strong-noise": "stronger noise, fine-tuned",
    "adversarial": "adversarial training",
    "bare": "no defense",
}
"""The display names of a ladder's subjects, in display order."""


def threats() -> str:
    """Who attacks, what kept most in this measurement, and what each subject keeps."""
    summary = _ladder()
    if summary is None:
        return ""
    subjects = _in_order(summary)
    rows = []
    for rung, words in THREATS.items():
        calls = sorted({row.calls for row in summary.rows if row.rung == rung}, key=lambda each: each or 0)
        if not calls:
            continue
        found = {each.name: summary.row(rung, each.name, calls[-1]) for each in subjects}
        asked = f" ({calls[-1]:,} calls per image)" if calls[-1] else ""
        best = best_of(found) if rung != "natural" else []
        rows.append(
            [
                words + asked,
                listed(TITLES[each] for each in best) if best else "",
                *map(_cell, found.values()),
            ]
        )
    heads = ["attacker", "best", *(TITLES[each.name] for each in subjects)]
    best = "“Best” includes what is within two standard errors of the best."
    return table(
        heads,
        rows,
        f"{_made_with(summary, subjects)} {best}",
    )


def protected() -> str:
    """README.md: a line for each of the main subjects, and four attackers."""
    summary = _ladder()
    if summary is None:
        return ""
    chosen = ("bare", MAIN, "noise", "adversarial")
    subjects = sorted(
        (each for each in summary.plan.subjects if each.name in chosen),
        key=lambda each: chosen.index(each.name),
    )
    most = summary.plan.settings.calls[-1]
    rungs = {"natural": "clean", "transfer": "transfer", "score": f"score queries ({most:,} calls)",
             "white-box": "adaptive white-box"}  # fmt: skip
    lines = [
        [
            TITLES[each.name],
            *(_cell(summary.row(rung, each.name, most if rung == "score" else None)) for rung in rungs),
        ]
        for each in subjects
    ]
    settings, images = summary.plan.settings, max(row.n for row in summary.rows)
    assert settings.eps is not None
    caption = (
        f"ResNet-18, {images:,} {summary.data} test images, ε = {round(settings.eps * 255)}/255 (L∞), mean "
        f"of {settings.runs} samples ± standard error over images; {machine(summary.machine)}. No number in "
        f"this table was audited, and the defense was selected on the same {images:,} images. "
        "[Settings and all attackers](docs/threats.md)."
    )
    return table(["accuracy in %", *rungs.values()], lines, caption)


def _ladder() -> LadderSummary | None:
    return recorded.read(LadderSummary, LADDER) if (recorded.RESULTS / LADDER).exists() else None


def _in_order(summary: LadderSummary) -> list[Subject]:
    return sorted(summary.plan.subjects, key=lambda each: list(TITLES).index(each.name))


def best_of(found: Mapping[str, LadderRow | None]) -> list[str]:
    """The subject that kept most, and those that are within two standard errors of the difference."""
    known = {name: row for name, row in found.items() if row is not None}
    top = max(known.values(), key=lambda row: row.mean)
    return [
        name
        for name, row in known.items()
        if (top.mean - row.mean) ** 2 <= 4 * (top.standard_error**2 + row.standard_error**2)
    ]


def _cell(row: LadderRow | None) -> str:
    return "–" if row is None else accuracy(row.mean, row.standard_error)


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
    unsaid = f" The {listed(left)} attacker of the ladder was not run." if left else ""
    first = {row.rung: row for row in reversed(summary.rows)}
    attack = ""
    if "transfer" in first:
        sources = [each.removeprefix("transfer/") for each in first["transfer"].attacks]
        attack += f" Transfer from {listed(each for each in sources if '+' not in each)}."
    if "white-box" in first:
        suite = first["white-box"].attacks[0].partition("/")[0]
        attack += f" Adaptive attack: `{suite}`."
    whole = {TITLES[each.name]: card for each in subjects if (card := _card(each.classifier)) is not None}
    all_images = ", ".join(f"{title} {percent(card.test_accuracy)}" for title, card in whole.items())
    if whole:
        count = next(iter(whole.values())).test_images
        attack += f" On all {count:,} test images, one sample each: {all_images}."
    return (
        f"Accuracy in % ± standard error over {most:,} images of {summary.data}{some}; ε = "
        f"{round(summary.plan.settings.eps * 255)}/255 (L∞), {summary.plan.settings.runs} samples, seed "
        f"{summary.plan.settings.seed}; {machine(summary.machine)}; a dash: not measured, or no defense to "
        f"overlook. No number in this table was audited, and the settings of both fine-tuned swRDs were "
        f"selected on the same {most:,} images. "
        f"{who[0].upper()}{who[1:]}.{attack}{unsaid}"
    )


def _card(classifier: str) -> Record | None:
    """The card of a classifier that was tuned for the ladder, if it is kept."""
    name = f"classifiers/{CARDS}{recorded.stem(classifier).removeprefix(CARDS)}.json"
    return recorded.load(name) if (recorded.RESULTS / name).is_file() else None


def corruptions() -> str:
    """Of every model: clean accuracy, the mean over the kinds at each severity, and each kind by itself."""
    if not (recorded.RESULTS / CORRUPTIONS).exists():
        return ""
    found = recorded.load(CORRUPTIONS)
    models: dict[str, list[Record]] = {}
    shields = {row.subject: row.defense for row in found.rows if row.defense != NONE}
    for row in found.rows:
        models.setdefault(_model(row, shields.get(row.subject)), []).append(row)
    kinds, bare = list_corruptions(), models["bare"]
    rows = []
    for title, own in models.items():
        by_severity = [_mean(own, [*kinds, "clean"], [severity]) for severity in range(6)]
        gain = _mean(own, kinds) - _mean(bare, kinds)
        rows.append([title, *map(percent, by_severity), percent(_mean(own, kinds)), signed(100 * gain)])
    heads = ["model", "clean", *(f"severity {number}" for number in range(1, 6)), "mean of 1 to 5", "to bare"]
    lines = [[_said(kind), *(percent(_mean(own, [kind])) for own in models.values())] for kind in kinds]
    return table(
        heads,
        rows,
        f"Accuracy in %, mean over {len(kinds)} kinds of corruption "
        f"(`vqshield_paper.corruptions`); {found.data.images:,} CIFAR-10 test images, one draw an image; "
        f"{recorded.stem(found.classifier.name)}; {machine(found.environment)}.",
        f"{_verdict(models)} By kind, mean over severities:",
        table(["corruption", *models], lines),
    )


def _verdict(models: Mapping[str, Sequence[Record]]) -> str:
    """Which shields help on average, and where each of them hurts."""
    kinds, bare, said = list_corruptions(), models["bare"], []
    for title, own in models.items():
        if own[0].defense == NONE:
            continue
        helps = _mean(own, kinds) > _mean(bare, kinds)
        worse = [_said(kind) for kind in kinds if _mean(own, [kind]) < _mean(bare, [kind])]
        text = f"**{title[0].upper()}{title[1:]}, the classifier {'gains' if helps else 'loses'} on average**"
        if worse and helps:
            text += f", but loses with {listed(worse)}"
        said.append(f"{text}.")
    return " ".join(said)


def _said(kind: str) -> str:
    return kind.replace("-", " ")


def _mean(rows: Sequence[Record], kinds: Sequence[str], severities: Sequence[int] = range(6)) -> float:
    return statistics.fmean(row.accuracy for row in rows if row.kind in kinds and row.severity in severities)


def _model(row: Record, shield: str | None) -> str:
    """What a model is called; shield: what it was tuned behind, which may not stand before it."""
    if row.defense != NONE:
        return f"tuned behind {display_defense(row.defense)}"
    if shield is not None:
        return f"tuned for {display_defense(shield)}, without it"
    return "adversarial training" if row.subject.startswith("adversarial") else row.subject


def frontier() -> str:
    """Every shield that was tried, with its fine-tuning."""
    if not (recorded.RESULTS / FRONTIER).exists():
        return ""
    found = recorded.load(FRONTIER)
    before = ("natural", "transfer", "ignorant")
    rungs = (*before, "square5")
    heads = ["shield and fine-tuning", "clean", "vote of the draws", "transfer", "defense-unaware",
             "Square, 2,000 × 5 draws", "s"]  # fmt: skip
    lines = []
    for row in found.rows:
        natural = row.rungs.get("natural")
        shown = [percent_or_dash(row.rungs[rung].mean if rung in row.rungs else None) for rung in rungs]
        shown.insert(1, "–" if natural is None else percent(natural.vote))
        lines.append([_title(row), *shown, f"{row.training_seconds:.0f}"])
    return "\n\n".join(
        [
            "## Which shield, tuned how",
            f"{recorded.stem(found.classifier.name)} fine-tuned behind each shield by `vqshield harden`. "
            "Transfer is from the classifier as it was before the tuning, alone and without changed sizes "
            "and places: a weaker attack than the ladder's. “As given”: not tuned.",
            table(heads, lines),
            f"In %; first {_images(found, *before)} CIFAR-10 test images (standard "
            f"errors up to {percent(_error(found, *before))}), queries: "
            f"{_images(found, 'square5')} (up to {percent(_error(found, 'square5'))}); a dash: not measured; "
            "s: seconds of the fine-tuning, with other work on the same GPU; "
            f"{machine(found.machine)}.",
        ]
    )


def _title(row: Record) -> str:
    """Shield and method."""
    method = row.subject.method.partition(":")[0]
    if method == "adversarial":
        method = f"adversarial at ε {_budget(row)}"
    trained = f"{method}, {_epochs(row)} epochs" if _epochs(row) else "as given"
    return f"{display_defense(row.subject.defense)}: {trained}"


def _epochs(row: Record) -> int:
    """Those that it was trained for."""
    return int((row.training or {}).get("epochs", row.subject.epochs))


def _budget(row: Record) -> str:
    """That of an adversarial training, as its method's text has it."""
    return dict(each.split("=") for each in row.subject.method.partition(":")[2].split(","))["eps"]


def _images(found: Record, *rungs: str) -> str:
    """How many images these rungs were measured on."""
    counts = {row.rungs[rung].n for row in found.rows for rung in rungs if rung in row.rungs}
    return " or ".join(f"{number:,}" for number in sorted(counts))


def _error(found: Record, *rungs: str) -> float:
    """The largest standard error of these rungs."""
    errors = [row.rungs[rung].standard_error for row in found.rows for rung in rungs if rung in row.rungs]
    return max(errors, default=0.0)


def twins() -> str:
    """Adversarial training with and without a shield: is there a gain over the line without?"""
    if not (recorded.RESULTS / TWINS).exists():
        return ""
    found = recorded.load(TWINS)
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
        [str(row.subject.seed), display_defense(row.subject.defense), _budget(row), str(_epochs(row)),
         *(accuracy(row.rungs[rung].mean, row.rungs[rung].standard_error)
           for rung in ("natural", "adaptive"))]
        for row in sorted(points.values(), key=lambda row: (row.subject.seed, row.subject.defense != NONE))
    ]  # fmt: skip
    mean = statistics.fmean(gains.values())
    error = statistics.stdev(gains.values()) / len(gains) ** 0.5 if len(gains) > 1 else None
    each = ", ".join(f"{signed(100 * gain)} (seed {seed})" for seed, gain in gains.items())
    spread = "" if error is None else f" ± {100 * error:.1f}"
    clear = error is not None and abs(mean) > 2 * error
    how = ("better" if mean > 0 else "worse") if clear else "not better"
    verdict = f"Adversarial training through the shield is {how} than without it"
    tried = {(shielded, _budget(row)) for (_, shielded, _), row in points.items()}
    untried = sorted(budget for shielded, budget in tried if not shielded and (True, budget) not in tried)
    unsaid = f" Through the shield, ε = {listed(untried)} was not trained." if untried else ""
    return "\n\n".join(
        [
            "## Adversarial training through a shield",
            f"**{verdict}.** Networks that differ by the shield alone, at equal epochs and attack steps: "
            "without it at two budgets, which gives a line from more clean accuracy to more robustness, "
            "and with it. How many points of accuracy under the adaptive attack the trained shield lies "
            f"above (+) or below (−) that line, at its own clean accuracy: {each}; mean "
            f"{signed(100 * mean)}{spread}.",
            table(["seed", "shield", "trained at ε", "epochs", "clean", "adaptive"], lines),
            f"In % ± standard error over images; {recorded.stem(found.classifier.name)}, first "
            f"{_images(found, 'natural')} CIFAR-10 test images, adaptive: "
            f"{_images(found, 'adaptive')}; attacked at ε = 8/255 by `adaptive-v1`, "
            f"gradients in {found.attack_precision}, and without a shield by the same "
            f"attacks without a surrogate; {machine(found.machine)}.{unsaid}",
        ]
    )


def _above_line(points: Mapping[tuple[int, bool, str], Record], seed: int) -> float | None:
    """The mean distance, over the networks with a shield, to the line through those without, of one seed.

    The line ends at the highest natural accuracy: points beyond it are left out. What has less than
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


def _point(row: Record) -> tuple[float, float]:
    return row.rungs["natural"].mean, row.rungs["adaptive"].mean


THREAT_TABLES: dict[str, Callable[[], str]] = {
    "threats": threats,
    "threats-readme": protected,
    "threats-frontier": frontier,
    "threats-twins": twins,
    "threats-corruptions": corruptions,
}

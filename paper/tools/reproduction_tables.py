"""What docs/reproduction.md says of the paper's tables, T1 to T5: the values, and what lies behind them."""

from collections.abc import Callable
from dataclasses import replace

import recorded
from attack_tables import MEASURED as ATTACKS
from attack_tables import SUITE
from attack_tables import read as read_attacks
from reproduction_values import (
    Whose,
    compared,
    images,
    mean_distance,
    most_left,
    part,
    row,
    rows,
    same_order,
    summary,
)
from tables import listed, percent, percent_or_dash, signed, table
from vqshield.core.display_names import BOUND_NAMES
from vqshield.reports.text import escape_markdown
from vqshield_paper.reports.markdown import render_markdown
from vqshield_paper.reproduction.model import PartSummary, Row, Summary, Value

BARE = "none"
# What the paper says of its own classifiers: test accuracy in percent.
PAPER_CLASSIFIERS = {"T1": 99.40, "T2": 95.16, "T3": 82.05, "T4": 84.23}


def measured(id: str) -> str:
    """A table as its report shows it, and whose values they are; one for every data set."""
    found = summary(id)
    return "\n\n".join(_measured(replace(found, parts=(each,))) for each in found.parts)


def _measured(found: Summary) -> str:
    text = render_markdown(found, {})
    for key, name in BOUND_NAMES.items():
        text = text.replace(escape_markdown(key), name)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    (only,) = found.parts
    if only.classifier and only.data:
        lines.append(
            f"\nImages of {only.data.name}, {recorded.stem(only.classifier.name)}, N = {images(only):,}. "
            f"{_order(only)}".rstrip()
        )
    return "\n".join(lines)


def _order(found: PartSummary) -> str:
    """Budgets are not defenses: values against them have no such order."""
    counts = {column.title: same_order(found, column.key) for column, _ in compared(found)}
    if any(each.x is not None for each in rows(found)):
        return ""
    shown = "; ".join(f"{title}, {alike} of {pairs}" for title, (alike, pairs) in counts.items())
    return f"Pairs of defenses in the same order as in the paper: {shown}."


# T1


def digits() -> str:
    """T1: how far each column is from the paper, and its accuracies."""
    found = part("T1")
    shown = []
    for column, deltas in compared(found):
        furthest = signed(max(deltas.values(), key=abs))
        shown.append(f"{column.title} {mean_distance(deltas):.1f} points on average, {furthest} at most")
    return (
        f"Distance from the paper: {'; '.join(shown)}. Attacks that know of the shield leave at most "
        f"{most_left(found):.1f} %."
    )


# T2


def protocol() -> str:
    """T2: the paper's protocol, and accuracy under it."""
    found = part("T2")
    furthest = max(abs(delta) for _, deltas in compared(found) for delta in deltas.values())
    best = {
        column.title: [_best(found, column.key, "paper").title, _best(found, column.key, "ours").title]
        for column, _ in compared(found)
        if column.key != "natural"
    }
    tops = "; ".join(f"{title}: {paper} in the paper, {ours} here" for title, (paper, ours) in best.items())
    return (
        f"No cell is further from the paper than {furthest:.1f} points. Best under attack: {tops}. Attacks "
        f"that know of the shield leave at most {most_left(found):.1f} %."
    )


def _best(found: PartSummary, key: str, whose: Whose) -> Row:
    """Of the rows that the paper has."""
    return max(
        (each for each in rows(found) if each.value(key).paper),
        key=lambda each: float(getattr(each.value(key), whose)),
    )


def _known(found: Row, key: str, whose: Whose) -> float:
    """A value that is there."""
    value = found.value(key)
    number = value.ours if whose == "ours" else value.paper
    assert number is not None, f"{found.title}, {key}, {whose}"
    return number


def _ours(found: Row, key: str) -> float:
    return _known(found, key, "ours")


# T3, T4


def codes() -> str:
    """T3: does k = 25 or k = 35 meet the paper's row?"""
    found = part("T3")
    target = row(found, "swrd:size=3,codes=35")
    columns = [column for column, _ in compared(found)]
    shown = []
    for title, each in (("k = 25", row(found, "swrd:size=3,codes=25")), ("k = 35", target)):
        deltas = [
            100 * (_known(each, column.key, "ours") - _known(target, column.key, "paper"))
            for column in columns
        ]
        shown.append(f"{title} {listed(map(signed, deltas))}")
    names = listed(column.title for column in columns)
    return (
        f"swRD against the paper's row for k = 35 ({names}): {'; '.join(shown)} points. The classifier has "
        f"{percent(_ours(row(found, BARE), 'natural'))} % on these images, the paper's "
        f"{PAPER_CLASSIFIERS['T3']:.2f} % on the test set. Attacks that know of the shield leave at most "
        f"{most_left(found):.1f} %."
    )


def readings() -> str:
    """T4: both readings of beta, and the stand-ins."""
    found = part("T4")
    one, other = (row(found, f"swrd:size=3,codes=30,beta={beta}") for beta in ("6502.5", "0.1"))
    apart = [
        f"{column.title} {signed(100 * (_ours(one, column.key) - _ours(other, column.key)))}"
        for column, _ in compared(found)
    ]
    assert found.classifier is not None
    assert found.data is not None
    return (
        f"β = 6502.5 less β = 0.1: {listed(apart)} points. Without a shield {found.classifier.name} "
        f"has {percent(_ours(row(found, BARE), 'natural'))} % on the {images(found):,} images of "
        f"{found.data.name}; the paper's classifier has {PAPER_CLASSIFIERS['T4']:.2f} % on ImageNet. "
        f"Attacks that know of the shield leave at most {most_left(found):.1f} %."
    )


# T5: attackers who know the defense, compared with those who ignore it

IGNORANT = {
    "ste_pgd": "pgd",
    "ste_autoattack": "autoattack",
    "eot_pgd": "pgd",
    "eot_autoattack": "autoattack",
}
"""By a column of T5, the column of T2 with the same attack made without the defense."""


def knowing() -> str:
    """T5 and T2: is accuracy higher under an attacker who knows the defense?"""
    informed, ignorant = part("T5", name="cifar10"), part("T2")
    titles = {column.key: column.title for column in informed.columns}
    plain = {each.defense: each for each in rows(ignorant)}
    lines = []
    for each in rows(informed):
        for key in IGNORANT if each.defense != BARE else ():
            # The paper's T2 does not have every setting of its T5.
            other = plain[each.defense].value(IGNORANT[key]) if each.defense in plain else None
            known = each.value(key)
            shares = (other and other.paper, known.paper, other and other.ours, known.ours)
            lines.append([each.title, titles[key], *map(percent_or_dash, shares)])
    threats = "defense-unaware (T2)", "adaptive (T5)"
    heads = [f"{source}: {threat}" for source in ("paper", "ours") for threat in threats]
    return table(
        ["accuracy in %", "attack", *heads],
        lines,
        f"Ours: N = {images(ignorant):,} defense-unaware, {images(informed):,} adaptive. "
        f"{_stronger(ignorant, informed)} {_elsewhere()}",
    )


def _stronger(ignorant: PartSummary, informed: PartSummary) -> str:
    """Three comparisons that an attack whose gradients work does not fail."""
    words = []
    for name, pairs in _pairs(ignorant, informed).items():
        ours = _less([(more.ours, less.ours) for more, less in pairs])
        paper = _less([(more.paper, less.paper) for more, less in pairs])
        words.append(f"{name}: {ours} here, {paper} in the paper")
    return f"Under which is accuracy lower? {'; '.join(words)}."


def _less(pairs: list[tuple[float | None, float | None]]) -> str:
    """In how many pairs the first is the smaller, of those where both are known."""
    known = [(more, less) for more, less in pairs if more is not None and less is not None]
    return f"{sum(more < less for more, less in known)} of {len(known)}"


def _pairs(ignorant: PartSummary, informed: PartSummary) -> dict[str, list[tuple[Value, Value]]]:
    """By what is compared: the attack that knows more or is stronger, and the other one."""
    defended = [each for each in rows(informed) if each.defense != BARE]
    plain = {each.defense: each for each in rows(ignorant)}
    return {
        "Attackers who know the shield against those who ignore it": [
            (each.value(key), plain[each.defense].value(other))
            for each in defended
            if each.defense in plain
            for key, other in IGNORANT.items()
        ],
        "AutoAttack against PGD": [
            (each.value(f"{kind}_autoattack"), each.value(f"{kind}_pgd"))
            for each in defended
            for kind in ("ste", "eot")
        ],
        "EOT against STE": [
            (each.value(f"eot_{attack}"), each.value(f"ste_{attack}"))
            for each in defended
            for attack in ("pgd", "autoattack")
        ],
    }


def _elsewhere() -> str:
    """swRD is in no row of T2 with this setting; it was attacked for docs/attacks.md."""
    attacks, defense = read_attacks(ATTACKS), "swrd:size=2,codes=15"
    left = {each.attack: each.mean for each in attacks.rows if each.defense == defense}
    plain, stronger = (attack.name for attack in attacks.manifest.attacks[:2])
    return (
        f"Of swRD (s=2, k=15), the first {attacks.manifest.data.images} images are in "
        f"[attacks.md](attacks.md): accuracy is {percent(left[plain])} % under defense-unaware PGD, "
        f"{percent(left[stronger])} % under PGD-100 with STE and EOT-10, and {percent(left[SUITE])} % under "
        f"`{SUITE}`."
    )


REPRODUCTION_TABLES: dict[str, Callable[[], str]] = {
    "reproduction-T1-cells": digits,
    "reproduction-T2-protocol": protocol,
    "reproduction-T3-codes": codes,
    "reproduction-T4-readings": readings,
    "reproduction-T5-knowing": knowing,
}

"""The table of docs/reproduction.md about T5: attackers who know the defense, beside those who ignore it."""

from collections.abc import Callable
from typing import Any

from attack_tables import MEASURED as ATTACKS
from attack_tables import SUITE
from attack_tables import read as read_attacks
from certificate_tables import percent, table
from reproduction_findings import BARE, shown_percent
from reproduction_records import Part, cell, images, part, row, rows
from vqshield.reproduction.accuracy import TITLES

IGNORANT = {
    "ste_pgd": "pgd",
    "ste_autoattack": "autoattack",
    "eot_pgd": "pgd",
    "eot_autoattack": "autoattack",
}
"""By a column of T5, the column of T2 with the same attack made without the defense."""

Cell = dict[str, Any]


def knowing() -> str:
    """T5 beside T2: does an attacker who knows the defense leave more?"""
    informed, ignorant = part("T5"), part("T2")
    both = {each["defense"] for each in rows(ignorant)} - {BARE}
    lines = []
    for each in rows(informed):
        for key in IGNORANT if each["defense"] in both else ():
            plain = cell(row(ignorant, each["defense"]), IGNORANT[key])
            known = cell(each, key)
            figures = [shown_percent(found[who]) for who in ("paper", "ours") for found in (plain, known)]
            lines.append([each["title"], TITLES[key], *figures])
    heads = ["accuracy in %", "attack", "paper: ignorant (T2)", "paper: informed", "ours: ignorant (T2)",
             "ours: informed"]  # fmt: skip
    return "\n".join(
        [
            *table(heads, lines),
            f"\n{_counts(ignorant, informed)} {_stronger(ignorant, informed)} {_elsewhere()}",
        ]
    )


def _counts(ignorant: Part, informed: Part) -> str:
    return f"Ours: N = {images(ignorant):,} ignorant, {images(informed):,} informed."


def _stronger(ignorant: Part, informed: Part) -> str:
    """Three comparisons that an attack whose gradients work does not fail."""
    words = []
    for name, pairs in _pairs(ignorant, informed).items():
        counts = []
        for who, where in (("ours", "here"), ("paper", "in the paper")):
            both = [(more[who], less[who]) for more, less in pairs]
            whole = [(more, less) for more, less in both if more is not None and less is not None]
            counts.append(f"{sum(more < less for more, less in whole)} of {len(whole)} {where}")
        words.append(f"{name}: {', '.join(counts)}")
    return f"Which leaves less? {'; '.join(words)}."


def _pairs(ignorant: Part, informed: Part) -> dict[str, list[tuple[Cell, Cell]]]:
    """By what is compared: the attack that knows more or is stronger, and the other one."""
    defended = [each for each in rows(informed) if each["defense"] != BARE]
    plain = {each["defense"]: each for each in rows(ignorant)}
    return {
        "Attackers who know the shield against those who ignore it": [
            (cell(each, key), cell(plain[each["defense"]], other))
            for each in defended
            if each["defense"] in plain
            for key, other in IGNORANT.items()
        ],
        "AutoAttack against PGD": [
            (cell(each, f"{kind}_autoattack"), cell(each, f"{kind}_pgd"))
            for each in defended
            for kind in ("ste", "eot")
        ],
        "EOT against STE": [
            (cell(each, f"eot_{attack}"), cell(each, f"ste_{attack}"))
            for each in defended
            for attack in ("pgd", "autoattack")
        ],
    }


def _elsewhere() -> str:
    """swRD is in no row of T2 with this setting; it was attacked for docs/attacks.md."""
    attacks, defense = read_attacks(ATTACKS), "swrd:size=2,codes=15"
    left = {each["attack"]: each["mean"] for each in attacks["rows"] if each["defense"] == defense}
    plain, stronger = (entry["name"] for entry in attacks["specification"]["attacks"][:2])
    return (
        f"Of swRD (s=2, k=15), the first {attacks['specification']['data']['images']} images are in "
        f"[attacks.md](attacks.md): ignorant PGD leaves {percent(left[plain])} %, PGD-100 with STE and "
        f"EOT-10 {percent(left[stronger])} %, `{SUITE}` {percent(left[SUITE])} %."
    )


INFORMED: dict[str, Callable[[], str]] = {
    "reproduction-T5-knowing": knowing,
}

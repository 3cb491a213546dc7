"""What was measured of each defense: the figures of `vqshield demo`, as the repository records them.

assets/demo.json is paper/results/demo.json, copied by paper/tools/update_docs.py so that an installed
package has it; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from vqshield.app.choices import Choice
from vqshield.core.files import parse_json
from vqshield.core.serialization import Json, from_plain
from vqshield.demo.study import DemoRow, DemoSummary


@dataclass(frozen=True, kw_only=True)
class Worth:
    """What a defense kept right, as fractions of n images, within eps (L∞).

    Attributes:
        natural, ignorant, adaptive: of clean images, and under the two attacks.
        attack: what the adaptive one was.
        audit: whether red flags were looked for.
        settings: those of the defense that was measured.
    """

    defense: str
    natural: float
    ignorant: float
    adaptive: float
    attack: str
    n: int
    runs: int
    eps: float
    audit: str
    settings: Mapping[str, Json]

    def measured(self, choice: Choice) -> bool:
        """Whether it was measured with these very settings."""
        return dict(self.settings) == choice.quantizer().settings()


def worth_of(choice: Choice) -> Worth:
    """The figures of a defense, whatever its settings."""
    summary = _recorded()
    rows = {row.threat: row for row in summary.rows if row.defense == choice.title}
    natural, ignorant, adaptive = (rows[threat] for threat in ("none", "ignorant", "adaptive"))
    return Worth(
        defense=choice.title,
        natural=natural.robust,
        ignorant=ignorant.robust,
        adaptive=adaptive.robust,
        attack=_attack_name(adaptive),
        n=adaptive.n,
        runs=adaptive.runs,
        eps=summary.epsilon,
        audit=summary.audit,
        settings=adaptive.settings,
    )


def _attack_name(row: DemoRow) -> str:
    return row.attack.replace("pgd", "PGD").replace("eot", "EOT")


@cache
def _recorded() -> DemoSummary:
    name = "demo.json"
    text = (resources.files("vqshield.app") / "assets" / name).read_bytes()
    return from_plain(DemoSummary, parse_json(text, name), name)

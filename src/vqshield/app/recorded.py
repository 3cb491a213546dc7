"""What `vqshield demo` measured of each defense, as the repository records it.

assets/demo.json is paper/results/demo.json, copied by paper/tools/update_docs.py so that an installed
package has it; a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from vqshield.app.choices import Choice
from vqshield.core.files import parse_json
from vqshield.core.serialization import from_plain
from vqshield.demo.study import DemoRow, DemoSummary, Threat


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The rows of one defense by threat, and the summary that they are from."""

    summary: DemoSummary
    rows: Mapping[Threat, DemoRow]

    def covers(self, choice: Choice) -> bool:
        """Whether it was measured with these very settings."""
        return dict(self.rows["none"].settings) == choice.quantizer().settings()


def recorded(choice: Choice) -> Recorded:
    """What was measured of a defense, with whichever settings."""
    summary = _summary()
    return Recorded(
        summary=summary, rows={row.threat: row for row in summary.rows if row.defense == choice.title}
    )


@cache
def _summary() -> DemoSummary:
    name = "demo.json"
    text = (resources.files("vqshield.app") / "assets" / name).read_bytes()
    return from_plain(DemoSummary, parse_json(text, name), name)

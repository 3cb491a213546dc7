"""How thorough an audit is."""

from dataclasses import dataclass, field

from vqshield.core import checks


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """How thorough: the defaults suit a GPU; QUICK ends in minutes on a CPU.

    Attributes:
        runs: draws behind every accuracy.
        batch: images that are attacked at once.
        probe: the short attack that knows the defense (R8).
        queries: of the black-box attack (R4).
        directions: of the finite differences (R10).
        draws: of the finite differences; a quarter of them serve R9.
        seed: decides every draw.
        rehearsal: True takes fewer images than `LEAST_IMAGES`, too; such an audit cannot pass.
    """

    runs: int = 10
    batch: int = 250
    probe: str = "pgd:steps=20,step=eps/10,eot=5,surrogate=soft,loss=margin,momentum=0.75,schedule=cosine"
    queries: int = 500
    directions: int = 16
    draws: int = 512
    seed: int = 0
    rehearsal: bool | None = field(default=None, metadata={"omit": True})

    def __post_init__(self) -> None:
        for name in ("runs", "batch", "queries", "directions"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("draws", self.draws, least=4)  # R9 takes a quarter of them
        checks.whole("seed", self.seed, least=0, below=2**63)


QUICK = AuditSettings(runs=5, batch=50, queries=100, directions=4, draws=32)

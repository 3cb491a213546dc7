"""How high and how thoroughly a ladder is climbed."""

from dataclasses import dataclass, field, replace

from vqshield.attacks import PRECISIONS
from vqshield.attacks.suites import expand, with_precision
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.ladders.black_box import BlackBoxAttack
from vqshield.ladders.rungs import RungName
from vqshield.runs.attack_study import AttackSettings

LEAST_CALLS = 100


@dataclass(frozen=True, kw_only=True)
class LadderSettings(AttackSettings):
    """How high and how thoroughly a ladder is climbed.

    Attributes:
        calls: model calls per image after which query attacks are reported, ascending; every sample counts.
        draws: samples per query; the attacker has the better result of them.
        query_precision: precision of the answers to query attacks, one of `vqshield.attacks.PRECISIONS`
            (default: float32); the images that they find are judged in float32.
        ignorant: the attack on the classifier without its shield.
        transfer, diversity: the attack on each source, and how often a source sees an image changed.
        suite: white-box suite or attack, also that of the grey-box attacker on their own network.
        own_arch: architecture of the grey-box attacker's network (default: not the attacked classifier's).
        own_epochs: epochs that the grey-box attacker's network is trained for.
        own_batch, own_seed: images per step of that training, and its seed.
        selection: samples that choose each image's strongest attack; others are reported.
    """

    calls: tuple[int, ...] = (1000, 5000, 10_000)
    draws: tuple[int, ...] = (1, 5)
    query_precision: str | None = field(default=None, metadata={"omit": True})
    ignorant: str = "pgd:steps=20,step=eps/10,surrogate=none"
    transfer: str = "pgd:steps=100,step=eps/10,momentum=1.0"
    diversity: float = 0.7
    suite: str = "adaptive-v2"
    own_arch: str | None = None
    own_epochs: int = 15
    own_batch: int = 512
    own_seed: int = 1
    selection: int = 10
    batch: int = 250

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("own_epochs", "own_batch"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("own_seed", self.own_seed, least=0, below=2**64)
        checks.real("diversity", self.diversity, most=1.0)
        ball = self.ball
        object.__setattr__(self, "eps", ball.eps)
        if not self.calls or sorted({*self.calls}) != list(self.calls):
            raise InvalidInputError(f"calls={self.calls} should be whole numbers that ascend, at least one")
        if self.query_precision is not None:
            checks.one_of("query_precision", self.query_precision, PRECISIONS)
        if not self.draws:
            raise InvalidInputError("draws are missing; give how many draws per query, as in 1 and 5")
        for name, numbers in (("calls", self.calls), ("draws", self.draws)):
            for number in numbers:
                checks.whole(name, number, least=1)
        fewest, most = self.calls[0], max(self.draws)
        if fewest < (needed := max(LEAST_CALLS, 10 * most)):
            raise InvalidInputError(
                f"calls={fewest} with draws={most} allows {fewest // most} queries per image, too few for a "
                f"query attack to mean anything; give at least {needed} calls"
            )
        for text in (self.ignorant, self.transfer, self.suite):
            expand(text, ball)
        if any(each.surrogate != NONE for each in expand(self.ignorant, ball)):
            raise InvalidInputError(f"ignorant={self.ignorant!r} knows the defense; give surrogate=none")

    @classmethod
    def quick(cls) -> "LadderSettings":
        """Under five minutes for 32 images and the bundled classifier on two CPU cores."""
        return cls(
            calls=(100, 500), suite="adaptive-v1:precision=tf32",
            transfer="pgd:steps=20,step=eps/10,momentum=1.0", runs=5, selection=5, own_epochs=1, batch=32,
        )  # fmt: skip

    def in_precision(self, precision: str) -> "LadderSettings":
        """The same attackers, each in that precision; one whose text names its own keeps it."""
        return replace(
            self,
            suite=with_precision(self.suite, precision),
            ignorant=with_precision(self.ignorant, precision),
            transfer=with_precision(self.transfer, precision),
            query_precision=None if precision == PRECISIONS[0] else precision,
        )

    def query_attacks(self, *, random: bool) -> tuple[BlackBoxAttack, ...]:
        """Both kinds, with every number of draws where draws differ, else with one."""
        kinds: dict[RungName, str] = {"score": "square", "decision": "rays"}
        attacks = []
        for rung, attack in kinds.items():
            for draws in self.draws if random else (1,):
                text = attack if draws == 1 else f"{attack}:eot={draws}"
                text = with_precision(text, self.query_precision or PRECISIONS[0])
                attacks.append(BlackBoxAttack(name=text, rung=rung, attack=text))
        return tuple(attacks)

"""The audit: ten checks of whether a robust accuracy can be believed, for any classifier and defense."""

import dataclasses
from collections.abc import Callable, MutableMapping, Sequence

from torch import Tensor, nn

from vqshield.attacks import Ball
from vqshield.auditing import flags
from vqshield.auditing.gradients import differences, expected_gradient
from vqshield.auditing.planting import plant_and_find
from vqshield.auditing.probes import Probes
from vqshield.auditing.results import PASS, Accuracy, Audit, Flag
from vqshield.auditing.settings import AuditSettings
from vqshield.defenses import Defense
from vqshield.draws import strongest
from vqshield.errors import InvalidInputError
from vqshield.plain import Json, from_plain, to_plain
from vqshield.suites import expand
from vqshield.threats import Threat

_WITH_GRADIENTS = ("ste", "eot", "adaptive")
_UNBOUNDED = 0.5
_GRADIENT_IMAGES = 24


def audit(
    classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor, *,
    attacks: Sequence[str], ball: Ball, settings: AuditSettings | None = None,
    report: Callable[[str], None] = lambda name: None, known: MutableMapping[str, Json] | None = None,
) -> Audit:  # fmt: skip
    """Judge the robust accuracy that these attacks (threats or suites, as text) would report.

    `report` is called with the name of each flag that is about to be measured. `known` is filled with what
    is measured, as JSON can hold it; given again, with everything else the same, it is not measured anew.
    """
    if not attacks:
        raise InvalidInputError("attacks should name at least one threat or suite, not none")
    chosen = settings or AuditSettings()
    probes = Probes(classifier, defense, images, labels, chosen, {} if known is None else known)
    return _Run(probes, attacks, ball, report).audit()


class _Run:
    def __init__(
        self, probes: Probes, attacks: Sequence[str], ball: Ball, report: Callable[[str], None]
    ) -> None:
        self.probes, self.texts, self.ball, self._report = probes, attacks, ball, report
        self.settings: AuditSettings = probes.settings
        self.given = self._threats(ball)

    def audit(self) -> Audit:
        self._report("the attacks given")
        natural = Accuracy.of(self.probes.natural())
        pairs = [self.probes.draws(threat) for threat in self.given]
        best, _ = strongest([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        accuracies = [Accuracy.of(pair[1]) for pair in pairs]
        reported = Accuracy.of(best)
        with_gradients = [
            (accuracy.mean, number)
            for number, accuracy in enumerate(accuracies)
            if self.given[number].level in _WITH_GRADIENTS
        ]
        main = self.given[min(with_gradients)[1]] if with_gradients else None
        found = [flags.below_natural(reported, natural), *self._others(reported, main)]
        found += self._varied(main) if main else self._unvaried()
        named = {threat.name: figure for threat, figure in zip(self.given, accuracies, strict=True)}
        ordered = tuple(flags.in_order(found))
        return Audit(
            passed=all(flag.outcome == PASS for flag in ordered), n=len(self.probes.images),
            natural=natural, reported=reported, attacks=named, flags=ordered,
        )  # fmt: skip

    def _others(self, reported: Accuracy, main: Threat | None) -> list[Flag]:
        """R4, R6, R8: beside attacks that use less, or more, than those given."""
        self._report("R4, R6, R8")
        quick, ball = self.settings, self.ball
        ignorant = self._accuracy("pgd:steps=20,surrogate=none", ball)
        square = self._accuracy(f"square:queries={quick.queries},eot=3", ball)
        noise = self._accuracy("noise", ball)
        probe = self._accuracy(quick.probe, ball)
        blind = {"transfer from the bare classifier": ignorant, "square": square}
        return [
            flags.without_gradients(reported if main else None, blind),
            flags.noise_is_weaker(noise, reported),
            flags.knowing_helps(reported, ignorant, probe, main is not None),
        ]

    def _varied(self, main: Threat) -> list[Flag]:
        """R1, R2, R3, R7, R9, R10: the strongest attack that uses gradients, with more and with less."""
        place = [threat.name for threat in self.given].index(main.name)
        usual = self.probes.accuracy(main)
        result = []
        self._report("R1")
        unbounded = self._threats(type(self.ball)(self._far()))[place]
        result.append(flags.unbounded(self.probes.accuracy(unbounded), self._far()))
        self._report("R2")
        steps = getattr(main.attack, "steps", None)
        if isinstance(steps, int) and steps >= 4:
            curve = [(part, self._with_steps(main, part)) for part in (steps // 4, steps // 2)]
            result.append(flags.monotone("R2", "steps", [*curve, (steps, usual)]))
        else:
            result.append(flags.not_run("R2", f"{main.name} has no steps, or too few to vary"))
        self._report("R3")
        eps, most = self.ball.eps, self.ball.most
        others = [each for each in (eps / 2, min(2 * eps, most)) if each != eps]
        sizes = {each: self.probes.accuracy(self._threats(type(self.ball)(each))[place]) for each in others}
        result.append(flags.monotone("R3", "eps", sorted({**sizes, eps: usual}.items())))
        self._report("R7")
        doubled = dataclasses.replace(main, eot=2 * main.eot)
        result.append(flags.draws_suffice(usual, self.probes.accuracy(doubled), main.eot))
        return [*result, self._noted("R9", main, self._planted), self._noted("R10", main, self._gradients)]

    def _noted(self, name: str, main: Threat, measure: Callable[[Threat], Flag]) -> Flag:
        """A flag that takes long, measured once."""
        self._report(name)
        key = f"{name} {main}"
        if key not in self.probes.known:
            self.probes.known[key] = to_plain(measure(main))
        return from_plain(Flag, self.probes.known[key], key)

    def _unvaried(self) -> list[Flag]:
        why = "no attack given uses gradients of the defense"
        return [flags.not_run(name, why) for name in ("R1", "R2", "R3", "R7", "R9", "R10")]

    def _planted(self, main: Threat) -> Flag:
        probes, options = self.probes, self.settings
        try:
            planted = plant_and_find(
                probes.classifier, probes.fresh("R9"), main, self.ball, probes.images[:_GRADIENT_IMAGES],
                inner=15, draws=options.draws // 4, batch=options.batch, seed=options.seed,
            )  # fmt: skip
        except InvalidInputError as reason:
            return flags.not_run("R9", str(reason))
        return flags.planted(planted.found, planted.valid, planted.total, planted.blindly)

    def _gradients(self, main: Threat) -> Flag:
        probes, options, step = self.probes, self.settings, self._visible()
        images, labels = probes.images[:_GRADIENT_IMAGES], probes.labels[:_GRADIENT_IMAGES]
        measured = differences(
            probes.classifier, probes.fresh("R10"), images, labels, step=step,
            directions=options.directions, draws=options.draws, batch=options.batch, seed=options.seed,
        )  # fmt: skip
        figures = {}
        for surrogate in dict.fromkeys([main.surrogate, "ste"]):
            gradient = expected_gradient(
                probes.classifier, probes.fresh("R10 gradient"), surrogate, images, labels,
                draws=options.draws,
            )  # fmt: skip
            figures[str(surrogate)] = measured.agreement(gradient)
        return flags.gradients_agree(figures[str(main.surrogate)].pooled, figures)

    def _threats(self, ball: Ball) -> list[Threat]:
        return [each for text in self.texts for each in expand(text, ball, seed=self.settings.seed)]

    def _accuracy(self, text: str, ball: Ball) -> Accuracy:
        return self.probes.accuracy(expand(text, ball, seed=self.settings.seed)[0])

    def _with_steps(self, main: Threat, steps: int) -> Accuracy:
        attack = dataclasses.replace(main.attack, steps=steps)  # type: ignore[type-var]
        return self.probes.accuracy(dataclasses.replace(main, attack=attack))

    def _far(self) -> float:
        """Half of the range in each value; in L2 what that comes to over the whole image."""
        values = self.probes.images[0].numel()
        return _UNBOUNDED if self.ball.norm == "linf" else float(_UNBOUNDED * values**0.5)

    def _visible(self) -> float:
        """A step of each value that is as long as the budget."""
        values = self.probes.images[0].numel()
        return self.ball.eps if self.ball.norm == "linf" else float(self.ball.eps / values**0.5)

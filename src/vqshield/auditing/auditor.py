"""The audit: checks of whether a robust accuracy can be believed, for any classifier and defense."""

import dataclasses
from collections.abc import Callable, MutableMapping, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from vqshield.attacks import Ball
from vqshield.auditing import flags
from vqshield.auditing.answers import ask_in_every_way
from vqshield.auditing.gradients import (
    Differences,
    differences,
    expected_gradient,
    gradients_wanted,
    sign_agreement,
)
from vqshield.auditing.planting import plant_and_find
from vqshield.auditing.probes import Probes
from vqshield.auditing.results import PASS, Accuracy, Agreement, Audit, Flag
from vqshield.auditing.settings import AuditSettings
from vqshield.defenses import Defense
from vqshield.draws import Draws, strongest
from vqshield.errors import InvalidInputError, NoGradientError
from vqshield.models import evaluating
from vqshield.plain import Json, from_plain, to_plain
from vqshield.suites import expand
from vqshield.surrogates import Surrogate
from vqshield.threats import Threat

PARTS = 10  # what an audit tells as it goes, at most
_WITH_GRADIENTS = ("ste", "eot", "adaptive")
_UNBOUNDED = 0.5
_GRADIENT_IMAGES = 24
_RULES = "by errors"  # folders of earlier versions hold flags that were decided by other rules: not reused
_VARIED = ("R1", "R2", "R3", "R7", "R9", "R10")  # of the strongest attack that uses gradients


def audit(
    classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor, *,
    attacks: Sequence[str], ball: Ball, settings: AuditSettings | None = None,
    report: Callable[[str], None] = lambda name: None, known: MutableMapping[str, Json] | None = None,
) -> Audit:  # fmt: skip
    """Judge the robust accuracy that these attacks (threats or suites, as text) would report.

    The classifier is put into evaluation mode, and back into its own at the end. `report` is called with the
    name of each flag that is about to be measured. `known` is filled with what is measured, as JSON can hold
    it; given again, with everything else the same, none of that is measured a second time.
    """
    if not attacks:
        raise InvalidInputError("attacks should name at least one threat or suite, not none")
    chosen = settings or AuditSettings()
    probes = Probes(classifier, defense, images, labels, chosen, {} if known is None else known)
    with evaluating(classifier):
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
        natural = self.probes.natural()
        pairs = [self.probes.draws(threat) for threat in self.given]
        left = [pair[1] for pair in pairs]
        reported, _ = strongest([pair[0] for pair in pairs], left)
        with_gradients = [
            (draws.mean, number)
            for number, draws in enumerate(left)
            if self.given[number].level in _WITH_GRADIENTS
        ]
        main = self.given[min(with_gradients)[1]] if with_gradients else None
        found = [flags.below_natural(reported, natural), *self._others(reported, main)]
        found += self._varied(main)
        found += [self._moved(natural, main), self._answers()]
        ordered = tuple(flags.in_order(found, len(self.probes.images)))
        return Audit(
            passed=all(flag.outcome == PASS for flag in ordered),
            n=len(self.probes.images),
            natural=Accuracy.of(natural),
            reported=Accuracy.of(reported),
            attacks={threat.name: Accuracy.of(draws) for threat, draws in zip(self.given, left, strict=True)},
            flags=ordered,
        )

    def _others(self, reported: Draws, main: Threat | None) -> list[Flag]:
        """R4, R6, R8: beside attacks that use less, or more, than those given."""
        self._report("R4, R6, R8")
        quick, ball = self.settings, self.ball
        ignorant = self._left("pgd:steps=20,surrogate=none", ball)
        square = self._left(f"square:queries={quick.queries},eot=3", ball)
        noise = self._left("noise", ball)
        probe = self._left(quick.probe, ball)
        blind = {"transfer from the bare classifier": ignorant, "square": square}
        why = self.probes.without_gradient
        if why is not None:
            return flags.without_any_gradient(why, blind)
        return [
            flags.without_gradients(reported if main else None, blind),
            flags.noise_is_weaker(noise, reported),
            flags.knowing_helps(reported, ignorant, probe, main is not None),
        ]

    def _varied(self, main: Threat | None) -> list[Flag]:
        """R1, R2, R3, R7, R9, R10: the strongest attack that uses gradients, with more and with less."""
        if self.probes.without_gradient is not None:
            return []  # they are not run, as _others says
        if main is None:
            why = "no attack given uses gradients of the defense"
            return [flags.not_run(name, why) for name in _VARIED]
        place = [threat.name for threat in self.given].index(main.name)
        usual = self.probes.left(main)
        result = []
        self._report("R1")
        unbounded = self._threats(type(self.ball)(self._far()))[place]
        result.append(flags.unbounded(self.probes.left(unbounded), self._far()))
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
        sizes = {each: self.probes.left(self._threats(type(self.ball)(each))[place]) for each in others}
        result.append(flags.monotone("R3", "eps", sorted({**sizes, eps: usual}.items())))
        self._report("R7")
        doubled = dataclasses.replace(main, eot=2 * main.eot)
        result.append(flags.draws_suffice(usual, self.probes.left(doubled), main.eot))
        return [*result, self._noted("R9", main, self._planted), self._noted("R10", main, self._gradients)]

    def _moved(self, natural: Draws, main: Threat | None) -> Flag:
        """R11: on the mirrored or the shifted images, whichever the model takes better."""
        self._report("R11")
        images = self.probes.images
        ways = {"mirrored": images.flip(3), "shifted": _shifted(images)}
        probes = {how: self.probes.on(moved, how) for how, moved in ways.items()}
        accuracies = {how: each.natural() for how, each in probes.items()}
        best = max(accuracies, key=lambda how: accuracies[how].mean)
        attacked = None
        if main is not None and self.probes.without_gradient is None:
            attacked = (self.probes.left(main), probes[best].left(main))
        return flags.as_good_when_moved(best, (natural, accuracies[best]), attacked)

    def _answers(self) -> Flag:
        """R12."""
        self._report("R12")
        probes, some = self.probes, slice(_GRADIENT_IMAGES)
        found = ask_in_every_way(
            probes.classifier, probes.fresh("R12"), probes.images[some], probes.labels[some],
            runs=self.settings.runs,
        )  # fmt: skip
        return flags.same_answers(found.differences, found.random, found.accuracies)

    def _noted(self, name: str, main: Threat, measure: Callable[[Threat], Flag]) -> Flag:
        """A flag that takes long, measured once."""
        self._report(name)
        key = f"{name} {_RULES} {main}"
        if key not in self.probes.known:
            self.probes.known[key] = to_plain(measure(main))
        return from_plain(Flag, self.probes.known[key], key)

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
        """R10, at the images and where the attack leads them; the identity for comparison at the images."""
        probes, labels = self.probes, self.probes.labels[:_GRADIENT_IMAGES]
        images = probes.images[:_GRADIENT_IMAGES]
        name = str(main.surrogate)
        try:
            with gradients_wanted():
                attacked = main(probes.classifier, probes.fresh("R10 attack"), images, labels)
            at_images = self._compared("R10", images, labels, [main.surrogate, "ste"])
            at_attacked = self._compared("R10 attacked", attacked, labels, [main.surrogate])
        except NoGradientError as why:
            return flags.no_gradient(str(why))
        places = {name: at_images[name], f"{name}, attacked": at_attacked[name]}
        signs = sign_agreement([(each.measured, each.gradient) for each in places.values()])
        others = {other: each.agreement for other, each in at_images.items() if other != name}
        return flags.gradients_agree({place: each.agreement for place, each in places.items()}, signs, others)

    def _compared(
        self, purpose: str, images: Tensor, labels: Tensor, surrogates: Sequence[str | Surrogate]
    ) -> dict[str, "_Compared"]:
        probes, options = self.probes, self.settings
        measured = differences(
            probes.classifier, probes.fresh(purpose), images, labels, step=self._visible(),
            directions=options.directions, draws=options.draws, batch=options.batch, seed=options.seed,
        )  # fmt: skip
        found = {}
        for surrogate in dict.fromkeys(surrogates):
            defense = probes.fresh(f"{purpose} gradient")
            halves = [
                expected_gradient(
                    probes.classifier, defense, surrogate, images, labels, draws=options.draws // 2
                )
                for _ in range(2)
            ]
            found[str(surrogate)] = _Compared(
                measured, (halves[0] + halves[1]) / 2, measured.agreement(halves)
            )
        return found

    def _threats(self, ball: Ball) -> list[Threat]:
        return [each for text in self.texts for each in expand(text, ball, seed=self.settings.seed)]

    def _left(self, text: str, ball: Ball) -> Draws:
        return self.probes.left(expand(text, ball, seed=self.settings.seed)[0])

    def _with_steps(self, main: Threat, steps: int) -> Draws:
        assert dataclasses.is_dataclass(main.attack)
        attack = dataclasses.replace(main.attack, steps=steps)
        return self.probes.left(dataclasses.replace(main, attack=attack))

    def _far(self) -> float:
        """Half of the range in each value; in L2 what that comes to over the whole image."""
        values = self.probes.images[0].numel()
        return _UNBOUNDED if self.ball.norm == "linf" else float(_UNBOUNDED * values**0.5)

    def _visible(self) -> float:
        """A step of each value that is as long as the budget."""
        values = self.probes.images[0].numel()
        return self.ball.eps if self.ball.norm == "linf" else float(self.ball.eps / values**0.5)


@dataclasses.dataclass(frozen=True)
class _Compared:
    """A surrogate's gradient beside what was measured."""

    measured: Differences
    gradient: Tensor
    agreement: Agreement


def _shifted(images: Tensor) -> Tensor:
    """By an eighth of their height and width, the border repeated."""
    height, width = images.shape[2:]
    down, right = max(1, height // 8), max(1, width // 8)
    return F.pad(images, (right, 0, down, 0), mode="replicate")[:, :, :height, :width]

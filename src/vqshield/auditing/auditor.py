"""The audit: checks of whether a robust accuracy can be believed, for any classifier and defense."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vqshield import surrogates
from vqshield.attacks import Ball
from vqshield.attacks.suites import expand
from vqshield.attacks.threats import Threat
from vqshield.auditing import flags
from vqshield.auditing.answers import First, ask_first, ask_in_every_way
from vqshield.auditing.gradients import (
    Differences,
    differences,
    expected_gradient,
    gradients_wanted,
    needed_draws,
    sign_agreement,
)
from vqshield.auditing.planting import plant_and_find
from vqshield.auditing.probes import Probes
from vqshield.auditing.results import FAIL, PASS, UNDECIDED, Agreement, Audit, Flag, Uncertain
from vqshield.auditing.settings import AuditSettings
from vqshield.auditing.slopes import Rescaled, jump, saturation
from vqshield.core.errors import InvalidInputError, NoGradientError
from vqshield.defenses import Defense
from vqshield.models.calling import evaluating
from vqshield.models.draws import Draws, strongest
from vqshield.quantization.noise import Draw, Stage
from vqshield.runs.manifests import ThreatId
from vqshield.runs.notes import Notes
from vqshield.surrogates import Surrogate

PARTS = len(flags.TITLES)  # what an audit reports as it goes
_WITH_GRADIENTS = ("ste", "eot", "adaptive")
_UNBOUNDED = 0.5
_GRADIENT_IMAGES = 24
_FINER = (1 / 4, 1 / 16)  # of the budget: R10's steps where the loss bends over all of it
_VARIED = ("R1", "R2", "R3", "R7", "R9", "R10")  # of the strongest attack that uses gradients


def audit(
    classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor, *,
    attacks: Sequence[str], ball: Ball, settings: AuditSettings | None = None,
    held_out: tuple[Tensor, Tensor] | None = None, report: Callable[[str], None] = lambda name: None,
    notes: Notes | None = None,
) -> Audit:  # fmt: skip
    """Judge the robust accuracy that these attacks (threats or suites, as text) would report.

    The classifier is put into evaluation mode, and back into its own at the end. `held_out` are images and
    labels that whoever made the model has not seen: R11 then compares with them too. `report` is called with
    the name of each check that is about to be measured, or cannot be. `notes` keep what takes long: given
    again, with everything else the same, none of that is measured a second time.
    """
    threats_of(attacks, ball)
    probes = Probes(
        classifier=classifier, defense=defense, images=images, labels=labels,
        settings=settings or AuditSettings(), notes=notes or Notes(),
    )  # fmt: skip
    with evaluating(classifier):
        return _Run(probes, attacks, ball, report, held_out).audit()


def threats_of(attacks: Sequence[str], ball: Ball, *, seed: int = 0) -> list[Threat]:
    """The attacks that spec strings name, one by one."""
    if not attacks:
        raise InvalidInputError("attacks should name at least one threat or suite, not none")
    return [each for text in attacks for each in expand(text, ball, seed=seed)]


class _Run:
    def __init__(
        self, probes: Probes, attacks: Sequence[str], ball: Ball, report: Callable[[str], None],
        held_out: tuple[Tensor, Tensor] | None,
    ) -> None:  # fmt: skip
        self.probes, self.texts, self.ball, self._report = probes, attacks, ball, report
        self.settings: AuditSettings = probes.settings
        self.given = self._threats(ball)
        self.held_out = None if held_out is None else probes.on(*held_out, "held out")

    def audit(self) -> Audit:
        self._report("R5, the attacks given")
        first = self._first()
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
        found += self._varied(main, reported)
        found += [self._moved(natural, main), self._answers(first), *self._slopes(main)]
        ordered = tuple(flags.in_order(found, len(self.probes.images)))
        return Audit(
            passed=all(flag.outcome == PASS for flag in ordered),
            n=len(self.probes.images),
            natural=Uncertain.of(natural),
            reported=Uncertain.of(reported),
            attacks={
                threat.name: Uncertain.of(draws) for threat, draws in zip(self.given, left, strict=True)
            },
            flags=ordered,
        )

    def _others(self, reported: Draws, main: Threat | None) -> list[Flag]:
        """R4, R6, R8: beside attacks that use less, or more, than those given."""
        quick, ball = self.settings, self.ball
        self._report("R4")
        ignorant = self._left("pgd:steps=20,step=eps/10,surrogate=none", ball)
        square = self._left(f"square:queries={quick.queries},eot=3", ball)
        self._report("R6")
        noise = self._left("noise", ball)
        self._report("R8")
        probe = self.probes.left(self._probe())
        blind = {"transfer from the bare classifier": ignorant, "square": square}
        why = self.probes.without_gradient
        if why is not None:
            return flags.without_any_gradient(why, blind)
        return [
            flags.without_gradients(reported if main else None, blind),
            flags.noise_is_weaker(noise, reported),
            flags.knowing_helps(reported, ignorant, probe, main is not None),
        ]

    def _varied(self, main: Threat | None, reported: Draws) -> list[Flag]:
        """R1, R2, R3, R7, R9, R10: the strongest attack that uses gradients, with more and with less."""
        if main is None or self.probes.without_gradient is not None:
            for name in _VARIED:
                self._report(name)
            if self.probes.without_gradient is not None:
                return []  # they are not run, as _others says
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
        result.append(self._noted("R9", main, self._planted))
        judged = self._noted("R10", main, self._gradients)
        return [*result, flags.nothing_more_to_find(judged, reported)]

    def _moved(self, natural: Draws, main: Threat | None) -> Flag:
        """R11: on the mirrored or the shifted images, whichever the model takes better; on held-out ones."""
        self._report("R11")
        images = self.probes.images
        ways = {"mirrored": images.flip(3), "shifted": _shifted(images)}
        probes = {how: self.probes.on(moved, self.probes.labels, how) for how, moved in ways.items()}
        accuracies = {how: each.natural() for how, each in probes.items()}
        best = max(accuracies, key=lambda how: accuracies[how].mean)
        attackable = main is not None and self.probes.without_gradient is None
        threats = [main] if main is not None and attackable else []
        attacked = [(self.probes.left(each), probes[best].left(each)) for each in threats]
        held_out: list[tuple[Draws, Draws]] = []
        if self.held_out is not None:
            held_out = [(natural, self.held_out.natural())]
            held_out += [(self.probes.left(each), self.held_out.left(each)) for each in threats]
        return flags.as_good_elsewhere(best, [(natural, accuracies[best]), *attacked], held_out)

    def _first(self) -> First:
        """The model's answers before any attack, for R12: about images with noise of the attacks' size."""
        images = self.probes.images[:_GRADIENT_IMAGES]
        draw = Draw(self.settings.seed, torch.arange(len(images), device=images.device))
        signs = draw.signs(Stage.ATTACK_START, 0, images[0].numel()).to(images.dtype).view_as(images)
        noisy = (images + self._visible() * signs).clamp(0, 1)
        return ask_first(self.probes.classifier, self.probes.fresh("R12"), noisy)

    def _answers(self, first: First) -> Flag:
        """R12."""
        self._report("R12")
        probes, some = self.probes, slice(_GRADIENT_IMAGES)

        def measure() -> Flag:
            found = ask_in_every_way(
                probes.classifier, probes.fresh("R12"), first, probes.images[some], probes.labels[some],
                runs=self.settings.runs,
            )  # fmt: skip
            return flags.same_answers(
                found.differences, found.random, found.accuracies, traces=found.traces, dropout=found.dropout
            )

        # Measured once: a model that was asked less in this process says less.
        return probes.notes.value(Flag, {"flag": "R12"}, measure)

    def _slopes(self, main: Threat | None) -> list[Flag]:
        """R13, R14."""
        self._report("R13")
        probes, some = self.probes, self.probes.images[:_GRADIENT_IMAGES]
        found = saturation(probes.classifier, probes.fresh("R13"), some)
        left = None
        attackable = main is not None and probes.without_gradient is None
        if main is not None and attackable and flags.flat_loss(found.flat, found.images) == FAIL:
            scaled = Rescaled(probes.classifier, max(found.lead, 1.0))
            rescaled = dataclasses.replace(probes, classifier=scaled, place="rescaled")
            left = (probes.left(main), rescaled.left(main))
        self._report("R14")
        moved = jump(
            probes.classifier, probes.fresh("R14"), some, step=self._visible(), seed=self.settings.seed
        )
        return [flags.not_flat(found.flat, found.images, found.lead, left), flags.continuous(moved)]

    def _noted(self, name: str, main: Threat, measure: Callable[[Threat], Flag]) -> Flag:
        """A flag that takes long, measured once."""
        self._report(name)
        of = {"flag": name, "attack": ThreatId.of(main)}
        return self.probes.notes.value(Flag, of, lambda: measure(main))

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
        """R10, at the images and where the attack leads them; the identity for comparison at the images.

        In steps as long as the budget, which show what an attack runs into; where these fail a gradient that
        does tell the direction, in shorter ones: over the whole budget a bare network's loss is no straight
        line.
        """
        probes, labels = self.probes, self.probes.labels[:_GRADIENT_IMAGES]
        images = probes.images[:_GRADIENT_IMAGES]
        name = str(main.surrogate)
        draws = needed_draws(probes.classifier, probes.fresh("R10 draws"), images, self.settings.draws)
        try:
            with gradients_wanted():
                attacked = main(probes.classifier, probes.fresh("R10 attack"), images, labels)
            places = [
                self._place(name, "R10", images, [main.surrogate, "ste"], draws),
                self._place(f"{name}, attacked", "R10 attacked", attacked, [main.surrogate], draws),
            ]
        except NoGradientError as why:
            return flags.no_gradient(str(why))
        coarse, signs = self._judged(places, self._visible())
        found = coarse
        if coarse.outcome in (FAIL, UNDECIDED) and flags.leads_somewhere(signs):
            for step in (share * self._visible() for share in _FINER):
                fine, _ = self._judged(places, step)
                if fine.outcome == PASS:
                    return flags.agree_in_small(coarse, fine, step)
                if fine.outcome == UNDECIDED:
                    found = dataclasses.replace(coarse, outcome=UNDECIDED, meaning=fine.meaning)
        return found

    def _place(
        self, name: str, purpose: str, images: Tensor, surrogates: Sequence[str | Surrogate], draws: int
    ) -> "_Place":
        """Images, and what each surrogate takes for the gradient of the expected loss there."""
        labels = self.probes.labels[: len(images)]
        gradients = {
            str(surrogate): [
                expected_gradient(
                    self.probes.classifier, defense, surrogate, images, labels, draws=draws // 2
                )
                for _ in range(2)
            ]
            for surrogate in dict.fromkeys(surrogates)
            for defense in [self.probes.fresh(f"{purpose} gradient")]
        }
        return _Place(name, purpose, images, labels, gradients, draws)

    def _judged(self, places: Sequence["_Place"], step: float) -> tuple[Flag, Uncertain]:
        """R10 in steps of that length; the attack's surrogate is each place's first."""
        probes, options = self.probes, self.settings
        measured = [
            differences(
                probes.classifier, probes.fresh(place.purpose), place.images, place.labels, step=step,
                directions=options.directions, draws=place.draws, batch=options.batch, seed=options.seed,
            )
            for place in places
        ]  # fmt: skip
        own: dict[str, Agreement] = {}
        others: dict[str, Agreement] = {}
        pairs: list[tuple[Differences, Tensor]] = []
        for place, found in zip(places, measured, strict=True):
            (_, halves), *more = place.gradients.items()
            own[place.name] = found.agreement(halves)
            pairs.append((found, (halves[0] + halves[1]) / 2))
            others |= {other: found.agreement(each) for other, each in more}
        signs = sign_agreement(pairs)
        return flags.gradients_agree(own, signs, others), signs

    def _threats(self, ball: Ball) -> list[Threat]:
        return threats_of(self.texts, ball, seed=self.settings.seed)

    def _left(self, text: str, ball: Ball) -> Draws:
        return self.probes.left(expand(text, ball, seed=self.settings.seed)[0])

    def _probe(self) -> Threat:
        """The short attack that knows the defense; with the identity where its surrogate cannot know that."""
        probe = expand(self.settings.probe, self.ball, seed=self.settings.seed)[0]
        if probe.surrogate == "none":
            return probe
        try:
            surrogates.get(probe.surrogate).check(self.probes.defense)
        except InvalidInputError:
            return dataclasses.replace(probe, surrogate="ste")
        return probe

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
class _Place:
    """Where gradients are compared, and the two halves of each surrogate's gradient there."""

    name: str
    purpose: str
    images: Tensor
    labels: Tensor
    gradients: dict[str, list[Tensor]]
    draws: int


def _shifted(images: Tensor) -> Tensor:
    """By an eighth of their height and width, the border repeated."""
    height, width = images.shape[2:]
    down, right = max(1, height // 8), max(1, width // 8)
    return F.pad(images, (right, 0, down, 0), mode="replicate")[:, :, :height, :width]

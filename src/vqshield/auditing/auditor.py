"""The audit: what each check measures, for any classifier and defense. The verdicts are in `flags`."""

from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace

import torch.nn.functional as F
from torch import Tensor, nn

from vqshield import surrogates
from vqshield.attacks import Ball
from vqshield.attacks.suites import expand
from vqshield.attacks.threats import Threat
from vqshield.auditing import flags, gradients
from vqshield.auditing.answers import Questions
from vqshield.auditing.planting import plant_and_find
from vqshield.auditing.probes import Probes
from vqshield.auditing.results import Agreement, Audit, AuditSettings, Flag, Uncertain
from vqshield.core.errors import InvalidInputError, NoGradientError
from vqshield.defenses import Defense
from vqshield.models.calling import evaluating
from vqshield.models.draws import Draws, strongest
from vqshield.runs.manifests import ThreatId
from vqshield.runs.notes import Notes
from vqshield.surrogates import Surrogate

PARTS = len(flags.TITLES)  # what an audit reports as it goes
_WITH_GRADIENTS = ("ste", "eot", "adaptive")
_UNBOUNDED = 0.5
_GRADIENT_IMAGES = 24
_FINER = (1 / 4, 1 / 16)  # of the budget: R10's steps where the loss bends over all of it
_VARIED = ("R1", "R2", "R3", "R7", "R9", "R10")
_Place = tuple[str, str, Tensor, dict[str, list[Tensor]]]
"""A name, a purpose, images at which gradients are compared, and two halves of each surrogate's there."""


def audit(
    classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor, *,
    attacks: Sequence[str], ball: Ball, settings: AuditSettings | None = None,
    held_out: tuple[Tensor, Tensor] | None = None, report: Callable[[str], None] = lambda name: None,
    notes: Notes | None = None,
) -> Audit:  # fmt: skip
    """Judge the robust accuracy under these attacks, threats or suites by spec string.

    The classifier is in evaluation mode meanwhile. `held_out` are images and labels that the maker of the
    model has not seen: R11 then compares with them too. `report` is called with the name of each check that
    is about to be measured, or cannot be. `notes` keep what takes long for another call that is the same.
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
    return [threat for spec in attacks for threat in expand(spec, ball, seed=seed)]


class _Run:
    def __init__(
        self, probes: Probes, attacks: Sequence[str], ball: Ball, report: Callable[[str], None],
        held_out: tuple[Tensor, Tensor] | None,
    ) -> None:  # fmt: skip
        self.probes, self.attacks, self.ball, self._report = probes, attacks, ball, report
        self.settings: AuditSettings = probes.settings
        self.threats = threats_of(attacks, ball, seed=self.settings.seed)
        self.few, self.few_labels = probes.images[:_GRADIENT_IMAGES], probes.labels[:_GRADIENT_IMAGES]
        self.held_out = None if held_out is None else probes.on(*held_out, "held out")
        # L2 and L1 budgets as steps of each value that come to the same length.
        self._per_value = 1.0 if ball.norm == "linf" else probes.images[0].numel() ** 0.5
        self._strongest: Threat | None = None

    @property
    def _main(self) -> Threat | None:
        """The strongest of the judged attacks that use gradients; None if the model has no gradient."""
        return None if self.probes.without_gradient is not None else self._strongest

    def audit(self) -> Audit:
        self._report("R5, the attacks given")
        questions = self._questions()
        natural = self.probes.natural()
        pairs = [self.probes.draws(threat) for threat in self.threats]
        attacked = [report for _, report in pairs]
        reported, _ = strongest([selection for selection, _ in pairs], attacked)
        tried = list(zip(self.threats, attacked, strict=True))
        with_gradients = [pair for pair in tried if pair[0].level in _WITH_GRADIENTS]
        if with_gradients:
            self._strongest = min(with_gradients, key=lambda pair: pair[1].mean)[0]
        found = [flags.below_natural(reported, natural), *self._others(reported), *self._varied(reported)]
        found += [self._moved(natural), self._answers(questions), *self._slopes()]
        ordered = tuple(flags.in_order(found, len(self.probes.images)))
        return Audit(
            passed=all(flag.outcome == "pass" for flag in ordered),
            n=len(self.probes.images),
            natural=Uncertain.of(natural),
            reported=Uncertain.of(reported),
            attacks={threat.name: Uncertain.of(draws) for threat, draws in tried},
            flags=ordered,
        )

    def _others(self, reported: Draws) -> list[Flag]:
        """R4, R6, R8: compared with attacks that use less, or more, than the judged ones."""
        self._report("R4")
        ignorant = self._left("pgd:steps=20,step=eps/10,surrogate=none")
        square = self._left(f"square:queries={self.settings.queries},eot=3")
        self._report("R6")
        noise = self._left("noise")
        self._report("R8")
        probe = self.probes.left(self._probe())
        blind = {"transfer from the bare classifier": ignorant, "square": square}
        knows = self._strongest is not None
        if (why := self.probes.without_gradient) is not None:
            return [flags.no_gradient(why, blind), flags.not_run("R6", why), flags.not_run("R8", why)]
        return [
            flags.without_gradients(reported if knows else None, blind),
            flags.noise_is_weaker(noise, reported),
            flags.knowing_helps(reported, ignorant, probe, knows),
        ]

    def _varied(self, reported: Draws) -> list[Flag]:
        """R1, R2, R3, R7, R9, R10: the strongest attack that uses gradients, with more and with less."""
        main = self._main
        if main is None:
            for name in _VARIED:
                self._report(name)
            why = self.probes.without_gradient
            ignorant = "no attack given uses gradients of the defense"
            missing = [flags.not_run(name, why or ignorant) for name in _VARIED]
            return missing if why is None else [*missing[:-1], flags.no_gradient(why)]  # R10 fails
        usual = self.probes.left(main)
        self._report("R1")
        far = _UNBOUNDED * self._per_value
        result = [flags.unbounded(self._within(main, far), far)]
        self._report("R2")
        steps = getattr(main.attack, "steps", None)
        if isinstance(steps, int) and steps >= 4:
            assert is_dataclass(main.attack)
            fewer = {part: replace(main.attack, steps=part) for part in (steps // 4, steps // 2)}
            curve = {part: self.probes.left(replace(main, attack=attack)) for part, attack in fewer.items()}
            result.append(flags.monotone("R2", "steps", [*curve.items(), (steps, usual)]))
        else:
            result.append(flags.not_run("R2", f"{main.name} has no steps, or too few to vary"))
        self._report("R3")
        eps = self.ball.eps
        others = [other for other in (eps / 2, min(2 * eps, self.ball.most)) if other != eps]
        sizes = {eps: usual, **{other: self._within(main, other) for other in others}}
        result.append(flags.monotone("R3", "eps", sorted(sizes.items())))
        self._report("R7")
        doubled = replace(main, eot=2 * main.eot)
        result.append(flags.draws_suffice(usual, self.probes.left(doubled), main.eot))
        result.append(self._noted("R9", main, self._planted))
        judged = self._noted("R10", main, self._gradients)
        return [*result, flags.nothing_more_to_find(judged, reported)]

    def _moved(self, natural: Draws) -> Flag:
        """R11: on the mirrored or the shifted images, whichever the model takes better; on held-out ones."""
        self._report("R11")
        images, main = self.probes.images, self._main
        ways = {"mirrored": images.flip(3), "shifted": _shifted(images)}
        moved = {how: self.probes.on(changed, self.probes.labels, how) for how, changed in ways.items()}
        accuracies = {how: probes.natural() for how, probes in moved.items()}
        best = max(accuracies, key=lambda how: accuracies[how].mean)

        def compared(others: Probes, accuracy: Draws) -> list[tuple[Draws, Draws]]:
            attacked = [] if main is None else [(self.probes.left(main), others.left(main))]
            return [(natural, accuracy), *attacked]

        elsewhere = compared(moved[best], accuracies[best])
        held_out = [] if self.held_out is None else compared(self.held_out, self.held_out.natural())
        return flags.as_good_elsewhere(best, elsewhere, held_out)

    def _questions(self) -> Questions:
        """R12, before any attack: answers for images with noise of the attacks' size."""
        noise = self._visible() * gradients.random_signs(self.few, seed=self.settings.seed)[0]
        return Questions(self.probes.classifier, self.probes.fresh("R12"), (self.few + noise).clamp(0, 1))

    def _answers(self, questions: Questions) -> Flag:
        """R12. Noted: a resumed audit calls the model less often, which shows less."""

        def measure() -> Flag:
            return flags.same_answers(questions.ask_again(self.few, self.few_labels, runs=self.settings.runs))

        self._report("R12")
        return self.probes.notes.value(Flag, {"flag": "R12"}, measure)

    def _slopes(self) -> list[Flag]:
        """R13, R14."""
        self._report("R13")
        probes, main = self.probes, self._main
        flat, lead = gradients.saturation(probes.classifier, probes.fresh("R13"), self.few)
        left = None
        if main is not None and flags.flat_loss(flat, len(self.few)) == "fail":
            scaled = gradients.Rescaled(probes.classifier, max(lead, 1.0))
            rescaled = replace(probes, classifier=scaled, place="rescaled")
            left = (probes.left(main), rescaled.left(main))
        self._report("R14")
        step, seed = self._visible(), self.settings.seed
        moved = gradients.jump(probes.classifier, probes.fresh("R14"), self.few, step=step, seed=seed)
        return [flags.not_flat(flat, len(self.few), lead, left), flags.continuous(moved)]

    def _noted(self, name: str, main: Threat, measure: Callable[[Threat], Flag]) -> Flag:
        self._report(name)
        of = {"flag": name, "attack": ThreatId.of(main)}
        return self.probes.notes.value(Flag, of, lambda: measure(main))

    def _planted(self, main: Threat) -> Flag:
        probes, options = self.probes, self.settings
        try:
            return flags.planted(
                plant_and_find(
                    probes.classifier, probes.fresh("R9"), main, self.ball, self.few,
                    inner=15, draws=options.draws // 4, batch=options.batch, seed=options.seed,
                )
            )  # fmt: skip
        except InvalidInputError as reason:
            return flags.not_run("R9", str(reason))

    def _gradients(self, main: Threat) -> Flag:
        """R10, at the images and where the attack leads them; the identity for comparison at the images.

        The steps are as long as the budget. If these fail a gradient that does predict the direction, they
        are shorter: over the whole budget a bare network's loss is not a straight line.
        """
        probes, name = self.probes, str(main.surrogate)
        draws = gradients.needed_draws(
            probes.classifier, probes.fresh("R10 draws"), self.few, self.settings.draws
        )
        try:
            with gradients.gradients_wanted():
                attacked = main(probes.classifier, probes.fresh("R10 attack"), self.few, self.few_labels)
            places = [
                self._place(name, "R10", self.few, [main.surrogate, "ste"], draws),
                self._place(f"{name}, attacked", "R10 attacked", attacked, [main.surrogate], draws),
            ]
        except NoGradientError as why:
            return flags.no_gradient(str(why))
        coarse, signs = self._agreement(places, draws, self._visible())
        found = coarse
        if coarse.outcome in ("fail", "undecided") and flags.leads_somewhere(signs):
            for step in (share * self._visible() for share in _FINER):
                fine, _ = self._agreement(places, draws, step)
                if fine.outcome == "pass":
                    return flags.agree_in_small(coarse, fine, step)
                if fine.outcome == "undecided":
                    found = replace(coarse, outcome="undecided", meaning=fine.meaning)
        return found

    def _place(
        self, name: str, purpose: str, images: Tensor, surrogates: Sequence[str | Surrogate], draws: int
    ) -> _Place:
        """Images, and each surrogate's gradient of the expected loss there."""
        halves = {}
        for surrogate in dict.fromkeys(surrogates):
            defense = self.probes.fresh(f"{purpose} gradient")
            halves[str(surrogate)] = [
                gradients.expected_gradient(
                    self.probes.classifier, defense, surrogate, images, self.few_labels, draws=draws // 2
                )
                for _ in range(2)
            ]
        return name, purpose, images, halves

    def _agreement(self, places: Sequence[_Place], draws: int, step: float) -> tuple[Flag, Uncertain]:
        """R10 in steps of that length, and the signs that agree; the first surrogate is the attack's."""
        probes, options = self.probes, self.settings
        own: dict[str, Agreement] = {}
        others: dict[str, Agreement] = {}
        pairs: list[tuple[gradients.Differences, Tensor]] = []
        for name, purpose, images, slopes in places:
            measured = gradients.differences(
                probes.classifier, probes.fresh(purpose), images, self.few_labels, step=step,
                directions=options.directions, draws=draws, batch=options.batch, seed=options.seed,
            )  # fmt: skip
            (_, halves), *more = slopes.items()
            own[name] = measured.agreement(halves)
            pairs.append((measured, (halves[0] + halves[1]) / 2))
            others |= {surrogate: measured.agreement(pair) for surrogate, pair in more}
        signs = gradients.sign_agreement(pairs)
        return flags.gradients_agree(own, signs, others), signs

    def _left(self, spec: str) -> Draws:
        return self.probes.left(expand(spec, self.ball, seed=self.settings.seed)[0])

    def _within(self, main: Threat, eps: float) -> Draws:
        """Under the attack with another budget."""
        place = [threat.name for threat in self.threats].index(main.name)
        threats = threats_of(self.attacks, type(self.ball)(eps), seed=self.settings.seed)
        return self.probes.left(threats[place])

    def _probe(self) -> Threat:
        """The short attack that knows the defense; with the identity if its surrogate does not fit."""
        probe = expand(self.settings.probe, self.ball, seed=self.settings.seed)[0]
        if probe.surrogate == "none":
            return probe
        try:
            surrogates.get(probe.surrogate).check(self.probes.defense)
        except InvalidInputError:
            return replace(probe, surrogate="ste")
        return probe

    def _visible(self) -> float:
        """A step of each value that is as long as the budget."""
        return self.ball.eps / self._per_value


def _shifted(images: Tensor) -> Tensor:
    """By an eighth of their height and width, the border repeated."""
    height, width = images.shape[2:]
    down, right = max(1, height // 8), max(1, width // 8)
    return F.pad(images, (right, 0, down, 0), mode="replicate")[:, :, :height, :width]

"""A threat: an attack, and how much it knows about the defense in front of the classifier.

pgd:steps=20,surrogate=none        ignorant: attacks the bare classifier
pgd:steps=20                       ste: through the defense, quantizer taken for the identity
pgd:steps=100,eot=10               eot: the same, averaged over ten draws a step
pgd:steps=60,eot=5,surrogate=soft  adaptive: gradients that know how quantizers work
square:queries=1000,eot=5          black-box: asks for answers only
rays:queries=1000,eot=5            black-box: asks for predicted classes only
"""

from dataclasses import dataclass, fields

from torch import Tensor, nn

from vqshield import attacks, surrogates
from vqshield.attacks import EOT, PRECISIONS, Attack, Ball, FastAnswers, FastGradients, QueryAttack
from vqshield.attacks.bases import InBasis, basis
from vqshield.attacks.eot import AVERAGES
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import Setting, parse_spec, refuse_unknown
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.surrogates import Surrogate

LEVELS = ("ignorant", "black-box", "white-box", "ste", "eot", "adaptive")
_BLACK_BOX = ("square", "noise", "rays")
_OWN = ("surrogate", "eot", "average", "basis", "precision")


@dataclass(frozen=True, kw_only=True)
class Threat:
    """An attack on a defended classifier.

    Args:
        name: what it is called in records.
        level: how much it knows, one of LEVELS.
        attack: which is run.
        surrogate: what the attacker takes for the defense's gradient, as Defended has it; "none": the
            attacker ignores the defense and attacks the bare classifier.
        eot: draws averaged in every step.
        average: what of them, "gradients" or "logits".
        basis: the directions that the attack searches in, a name of vqshield.attacks.bases.
        precision: what the classifier's gradients are computed in, one of `vqshield.attacks.PRECISIONS`. All
            but "float32" are the fast way: the gradients are those of `vqshield.attacks.FastGradients`, and
            images that are lost for certain take no more steps, unless the attacker ignores the defense.
            Answers by which such an attack chooses between images are float32 in any case. An attack that
            asks for answers alone gets those of `vqshield.attacks.FastAnswers`, which says when these are
            exact all the same.

    Raises:
        InvalidInputError: a setting that cannot work.

    Example:
        >>> from vqshield.attacks.threats import threat
        >>> chosen = threat("pgd:steps=2,eot=2", vq.attacks.Linf(8 / 255))
        >>> chosen.level
        'eot'
        >>> chosen(classifier, vq.SWRD(seed=0), images, labels).shape
        torch.Size([8, 3, 32, 32])
    """

    name: str
    level: str
    attack: Attack
    surrogate: str | Surrogate = "ste"
    eot: int = 1
    average: str = "gradients"
    basis: str = "pixels"
    precision: str = PRECISIONS[0]

    def __post_init__(self) -> None:
        checks.one_of("level", self.level, LEVELS)
        checks.one_of("precision", self.precision, PRECISIONS)
        checks.whole("eot", self.eot, least=1)
        checks.one_of("average", self.average, AVERAGES)
        if self.surrogate != "none":
            surrogates.get(self.surrogate)
        basis(self.basis)

    def __call__(
        self,
        classifier: nn.Module,
        defense: Defense | None,
        images: Tensor,
        labels: Tensor,
        *,
        drop_lost: bool = True,
    ) -> Tensor:
        """The adversarial images, found with draws of this defense.

        Args:
            classifier: images in [0, 1] → logits.
            defense: what stands before it; None is enough for a threat that ignores it (surrogate "none").
            images: float images in [0, 1].
            labels: their true classes, (B,), int64.
            drop_lost: whether images may stop early where this is a fast threat. False: all take all their
                steps, as for images that are meant for another model, which may not be lost there, and for a
                model whose answers depend on an image's place in the batch.
        """
        model = self.attacked_model(classifier, defense)
        may_leave = drop_lost and self.is_fast and self.surrogate != "none"
        return self.attack(model, images, labels, drop_lost=may_leave)

    def __repr__(self) -> str:
        """As dataclasses have it; the usual precision is left out, as seeds were derived from this text
        before there was another one.
        """
        shown = [each.name for each in fields(self) if each.name != "precision" or self.is_fast]
        return f"Threat({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def is_fast(self) -> bool:
        """Whether gradients, or the answers to an attack without them, are less than float32."""
        return self.precision != PRECISIONS[0]

    def in_precision(self, classifier: nn.Module) -> nn.Module:
        """The classifier, in the precision that this attack asks it in."""
        if not self.is_fast:
            return classifier
        answers_alone = isinstance(self.attack, QueryAttack)
        return (FastAnswers if answers_alone else FastGradients)(classifier, self.precision)

    def attacked_model(self, classifier: nn.Module, defense: Defense | None) -> nn.Module:
        """What the attack is run on: the classifier, with what this attacker knows of the defense."""
        model = self.in_precision(classifier)
        if self.surrogate != "none":
            if defense is None:
                raise InvalidInputError(
                    f"{self.name!r} attacks through a defense, and None was given; "
                    "give one, or a threat with surrogate=none"
                )
            model = Defended(model, defense, surrogate=self.surrogate)
            if self.eot > 1:
                model = EOT(model, draws=self.eot, average=self.average)
        if self.basis != "pixels":
            model = InBasis(model, self.basis)
        return model


def threat(text: str, ball: Ball, *, seed: int = 0) -> Threat:
    """A threat from text such as "pgd:steps=100,eot=10".

    Args:
        text: an attack's name; then its settings, those of the surrogate, surrogate, eot, average, basis,
            precision.
        ball: where it may move an image to.
        seed: the attack's.

    Raises:
        InvalidInputError: an unknown name or key, answered with the known ones.
    """
    name, settings = parse_spec(text)
    checks.one_of("attack", name, attacks.list_attacks())
    surrogate = str(settings.pop("surrogate", "ste"))
    choices = [*surrogates.list_surrogates(), "none"]
    checks.one_of("surrogate", surrogate, choices)
    gradient_settings = [] if surrogate == "none" else surrogates.known_settings(surrogate)
    attack_settings = [each for each in attacks.known_settings(name) if each != "seed"]
    refuse_unknown(name, settings, [*_OWN, *gradient_settings, *attack_settings])
    chosen: dict[str, dict[str, Setting]] = {"attack": {}, "surrogate": {}, "own": {}}
    for key, value in settings.items():
        place = "own" if key in _OWN else "surrogate" if key in gradient_settings else "attack"
        chosen[place][key] = value
    if chosen["surrogate"]:
        surrogate += ":" + ",".join(f"{key}={value}" for key, value in chosen["surrogate"].items())
    own = chosen["own"]
    eot = checks.whole("eot", own.get("eot", 1), least=1)
    average = checks.one_of("average", own.get("average", "gradients"), AVERAGES)
    searched = own.get("basis", "pixels")
    if not isinstance(searched, str):
        raise InvalidInputError(f"basis should be a name, not {type(searched).__name__}")
    return Threat(
        name=text,
        level=_level(name, surrogate, eot, searched),
        attack=attacks.create(name, ball, seed=seed, **chosen["attack"]),
        surrogate=surrogate,
        eot=eot,
        average=average,
        basis=searched,
        precision=checks.one_of("precision", own.get("precision", PRECISIONS[0]), PRECISIONS),
    )


def _level(attack: str, surrogate: str, eot: int, basis: str) -> str:
    if surrogate == "none":
        return "ignorant"
    if attack in _BLACK_BOX:
        return "black-box"
    if surrogate != "ste" or basis != "pixels":
        return "adaptive"
    return "eot" if eot != 1 else "ste"

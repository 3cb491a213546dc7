"""A threat: an attack, and how much it knows about the defense in front of the classifier.

pgd:steps=20,surrogate=none        ignorant: attacks the bare classifier
pgd:steps=20                       ste: through the defense, quantizer taken for the identity
pgd:steps=100,eot=10               eot: the same, averaged over ten draws a step
pgd:steps=60,eot=5,surrogate=soft  adaptive: gradients that know how quantizers work
square:queries=1000,eot=5          black-box: asks for answers only
"""

from dataclasses import dataclass

from torch import Tensor, nn

from vqshield import attacks, checks, surrogates
from vqshield.attacks import EOT, Attack, Ball
from vqshield.attacks.bases import InBasis, basis
from vqshield.attacks.eot import AVERAGES
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.settings import Setting, parse_spec, refuse_unknown
from vqshield.surrogates import Surrogate

LEVELS = ("ignorant", "black-box", "ste", "eot", "adaptive")
_BLACK_BOX = ("square", "noise")
_OWN = ("surrogate", "eot", "average", "basis")


@dataclass(frozen=True, kw_only=True)
class Threat:
    """An attack on a defended classifier.

    surrogate: what the attacker takes for the quantizer's gradient, as Defended has it; "none": the attacker
        ignores the defense and attacks the bare classifier.
    eot: draws averaged in every step; average: their "gradients" or "logits".
    basis: the directions that the attack searches in, a name of vqshield.attacks.bases.
    """

    name: str
    level: str
    attack: Attack
    surrogate: str | Surrogate = "ste"
    eot: int = 1
    average: str = "gradients"
    basis: str = "pixels"

    def __post_init__(self) -> None:
        checks.one_of("level", self.level, LEVELS)
        checks.whole("eot", self.eot, least=1)
        checks.one_of("average", self.average, AVERAGES)
        if self.surrogate != "none":
            surrogates.get(self.surrogate)
        basis(self.basis)

    def __call__(self, classifier: nn.Module, defense: Defense, images: Tensor, labels: Tensor) -> Tensor:
        """The adversarial images, found with draws of this defense."""
        model = classifier
        if self.surrogate != "none":
            model = Defended(classifier, defense, surrogate=self.surrogate)
            if self.eot > 1:
                model = EOT(model, draws=self.eot, average=self.average)
        if self.basis != "pixels":
            model = InBasis(model, self.basis)
        return self.attack(model, images, labels)


def threat(text: str, ball: Ball, *, seed: int = 0) -> Threat:
    """A threat as people type it, name:key=value,…; an unknown key is answered with the known ones."""
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
    own: dict[str, Setting] = chosen["own"]
    return Threat(
        name=text,
        level=_level(name, surrogate, own),
        attack=attacks.create(name, ball, seed=seed, **chosen["attack"]),
        surrogate=surrogate,
        **own,  # type: ignore[arg-type]
    )


def _level(attack: str, surrogate: str, own: dict[str, Setting]) -> str:
    if surrogate == "none":
        return "ignorant"
    if attack in _BLACK_BOX:
        return "black-box"
    if surrogate != "ste" or own.get("basis", "pixels") != "pixels":
        return "adaptive"
    return "eot" if own.get("eot", 1) != 1 else "ste"

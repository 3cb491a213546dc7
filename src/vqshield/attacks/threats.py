"""A threat: an attack, and how much it knows about the defense in front of the classifier.

pgd:steps=20,surrogate=none        ignorant: attacks the bare classifier
pgd:steps=20                       ste: through the defense, the quantizer replaced by the identity
pgd:steps=100,eot=10               eot: the same, averaged over ten draws per step
pgd:steps=60,eot=5,surrogate=soft  adaptive: gradients that know how quantizers work
square:queries=1000,eot=5          black-box: queries for logits
rays:queries=1000,eot=5            black-box: queries for predicted classes
"""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from vqshield import attacks, surrogates
from vqshield.attacks import EOT, PRECISIONS, Attack, Ball, QueryAttack
from vqshield.attacks.eot import AVERAGES
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec, refuse_unknown
from vqshield.defended import Defended
from vqshield.defenses import Defense
from vqshield.surrogates import Surrogate

LEVELS = ("ignorant", "black-box", "white-box", "ste", "eot", "adaptive")
_BLACK_BOX = ("square", "noise", "rays")
_OWN = ("eot", "average", "basis", "precision")


@dataclass(frozen=True, kw_only=True)
class Threat:
    """An attack on a defended classifier.

    Args:
        name: its name in records.
        level: how much it knows, one of LEVELS.
        attack: the attack.
        surrogate: the gradient used for the defense, as of `Defended`; "none": the attacker ignores the
            defense and attacks the bare classifier.
        eot: draws averaged in every step.
        average: "gradients" or "logits", as of `EOT`.
        basis: the directions that the attack searches, a name of vqshield.attacks.bases.
        precision: of the classifier's gradients, one of `vqshield.attacks.PRECISIONS`. All except "float32"
            are fast: gradients are those of `FastGradients`, logits for query attacks those of `FastAnswers`,
            and images stop that are misclassified for certain, unless the attacker ignores the defense. An
            attack always chooses between images by float32 logits.

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
        if self.basis != "pixels":
            attacks.basis(self.basis)

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
            classifier, images, labels: as of an `Attack`.
            defense: None suffices for a threat that ignores it (surrogate "none").
            drop_lost: whether images of a fast threat may stop early. False is for images that are meant for
                another model, and for a model whose logits depend on an image's place in the batch.
        """
        model = self.attacked_model(classifier, defense)
        may_leave = drop_lost and self.is_fast and self.surrogate != "none"
        return self.attack(model, images, labels, drop_lost=may_leave)

    def __repr__(self) -> str:
        """As of a dataclass, without the default precision: seeds are derived from this text."""
        shown = [field.name for field in fields(self) if field.name != "precision" or self.is_fast]
        return f"Threat({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def is_fast(self) -> bool:
        """Whether gradients, or logits for a query attack, are less precise than float32."""
        return self.precision != PRECISIONS[0]

    def in_precision(self, classifier: nn.Module) -> nn.Module:
        if not self.is_fast:
            return classifier
        fast = attacks.FastAnswers if isinstance(self.attack, QueryAttack) else attacks.FastGradients
        return fast(classifier, self.precision)

    def attacked_model(self, classifier: nn.Module, defense: Defense | None) -> nn.Module:
        """The model that the attack gets: the classifier, with what this attacker knows of the defense."""
        model = self.in_precision(classifier)
        if self.surrogate != "none":
            if defense is None:
                raise InvalidInputError(
                    f"{self.name!r} attacks through a defense: give one, or a threat with surrogate=none"
                )
            model = Defended(model, defense, surrogate=self.surrogate)
            if self.eot > 1:
                model = EOT(model, draws=self.eot, average=self.average)
        if self.basis != "pixels":
            model = attacks.InBasis(model, self.basis)
        return model


def threat(text: str, ball: Ball, *, seed: int = 0) -> Threat:
    """A threat from a spec string such as "pgd:steps=100,eot=10".

    The settings are the attack's, surrogate and the surrogate's, eot, average, basis and precision.
    """
    name, settings = parse_spec(text)
    checks.one_of("attack", name, attacks.list_attacks())
    surrogate = str(settings.pop("surrogate", "ste"))
    checks.one_of("surrogate", surrogate, [*surrogates.list_surrogates(), "none"])
    of_surrogate = [] if surrogate == "none" else surrogates.known_settings(surrogate)
    of_attack = [setting for setting in attacks.known_settings(name) if setting != "seed"]
    refuse_unknown(name, settings, ["surrogate", *_OWN, *of_surrogate, *of_attack])
    own: dict[str, Any] = {key: settings.pop(key) for key in _OWN if key in settings}
    gradient = [f"{key}={settings.pop(key)}" for key in [*settings] if key in of_surrogate]
    if gradient:
        surrogate += ":" + ",".join(gradient)
    return Threat(
        name=text,
        level=_level(name, surrogate, own.get("eot", 1), own.get("basis", "pixels")),
        attack=attacks.create(name, ball, seed=seed, **settings),
        surrogate=surrogate,
        **own,
    )


def _level(attack: str, surrogate: str, eot: object, basis: object) -> str:
    if surrogate == "none":
        return "ignorant"
    if attack in _BLACK_BOX:
        return "black-box"
    if surrogate != "ste" or basis != "pixels":
        return "adaptive"
    return "eot" if eot != 1 else "ste"

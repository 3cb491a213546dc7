"""What a step of training lowers: which images it shows the network behind its shield, and which loss.

natural      the images as they are
noise        the images with Gaussian noise, which comes before the shield
adversarial  images that an attack moved, found through the shield or without it (PGD or TRADES)
consistency  several draws of the shield on the images as they are, which are to agree
splitting    the same, weighed for vq.Splitting, whose votes the exact L1 certificate counts

All randomness follows from the seed and the number of the step, so that a resumed run repeats it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vqshield import surrogates
from vqshield.attacks import Linf
from vqshield.core import checks
from vqshield.core.display_names import NONE
from vqshield.core.errors import InvalidInputError
from vqshield.core.settings import parse_spec, refuse_unknown, setting_names
from vqshield.defended import Defended
from vqshield.defenses import Defense, GaussianNoise, Splitting
from vqshield.models.calling import differ, evaluating
from vqshield.quantization.noise import Draw, Stage
from vqshield.training.consistency import consistency_loss
from vqshield.training.shielding import TrainingShield, shield_seed

LOSSES = ("pgd", "trades")
BARE = "none"
"""The surrogate of an attack that leaves the shield out."""

LossAndHits = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """What an objective works with.

    network: float images in [0, 1] → logits, in the precision of the run.
    entropy: shielded images, bytes or floats, and labels → mean cross-entropy and the number of right
        answers; compiled where the run asks for it.
    """

    network: nn.Module
    entropy: Callable[[Tensor, Tensor], LossAndHits]
    shield: TrainingShield | None
    label_smoothing: float
    seed: int

    def shielded(self, images: Tensor, *, step: int) -> Tensor:
        """The images as the network sees them in this step; the same draw for all images given in it."""
        return images if self.shield is None else self.shield.training(images, step=step)


class Objective(ABC):
    """A way to train, with its settings; it keeps no state from one step to the next."""

    @abstractmethod
    def __call__(self, place: Workplace, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        """The loss of one batch of byte images, with its gradient, and how many answers were right."""

    def check(self, defense: Defense | None, image: Tensor) -> None:  # noqa: B027 - most take every defense
        """Raise InvalidInputError where this objective cannot be used behind such a defense.

        image: one of those to train on, (1, q, h, w), bytes.
        """


@dataclass(frozen=True, kw_only=True)
class Natural(Objective):
    """Cross-entropy of the images behind the shield."""

    def __call__(self, place: Workplace, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        return place.entropy(place.shielded(images, step=step), labels)


@dataclass(frozen=True, kw_only=True)
class Noisy(Objective):
    """Cross-entropy of images with Gaussian noise of deviation sigma on them, before the shield."""

    sigma: float = 0.06

    def __post_init__(self) -> None:
        checks.real("sigma", self.sigma, most=checks.MOST_NOISE)

    def __call__(self, place: Workplace, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        noisy = with_noise(images.float() / 255, self.sigma, seed=place.seed, step=step)
        return place.entropy(place.shielded(noisy, step=step), labels)


@dataclass(frozen=True, kw_only=True)
class Adversarial(Objective):
    """Adversarial training, L-inf: of the images that PGD finds in every step.

    loss: "pgd" trains on those images (Madry et al. 2018); "trades" on the clean ones, plus beta times how
        far the answers about both are apart (Zhang et al. 2019).
    eps: the budget; steps, step: of the attack, step=None being eps/4.
    beta: the weight of the second part of "trades".
    surrogate: what the attack takes for the shield's gradient ("soft:temperature=0.1"), with a fresh draw in
        every step; "none": it leaves the shield out, and its images are shown behind the shield all the same.
    sigma: Gaussian noise on the images of the loss, before the shield; 0 for none.
    """

    loss: str = "pgd"
    eps: float = 8 / 255
    steps: int = 7
    step: float | None = None
    beta: float = 6.0
    surrogate: str = "ste"
    sigma: float = 0.0

    def __post_init__(self) -> None:
        checks.one_of("loss", self.loss, LOSSES)
        Linf(self.eps)
        checks.whole("steps", self.steps, least=1)
        checks.real("beta", self.beta)
        checks.real("sigma", self.sigma, most=checks.MOST_NOISE)
        if self.step is not None:
            checks.real("step", self.step)
        if self.surrogate != BARE:
            surrogates.get(self.surrogate)

    def check(self, defense: Defense | None, image: Tensor) -> None:
        if defense is not None and self.surrogate != BARE:
            surrogates.get(self.surrogate).check(defense)

    def __call__(self, place: Workplace, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        clean = images.float() / 255
        found = self._attacked(place, clean, labels, step)
        if self.sigma:
            found = with_noise(found, self.sigma, seed=place.seed, step=step)
        if self.loss == "pgd":
            return place.entropy(place.shielded(found, step=step), labels)
        natural = place.network(place.shielded(clean, step=step))
        moved = place.network(place.shielded(found, step=step))
        entropy = F.cross_entropy(natural, labels, label_smoothing=place.label_smoothing)
        return entropy + self.beta * _divergence(moved, natural), (natural.argmax(1) == labels).sum()

    def _attacked(self, place: Workplace, images: Tensor, labels: Tensor, step: int) -> Tensor:
        """PGD, as in vqshield.attacks, without the checks that wait for a GPU in every step."""
        ball, length = Linf(self.eps), self.eps / 4 if self.step is None else self.step
        numbers = streams(images, step)
        uniforms = Draw(shield_seed(place.seed, "start"), numbers).uniforms(
            Stage.ATTACK_START, 0, images[0].numel()
        )
        moved = ball.start(images, uniforms.view_as(images))
        with evaluating(place.network):
            ask = self._asked(place)
            with torch.no_grad():
                natural = ask(images, streams(images, step * self.steps)) if self.loss == "trades" else None
            for number in range(self.steps):
                moved = moved.detach().requires_grad_()
                logits = ask(moved, streams(images, step * self.steps + number))
                apart = F.cross_entropy(logits, labels) if natural is None else _divergence(logits, natural)
                (slope,) = torch.autograd.grad(apart, moved)
                moved = ball.project(moved.detach() + length * ball.steepest(slope), images)
        return moved.detach()

    def _asked(self, place: Workplace) -> Callable[[Tensor, Tensor], Tensor]:
        if place.shield is None or self.surrogate == BARE:
            return lambda images, numbers: place.network(images)
        model = Defended(place.network, place.shield.attacked, surrogate=self.surrogate)
        return lambda images, numbers: model(images, streams=numbers)


@dataclass(frozen=True, kw_only=True)
class Consistent(Objective):
    """Several draws of the shield a step, that should be right and agree: what certificates of votes reward.

    draws: of each image in a step; as many times the work.
    agreement, entropy: what disagreement and unclear votes cost, see consistency_loss; 0 and 0 is "natural"
        with several draws a step.
    """

    draws: int = 2
    agreement: float = 10.0
    entropy: float = 0.5

    def __post_init__(self) -> None:
        checks.whole("draws", self.draws, least=2)
        checks.real("agreement", self.agreement)
        checks.real("entropy", self.entropy)

    def check(self, defense: Defense | None, image: Tensor) -> None:
        if defense is None or not _draws_differ(defense, image):
            raise InvalidInputError(
                f"method consistency makes draws of a random defense agree, and defense {_kind(defense)} "
                "does not draw; give one such as splitting:scale=0.87 or gaussian:sigma=0.25"
            )

    def __call__(self, place: Workplace, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        shown = place.shielded(images.repeat(self.draws, 1, 1, 1), step=step)
        logits = place.network(shown).view(self.draws, len(images), -1)
        loss = consistency_loss(
            logits, labels, agreement=self.agreement, entropy=self.entropy,
            label_smoothing=place.label_smoothing,
        )  # fmt: skip
        return loss, (logits[0].argmax(1) == labels).sum()


@dataclass(frozen=True, kw_only=True)
class SplittingVotes(Consistent):
    """Consistent draws of a Splitting, weighed as in docs/certificates.md; agreement=0: not made to agree."""

    agreement: float = 3.0
    entropy: float = 0.0

    def check(self, defense: Defense | None, image: Tensor) -> None:
        if not isinstance(defense, Splitting):
            raise InvalidInputError(
                "method splitting trains for the L1 certificate of --defense splitting:scale=0.87, not for "
                f"defense {_kind(defense)}; method consistency takes any random defense"
            )


def _kind(defense: Defense | None) -> str:
    """As an error names it."""
    return NONE if defense is None else type(defense).__name__


@torch.no_grad()
def _draws_differ(defense: Defense, image: Tensor) -> bool:
    """Whether any of a few draws of the defense on an image differs from the first."""
    several = (image.float() / 255).expand(8, -1, -1, -1)
    shown = defense(several, streams=torch.arange(8, device=image.device))
    return differ(shown[:1], shown)


def streams(images: Tensor, step: int) -> Tensor:
    """A number for each image of a step: how many images the steps before it had, of batches of one size."""
    first = step * len(images)
    return torch.arange(first, first + len(images), device=images.device)


def with_noise(images: Tensor, sigma: float, *, seed: int, step: int) -> Tensor:
    """Float images with Gaussian noise, clamped to [0, 1], where a shield wants them."""
    noise = GaussianNoise(sigma=sigma, seed=shield_seed(seed, "noise"))
    noisy: Tensor = noise(images, streams=streams(images, step))
    return noisy.clamp_(0, 1)


def _divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """The mean over images of KL(reference ‖ logits), with gradients to both."""
    return F.kl_div(logits.log_softmax(1), reference.log_softmax(1), reduction="batchmean", log_target=True)


_OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "natural": Natural,
    "noise": Noisy,
    "adversarial": Adversarial,
    "consistency": Consistent,
    "splitting": SplittingVotes,
}


def list_objectives() -> tuple[str, ...]:
    """The names that ``objective`` knows."""
    return tuple(_OBJECTIVES)


def objective(text: str | None) -> Objective:
    """An objective from text such as "adversarial:loss=trades,eps=8/255,surrogate=soft,temperature=0.1".

    Settings of the surrogate stand beside those of the objective. None is "natural".

    Raises:
        InvalidInputError: an unknown name or setting, answered with the known ones.
    """
    name, settings = parse_spec("natural" if text is None else text)
    made = _OBJECTIVES[checks.one_of("method", name, _OBJECTIVES)]
    own = setting_names(made)
    of_surrogate: list[str] = []
    if "surrogate" in own and (surrogate := settings.get("surrogate", BARE)) != BARE:
        chosen = checks.one_of("surrogate", surrogate, [*surrogates.list_surrogates(), BARE])
        of_surrogate = surrogates.known_settings(chosen)
    refuse_unknown(name, settings, [*own, *of_surrogate])
    pairs = [f"{key}={settings.pop(key)}" for key in list(settings) if key not in own]
    if pairs:
        settings["surrogate"] = f"{settings['surrogate']}:{','.join(pairs)}"
    return made(**settings)

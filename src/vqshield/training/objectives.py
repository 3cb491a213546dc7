"""Training objectives: which images a step shows the network behind its shield, and which loss it lowers.

All randomness follows from the seed and the number of the step, so a resumed run repeats it.
"""

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
from vqshield.training.shielding import TrainingShield, shield_seed

LossAndHits = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a run gives its objective.

    network: float images in [0, 1] → logits, in the precision of the run.
    entropy: shielded images, bytes or floats, and labels → mean cross-entropy and the number of correct
        predictions; compiled where the run is.
    """

    network: nn.Module
    entropy: Callable[[Tensor, Tensor], LossAndHits]
    shield: TrainingShield | None
    label_smoothing: float
    seed: int

    def shielded(self, images: Tensor, *, step: int) -> Tensor:
        """The images as the network sees them in this step; the same sample for all images given in it."""
        return images if self.shield is None else self.shield.training(images, step=step)


@dataclass(frozen=True, kw_only=True)
class Natural:
    """Cross-entropy of the images behind the shield, and the base class of the other objectives.

    An objective keeps no state from one step to the next.
    """

    def __call__(self, context: RunContext, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        """The loss of one batch of byte images, with its gradient, and the number of correct predictions."""
        return context.entropy(context.shielded(images, step=step), labels)

    def check(self, defense: Defense | None, image: Tensor) -> None:
        """Raise InvalidInputError where it does not fit the defense; image: (1, q, h, w), bytes."""


@dataclass(frozen=True, kw_only=True)
class Noisy(Natural):
    """Cross-entropy of images with Gaussian noise of deviation sigma on them, before the shield."""

    sigma: float = 0.06

    def __post_init__(self) -> None:
        checks.real("sigma", self.sigma, most=checks.MOST_NOISE)

    def __call__(self, context: RunContext, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        noisy = with_noise(images.float() / 255, self.sigma, seed=context.seed, step=step)
        return context.entropy(context.shielded(noisy, step=step), labels)


@dataclass(frozen=True, kw_only=True)
class Adversarial(Natural):
    """Adversarial training, L-inf, on images that PGD finds in every step.

    loss: "pgd" trains on those images (Madry et al. 2018); "trades" on the clean ones, plus beta times the
        divergence between the predictions for both (Zhang et al. 2019).
    eps: the budget; steps, step: of the attack, step=None being eps/4.
    surrogate: the gradient that the attack takes for the shield ("soft:temperature=0.1"), with a new sample
        in every step; "none": the attack leaves the shield out, and its images are still shown behind it.
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
        checks.one_of("loss", self.loss, ("pgd", "trades"))
        Linf(self.eps)
        checks.whole("steps", self.steps, least=1)
        checks.real("beta", self.beta)
        checks.real("sigma", self.sigma, most=checks.MOST_NOISE)
        if self.step is not None:
            checks.real("step", self.step)
        if self.surrogate != NONE:
            surrogates.get(self.surrogate)

    def check(self, defense: Defense | None, image: Tensor) -> None:
        if defense is not None and self.surrogate != NONE:
            surrogates.get(self.surrogate).check(defense)

    def __call__(self, context: RunContext, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        clean = images.float() / 255
        adversarial = self._attacked(context, clean, labels, step)
        if self.sigma:
            adversarial = with_noise(adversarial, self.sigma, seed=context.seed, step=step)
        if self.loss == "pgd":
            return context.entropy(context.shielded(adversarial, step=step), labels)
        natural = context.network(context.shielded(clean, step=step))
        moved = context.network(context.shielded(adversarial, step=step))
        entropy = F.cross_entropy(natural, labels, label_smoothing=context.label_smoothing)
        return entropy + self.beta * _divergence(moved, natural), (natural.argmax(1) == labels).sum()

    def _attacked(self, context: RunContext, images: Tensor, labels: Tensor, step: int) -> Tensor:
        """PGD, as in vqshield.attacks, without its checks, which would sync the GPU in every step."""
        ball, length = Linf(self.eps), self.eps / 4 if self.step is None else self.step
        start = Draw(shield_seed(context.seed, "start"), streams(images, step))
        uniforms = start.uniforms(Stage.ATTACK_START, 0, images[0].numel())
        moved = ball.start(images, uniforms.view_as(images))
        with evaluating(context.network):
            predict = self._predictor(context)
            with torch.no_grad():
                natural = (
                    predict(images, streams(images, step * self.steps)) if self.loss == "trades" else None
                )
            for number in range(self.steps):
                moved = moved.detach().requires_grad_()
                logits = predict(moved, streams(images, step * self.steps + number))
                loss = F.cross_entropy(logits, labels) if natural is None else _divergence(logits, natural)
                (slope,) = torch.autograd.grad(loss, moved)
                moved = ball.project(moved.detach() + length * ball.steepest(slope), images)
        return moved.detach()

    def _predictor(self, context: RunContext) -> Callable[[Tensor, Tensor], Tensor]:
        """Images and their streams → the logits that the attack sees."""
        if context.shield is None or self.surrogate == NONE:
            return lambda images, numbers: context.network(images)
        model = Defended(context.network, context.shield.attacked, surrogate=self.surrogate)
        return lambda images, numbers: model(images, streams=numbers)


@dataclass(frozen=True, kw_only=True)
class Consistent(Natural):
    """Several samples of the shield per step, trained to be correct and to agree, which certificates reward.

    draws: samples of each image per step; the cost grows with them.
    agreement, entropy: weights of disagreement and of unclear votes (`consistency_loss`); 0 and 0 is
        "natural" with several samples per step.
    """

    draws: int = 2
    agreement: float = 10.0
    entropy: float = 0.5

    def __post_init__(self) -> None:
        checks.whole("draws", self.draws, least=2)
        checks.real("agreement", self.agreement)
        checks.real("entropy", self.entropy)

    def check(self, defense: Defense | None, image: Tensor) -> None:
        if defense is None or not _is_random(defense, image):
            raise InvalidInputError(
                f"method consistency makes samples of a random defense agree, and defense {_kind(defense)} "
                "is not random; give one such as splitting:scale=0.87 or gaussian:sigma=0.25"
            )

    def __call__(self, context: RunContext, images: Tensor, labels: Tensor, *, step: int) -> LossAndHits:
        shown = context.shielded(images.repeat(self.draws, 1, 1, 1), step=step)
        logits = context.network(shown).view(self.draws, len(images), -1)
        smoothing = context.label_smoothing
        loss = consistency_loss(logits, labels, self.agreement, self.entropy, label_smoothing=smoothing)
        return loss, (logits[0].argmax(1) == labels).sum()


@dataclass(frozen=True, kw_only=True)
class SplittingVotes(Consistent):
    """Consistent samples of a Splitting, with the weights of docs/certificates.md."""

    agreement: float = 3.0
    entropy: float = 0.0

    def check(self, defense: Defense | None, image: Tensor) -> None:
        if not isinstance(defense, Splitting):
            raise InvalidInputError(
                "method splitting trains for the L1 certificate of --defense splitting:scale=0.87, not for "
                f"defense {_kind(defense)}; method consistency takes any random defense"
            )


def consistency_loss(
    logits: Tensor, labels: Tensor, agreement: float, entropy: float, *, label_smoothing: float = 0.0
) -> Tensor:
    """mean cross-entropy + agreement·mean KL(F̂ ‖ F_i) + entropy·H(F̂), F̂ the mean of the samples' softmax F_i.

    Jeong and Shin, "Consistency Regularization for Certified Robustness of Smoothed Classifiers" (2020), with
    λ = agreement (10 to 20 for Gaussian noise of 0.25) and η = entropy (0.5). The second term is 0 where all
    samples agree; the third rewards clear votes.

    Args:
        logits: (draws, B, classes) of the same images; labels: (B,).
    """
    wrong = F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), label_smoothing=label_smoothing)
    if agreement == 0 and entropy == 0:
        return wrong
    logs = logits.log_softmax(-1)
    mean = logs.exp().mean(0)  # F̂ (B, classes)
    mean_log = torch.log(mean.clamp(min=1e-20))  # no logarithm of 0
    spread = (mean * (mean_log - logs.mean(0))).sum(-1)  # mean over the samples of KL(F̂ ‖ F_i)
    doubt = -(mean * mean_log).sum(-1)
    return wrong + (agreement * spread + entropy * doubt).mean()


def _kind(defense: Defense | None) -> str:
    return NONE if defense is None else type(defense).__name__


@torch.no_grad()
def _is_random(defense: Defense, image: Tensor) -> bool:
    """Whether any of 8 samples of the defense on an image differs from the first."""
    several = (image.float() / 255).expand(8, -1, -1, -1)
    samples = defense(several, streams=torch.arange(8, device=image.device))
    return differ(samples[:1], samples)


def streams(images: Tensor, step: int) -> Tensor:
    """A number for each image of a step: how many images earlier steps had, in batches of the same size."""
    first = step * len(images)
    return torch.arange(first, first + len(images), device=images.device)


def with_noise(images: Tensor, sigma: float, *, seed: int, step: int) -> Tensor:
    """Float images with Gaussian noise, clamped to [0, 1], which shields require."""
    noise = GaussianNoise(sigma=sigma, seed=shield_seed(seed, "noise"))
    noisy: Tensor = noise(images, streams=streams(images, step))
    return noisy.clamp_(0, 1)


def _divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """The mean over images of KL(reference ‖ logits), with gradients to both."""
    return F.kl_div(logits.log_softmax(1), reference.log_softmax(1), reduction="batchmean", log_target=True)


_OBJECTIVES: dict[str, type[Natural]] = {
    "natural": Natural,
    "noise": Noisy,
    "adversarial": Adversarial,
    "consistency": Consistent,
    "splitting": SplittingVotes,
}


def list_objectives() -> tuple[str, ...]:
    """The names that ``objective`` knows."""
    return tuple(_OBJECTIVES)


def objective(spec: str | None) -> Natural:
    """An objective from a spec string such as "adversarial:loss=trades,surrogate=soft,temperature=0.1".

    Settings of the surrogate follow those of the objective. None is "natural".
    """
    name, settings = parse_spec("natural" if spec is None else spec)
    make = _OBJECTIVES[checks.one_of("method", name, _OBJECTIVES)]
    own = setting_names(make)
    of_surrogate: list[str] = []
    if "surrogate" in own and (surrogate := settings.get("surrogate", NONE)) != NONE:
        known = checks.one_of("surrogate", surrogate, [*surrogates.list_surrogates(), NONE])
        of_surrogate = surrogates.known_settings(known)
    refuse_unknown(name, settings, [*own, *of_surrogate])
    pairs = [f"{key}={settings.pop(key)}" for key in list(settings) if key not in own]
    if pairs:
        settings["surrogate"] = f"{settings['surrogate']}:{','.join(pairs)}"
    return make(**settings)

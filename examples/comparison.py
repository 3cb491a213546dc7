"""What the attack_with_*.py examples share: another library's PGD and ours on one shielded model.

Both attack swRD in front of the bundled classifier with equal settings, through the logits averaged over a
few draws, and both are judged by the same fresh draws, which neither attack has seen.
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.attacks import EOT, PGD, Linf
from vqshield.classifiers import small_cifar10
from vqshield.core import checks
from vqshield.core.errors import VqshieldError
from vqshield.data import sample
from vqshield.models.draws import Draws, draw_predictions

ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What both attacks are told; the defaults take well under a minute on two CPU cores."""

    images: int = 100
    eps: float = 8 / 255
    step: float = 2 / 255
    steps: int = 10
    random_start: bool = True
    draws: int = 5  # averaged in every step of an attack
    runs: int = 10  # fresh draws that judge the images found
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("images", self.images, least=2, below=501)
        for name in ("steps", "draws", "runs"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("seed", self.seed, least=0, below=2**32 - 3)  # numpy's global RNG takes 32 bits


Library = Callable[[nn.Module, Tensor, Tensor, Settings], Tensor]
"""(model, images, labels, settings) → adversarial images, by another library's PGD."""


@dataclass(frozen=True)
class Comparison:
    """How often each image was classified rightly, (N,) shares of the runs."""

    natural: Tensor
    theirs: Tensor
    ours: Tensor

    @property
    def difference(self) -> float:
        """Accuracy under their attack minus that under ours."""
        return float((self.theirs - self.ours).mean())

    @property
    def standard_error(self) -> float:
        """Of the difference, image by image: both attacks got the same images."""
        paired = self.theirs - self.ours
        return float(paired.std()) / len(paired) ** 0.5

    @property
    def agree(self) -> bool:
        """Whether the accuracies are within two standard errors; equal attacks are in 19 of 20 cases."""
        return abs(self.difference) <= 2 * self.standard_error


def compare(library: Library, settings: Settings) -> Comparison:
    """Attack with the library and with vqshield, and judge both by the same draws."""
    images, labels = data(settings)
    found = library(attacked_model(settings, seed=settings.seed + 1), images, labels, settings)
    theirs = _right(_checked(found, images, settings), settings)
    return Comparison(_right(images, settings), theirs, _ours(settings))


def data(settings: Settings) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels of the bundled sample."""
    chosen = sample(settings.images)
    return chosen.floats(), chosen.labels


def attacked_model(settings: Settings, *, seed: int) -> nn.Module:
    """The shielded classifier, its logits averaged over several draws: a module for any library.

    eval() for the wrapper too: foolbox warns of a model that is not, and torchattacks would put all of it,
    the classifier too, in training mode in the end.
    """
    return EOT(_shielded(seed), draws=settings.draws, average="logits").eval()


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """The global RNGs of torch and numpy, which other libraries draw from, seeded here and then put back."""
    before = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)


def our_attack(model: nn.Module, images: Tensor, labels: Tensor, settings: Settings) -> Tensor:
    """Adversarial images by vqshield's PGD."""
    pgd = PGD(
        ball=Linf(settings.eps),
        steps=settings.steps,
        step=settings.step,
        random_start=settings.random_start,
        seed=settings.seed,
    )
    return pgd(model, images, labels)


def report(name: str, library: Library, description: str) -> None:
    """The command line of an example: options in, a table out."""
    parser = argparse.ArgumentParser(description=description)
    for option, text in (
        ("images", "how many of the bundled images to attack"),
        ("steps", "steps of PGD"),
        ("draws", "draws averaged in every step (EOT)"),
        ("seed", "of the defense's noise and the random starts"),
    ):
        parser.add_argument(f"--{option}", type=int, default=getattr(Settings, option), help=text)
    settings = Settings(**vars(parser.parse_args()))
    print(table(name, compare(library, settings), settings))


def table(name: str, result: Comparison, settings: Settings) -> str:
    """A line for each attack, and whether they agree."""
    attack = f"PGD-{settings.steps} + EOT-{settings.draws}"
    lines = [f"{'accuracy in %':<16}{'natural':>10}{attack:>18}"]
    for who, robust in ((name, result.theirs), ("vqshield", result.ours)):
        lines.append(f"{who:<16}{_percent(result.natural.mean()):>10}{_percent(robust.mean()):>18}")
    verdict = "agree" if result.agree else "do NOT agree"
    lines += [
        f"difference {_percent(result.difference)} ± {_percent(result.standard_error)} (standard error): "
        f"the attacks {verdict} within 2 standard errors",
        f"{settings.images} CIFAR-10 test images, swRD before the bundled classifier, "
        f"ε = {settings.eps * 255:g}/255 (L∞), {settings.runs} fresh draws, seed {settings.seed}",
    ]
    return "\n".join(lines)


@cache  # one run serves the comparisons with several libraries
def _ours(settings: Settings) -> Tensor:
    model = attacked_model(settings, seed=settings.seed + 2)
    return _right(our_attack(model, *data(settings), settings), settings)


def _shielded(seed: int) -> vq.Defended:
    return vq.defend(small_cifar10(), "swrd", seed=seed)


def _right(images: Tensor, settings: Settings) -> Tensor:
    """The share of runs that classify each image correctly, with the same draws in every call."""
    _, labels = data(settings)
    draws: Draws = draw_predictions(_shielded(settings.seed), images, labels, runs=settings.runs)
    return (draws.predictions == labels).double().mean(0)


def _checked(found: Tensor, images: Tensor, settings: Settings) -> Tensor:
    """The library's images, rounding errors taken off; images outside of the budget are refused."""
    allowed = Linf(settings.eps).project(found.detach(), images)
    excess = float((found - allowed).abs().max())
    if not excess <= ROUNDING:
        raise VqshieldError(f"an image lies {excess} outside of eps={settings.eps} or [0, 1]")
    return allowed


def _percent(share: float | Tensor) -> str:
    return f"{100 * float(share):.1f}"

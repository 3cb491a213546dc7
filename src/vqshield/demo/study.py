"""The bundled classifier with and without each defense, on clean images and under four attackers.

The attackers, from the weakest: images made for the other of the two bundled networks (transfer); PGD on the
bare classifier (ignorant); score-based queries (score); PGD through the shield with gradients made for
quantizers, averaged over several samples (adaptive). Reported samples are fresh: no attack has seen them.

The last rows are the same network calibrated behind swRD on unlabelled images, and fine-tuned behind swRD
with noise on the image, which is how a shield should be used.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vqshield.attacks import EOT, PGD, Linf, Square
from vqshield.classifiers import small_cifar10, small_cifar10_hardened
from vqshield.classifiers.folding import fastest_form
from vqshield.core import checks
from vqshield.core.display_names import NONE, display_name
from vqshield.core.environment import environment
from vqshield.core.serialization import Json
from vqshield.data import sample
from vqshield.defended import Defended
from vqshield.defenses import SWRD, Defense, create, list_defenses
from vqshield.images.pictures import GalleryRow, Stage, gallery_rows
from vqshield.models.draws import Draws, draw_predictions
from vqshield.runs.study import Progress, Steps, counted, no_progress
from vqshield.training.calibration import calibrate

BEST = display_name("swrd")
CALIBRATED = f"{BEST}, calibrated"
TUNED = f"{BEST} with noise, tuned classifier"
CALIBRATION_IMAGES = 200  # at most, of the bundled images that are not attacked
_FEWEST_TO_CALIBRATE = 16
GALLERY_ROWS = 6
IMAGES_AT_ONCE = 50

Threat = Literal["none", "transfer", "ignorant", "score", "adaptive"]


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Sized to end within about two minutes on two CPU cores.

    Attributes:
        limit: use the first N of the 500 bundled images.
        eps: L-inf budget of the attacks.
        steps: steps of each attack.
        eot: samples that the adaptive attack averages in each step.
        samples: random passes of the defense behind each result.
        calls: model calls per image of the query attack.
        seed: seed of defenses and attacks.
    """

    limit: int = 100
    eps: float = 8 / 255
    steps: int = 20
    eot: int = 4
    samples: int = 5
    calls: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole("limit", self.limit, least=1, below=501)
        checks.whole("calls", self.calls, least=self.score.uncounted_queries() + 2)
        for name in ("steps", "eot", "samples"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("seed", self.seed, least=0, below=2**64)

    @property
    def ignorant(self) -> PGD:
        """The paper's attack on the bare classifier."""
        return PGD(ball=Linf(self.eps), steps=self.steps, step=self.eps / 10, seed=self.seed)

    @property
    def adaptive(self) -> PGD:
        """What the suite adaptive-v1 is made of, with fewer steps."""
        return PGD(
            ball=Linf(self.eps), steps=self.steps, step=self.eps / 4, schedule="cosine", momentum=0.75,
            loss="margin", seed=self.seed,
        )  # fmt: skip

    @property
    def score(self) -> Square:
        """The score-based query attack."""
        return Square(ball=Linf(self.eps), seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class DemoRow:
    """Accuracy of one defense under one threat."""

    defense: str
    settings: Mapping[str, Json]
    threat: Threat
    attack: str
    natural: float  # clean accuracy as a fraction of n images, mean over runs
    robust: float  # the same under the threat
    standard_error: float  # of robust, over images
    runs: int
    n: int

    def __post_init__(self) -> None:
        for name in ("natural", "robust"):
            checks.real(name, getattr(self, name), most=1)


@dataclass(frozen=True, kw_only=True)
class DemoSummary:
    """The demo's results so far."""

    title: str
    complete: bool
    epsilon: float
    rows: tuple[DemoRow, ...]
    sentences: tuple[str, ...]
    audit: str
    seeds: Mapping[str, int]
    seconds: float
    machine: Mapping[str, Json]


class Demo:
    """Runs defense by defense; summary() and gallery() hold whatever is finished so far.

    Args:
        settings: what is run.
        progress: called with what is being done, how many images were classified, and how many will be.
    """

    def __init__(self, settings: DemoSettings, progress: Progress = no_progress) -> None:
        self.settings = settings
        self.data = sample(settings.limit)
        others = sample().floats(slice(settings.limit, settings.limit + CALIBRATION_IMAGES))
        self._to_calibrate = others if len(others) >= _FEWEST_TO_CALIBRATE else None
        self.images, self.labels = self.data.floats(), self.data.labels
        self.classifier: nn.Module = _InParts(small_cifar10())
        self.rows: list[DemoRow] = []
        self.shown: list[Stage] = []
        self.seconds = 0.0
        self._defenses = len(list_defenses()) + 1 + (self._to_calibrate is not None)
        calls = 2 * settings.steps + self._calls(shielded=False) + self._defenses * self._calls(shielded=True)
        self._steps = Steps(progress, len(self.images) * calls)

    def _calls(self, *, shielded: bool) -> int:
        """About how often an image is classified, behind a defense or without one."""
        options = self.settings
        through = options.steps * options.eot + 5 * options.samples
        return options.calls + (through if shielded else 4)

    @contextmanager
    def _step(self, doing: str, calls: int, model: nn.Module) -> Iterator[None]:
        """A step of the work: so many calls of a model for each image."""
        work = calls * len(self.images)
        with (
            self._steps.step(work) as report,
            counted(doing, lambda title, done: report(title, done, work), model),
        ):
            yield

    def run(self) -> None:
        """Measure everything, the undefended classifier first."""
        began, seed = time.perf_counter(), self.settings.seed
        tuned = _InParts(small_cifar10_hardened())
        found = []
        for network in (self.classifier, tuned):
            with self._step("attacks", self.settings.steps, network):
                found.append(self.settings.ignorant(network, self.images, self.labels))
        for_bare, for_tuned = found

        def measure(name: str, classifier: nn.Module, defense: Defense | None) -> None:
            own, other = (for_tuned, for_bare) if classifier is tuned else (for_bare, for_tuned)
            shielded = None if defense is None else Defended(classifier, defense, surrogate="soft")
            with self._step(name, self._calls(shielded=defense is not None), shielded or classifier):
                self._measure(name, classifier, shielded, ignorant=own, transfer=other)
            self.seconds = time.perf_counter() - began

        measure(NONE, self.classifier, None)
        for name in list_defenses():
            measure(display_name(name), self.classifier, create(name, seed=seed))
        if self._to_calibrate is not None:
            self._steps.tell(CALIBRATED)
            behind, images = create("swrd", seed=0), self._to_calibrate
            calibration = calibrate("small-cifar10", images, defense=behind, device="cpu")
            calibrated = _InParts(fastest_form(calibration.classifier))
            measure(CALIBRATED, calibrated, create("swrd", seed=seed))
        measure(TUNED, tuned, SWRD.hardened("cifar10", seed=seed))

    def summary(self) -> DemoSummary:
        """What is finished so far."""
        return DemoSummary(
            title=f"Accuracy of {len(self.images)} CIFAR-10 test images, bundled small classifier",
            complete=len({row.defense for row in self.rows}) == self._defenses + 1,
            epsilon=self.settings.eps,
            rows=tuple(self.rows),
            sentences=tuple(sentences(self.rows, self.settings)),
            audit="not run: the demo's attack is one honest look, not the strongest",
            seeds={"defense": self.settings.seed, "attack": self.settings.seed},
            seconds=round(self.seconds, 1),
            machine=environment(),
        )

    def gallery(self) -> tuple[GalleryRow, ...]:
        """A few images of different classes: clean, attacked, and behind each defense."""
        return gallery_rows(self.shown, self.labels[:GALLERY_ROWS].tolist(), self.data.classes)

    def _measure(
        self,
        name: str,
        classifier: nn.Module,
        shielded: Defended | None,
        *,
        ignorant: Tensor,
        transfer: Tensor,
    ) -> None:
        """Accuracy under every attacker; without a defense nothing is random, and one run is enough."""
        options, images, labels = self.settings, self.images, self.labels
        runs = 1 if shielded is None else options.samples
        model = shielded or classifier

        def judged(images: Tensor) -> Draws:
            return draw_predictions(model, images, labels, runs=runs)

        natural, unaware = judged(images), judged(ignorant)
        pgd = informed = f"pgd-{options.steps}"
        if shielded is None:
            aware = unaware
            self._show("clean", images, natural.predictions[0])
            self._show("attacked", ignorant, unaware.predictions[0])
        else:
            attacked = options.adaptive(EOT(model, draws=options.eot), images, labels, drop_lost=True)
            aware, informed = judged(attacked), f"{pgd} + soft + eot-{options.eot}"
            if name not in (CALIBRATED, TUNED):  # their pictures are of attacks on other weights
                self._show_quantized(f"attacked, then {name}", shielded, ignorant)
            if name == BEST:
                self._show_quantized(f"attacked through {name}, then {name}", shielded, attacked)
        transferred = judged(transfer)
        queried = options.score.trace(model, images, labels, calls=(options.calls,)).images[-1]
        measured: dict[Threat, tuple[str, Draws]] = {
            "none": ("none", natural),
            "transfer": (pgd, transferred),
            "ignorant": (pgd, unaware),
            "score": (f"square, {options.calls} calls", judged(queried)),
            "adaptive": (informed, aware),
        }
        self.rows += [
            DemoRow(
                defense=name,
                settings={} if shielded is None else shielded.defense.settings(),
                threat=threat,
                attack=attack,
                natural=natural.mean,
                robust=under.mean,
                standard_error=under.standard_error,
                runs=runs,
                n=len(images),
            )
            for threat, (attack, under) in measured.items()
        ]

    def _show(self, caption: str, images: Tensor, answers: Tensor) -> None:
        answers = answers[:GALLERY_ROWS]
        self.shown.append(Stage(caption=caption, images=images[:GALLERY_ROWS], answers=answers.tolist()))

    @torch.no_grad()
    def _show_quantized(self, caption: str, shielded: Defended, images: Tensor) -> None:
        quantized = shielded.defense(images[:GALLERY_ROWS])
        self._show(caption, quantized, shielded.classifier(quantized).argmax(1))


def sentences(rows: Sequence[DemoRow], settings: DemoSettings) -> list[str]:
    """What the results mean, in a few sentences."""
    accuracy = {(row.defense, row.threat): row.robust for row in rows}
    if (BEST, "adaptive") not in accuracy:
        return []
    share = {key: f"{value:.0%}" for key, value in accuracy.items()}
    cost = 100 * (accuracy[NONE, "none"] - accuracy[BEST, "none"])
    text = [
        f"Against an attack that ignores the shield, {BEST} classifies {share[BEST, 'ignorant']} of the "
        f"images correctly and the bare classifier {share[NONE, 'ignorant']}; on clean images it costs "
        f"{cost:.0f} points ({share[NONE, 'none']} to {share[BEST, 'none']}).",
        f"Under an adaptive attack through the shield, accuracy is {share[BEST, 'adaptive']} with only "
        f"{settings.steps} steps of {settings.eot} draws, and longer attacks lower it: the shield does not "
        "protect against an adversary who expects it.",
    ]
    if (CALIBRATED, "none") in accuracy:
        text.append(
            f"Calibrated on {CALIBRATION_IMAGES} unlabelled images at most, without training, {BEST} has "
            f"{share[CALIBRATED, 'none']} on clean images and {share[CALIBRATED, 'ignorant']} against the "
            "attack that ignores the shield (`vqshield calibrate`)."
        )
    if (TUNED, "adaptive") in accuracy:
        text += [
            f"With noise on the image and a classifier that was fine-tuned behind both, {BEST} has "
            f"{share[TUNED, 'none']} on clean images, {share[TUNED, 'ignorant']} against the attack that "
            f"ignores the shield, and {share[TUNED, 'adaptive']} against the short adaptive one.",
            f"Against {settings.calls} score-based queries per image, that one has {share[TUNED, 'score']}, "
            f"{BEST} without tuning and noise {share[BEST, 'score']}, and the bare classifier "
            f"{share[NONE, 'score']}; `vqshield ladder` tries 10,000 calls.",
        ]
    return text


class _InParts(nn.Module):
    """The same classifier, a few images at a time, so that activations stay in the CPU's caches."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.classifier(part) for part in torch.split(images, IMAGES_AT_ONCE)])

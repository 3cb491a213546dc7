"""The first minute: the bundled classifier with and without each defense, clean, and under four attackers.

The last rows are the same network calibrated behind swRD on unlabelled images, and fine-tuned behind swRD
with noise on the image, which is how a shield should be used.

From the one who knows least: images made to fool the other of the two bundled networks (transfer); images
made with the very weights, the shield left out (ignorant); a few calls of the model, by its scores (score);
an attack through the shield, with gradients made for quantizers, averaged over several draws (adaptive).
What is reported are fresh draws that no attack has seen.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
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
from vqshield.data import ImageSet, sample
from vqshield.defended import Defended
from vqshield.defenses import SWRD, Defense, create, list_defenses
from vqshield.demo.pictures import GalleryPicture, GalleryRow, png, png_uri
from vqshield.models.draws import Accuracy, Draws, draw_predictions
from vqshield.training.calibration import calibrate

BEST = display_name("swrd")
CALIBRATED = f"{BEST}, calibrated"
TUNED = f"{BEST} with noise, tuned classifier"
CALIBRATION_IMAGES = 200
"""Of the bundled images that are not reported on; the row is left out where too few remain."""
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
    """Accuracy of one defense under one threat.

    Attributes:
        natural, robust: clean and robust accuracy as fractions of the same n images, mean over runs.
        standard_error: of robust, over images.
    """

    defense: str
    settings: Mapping[str, Json]
    threat: Threat
    attack: str
    natural: float
    robust: float
    standard_error: float
    runs: int
    n: int

    def __post_init__(self) -> None:
        for name in ("natural", "robust"):
            checks.real(name, getattr(self, name), most=1)

    @property
    def accuracy(self) -> Accuracy:
        """Robust accuracy as the type that tables show; the demo does not record the spread between runs."""
        return Accuracy(
            mean=self.robust, std=math.nan, standard_error=self.standard_error, runs=self.runs, n=self.n
        )


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
    """Runs defense by defense; summary() and gallery() hold whatever is finished so far."""

    def __init__(self, settings: DemoSettings, report: Callable[[str, int], None]) -> None:
        """`report` is called with what is going on and how many images were just classified."""
        self.settings, self._report = settings, report
        self.data: ImageSet = sample(settings.limit)
        self._others = sample().floats(slice(settings.limit, settings.limit + CALIBRATION_IMAGES))
        self.images, self.labels = self.data.floats(), self.data.labels
        self.classifier: nn.Module = _InParts(small_cifar10())
        self.rows: list[DemoRow] = []
        self.shown: dict[str, tuple[Tensor, Tensor]] = {}  # caption → images, answers
        self.seconds = 0.0

    @property
    def work(self) -> int:
        """How many images will be classified in all: what a progress bar counts."""
        each, options = len(self.images), self.settings
        attacked = 2 * options.steps  # both networks without a shield
        bare = options.calls + 4
        defended = options.steps * options.eot + options.calls + 5 * options.samples
        return each * (attacked + bare + defended * (self._defenses - 1))

    def run(self) -> None:
        """Measure everything, the undefended classifier first."""
        began, seed = time.perf_counter(), self.settings.seed
        tuned = _InParts(small_cifar10_hardened())
        for_bare, for_tuned = (self._without_shield(each) for each in (self.classifier, tuned))

        def measure(name: str, classifier: nn.Module, defense: Defense | None) -> None:
            own, other = (for_tuned, for_bare) if classifier is tuned else (for_bare, for_tuned)
            self._measure(name, classifier, defense, ignorant=own, transferred=other)
            self.seconds = time.perf_counter() - began

        measure(NONE, self.classifier, None)
        for name in list_defenses():
            measure(display_name(name), self.classifier, create(name, seed=seed))
        if self._calibrates:
            self._report(CALIBRATED, 0)
            measure(CALIBRATED, _InParts(self._calibrated()), create("swrd", seed=seed))
        measure(TUNED, tuned, SWRD.hardened("cifar10", seed=seed))

    def summary(self) -> DemoSummary:
        """What is finished so far."""
        return DemoSummary(
            title=f"Accuracy of {len(self.images)} CIFAR-10 test images, bundled small classifier",
            complete=len({row.defense for row in self.rows}) == self._defenses,
            epsilon=self.settings.eps,
            rows=tuple(self.rows),
            sentences=tuple(sentences(self.rows, self.settings)),
            audit="not run: the demo's attack is one honest look, not the strongest",
            seeds={"defense": self.settings.seed, "attack": self.settings.seed},
            seconds=round(self.seconds, 1),
            machine=environment(),
        )

    def gallery(self) -> list[GalleryRow]:
        """A few images of different classes: clean, attacked, and what each defense makes of them."""
        return [
            GalleryRow(
                label=self.data.classes[int(self.labels[index])],
                pictures=tuple(self._picture(caption, index) for caption in self.shown),
            )
            for index in range(min(GALLERY_ROWS, len(self.images)))
        ]

    @property
    def _calibrates(self) -> bool:
        return len(self._others) >= _FEWEST_TO_CALIBRATE

    @property
    def _defenses(self) -> int:
        """How many rows of defenses there will be, the one without a defense included."""
        return len(list_defenses()) + 2 + self._calibrates

    def _calibrated(self) -> nn.Module:
        """The bundled classifier calibrated behind swRD, in its fast form."""
        found = calibrate("small-cifar10", self._others, defense=create("swrd", seed=0), device="cpu")
        return fastest_form(found.classifier)

    def _without_shield(self, classifier: nn.Module) -> Tensor:
        """Images made to fool a bare network."""
        model = _Counted(classifier, lambda count: self._report("attacks", count))
        return self.settings.ignorant(model, self.images, self.labels)

    def _measure(
        self,
        name: str,
        classifier: nn.Module,
        defense: Defense | None,
        *,
        ignorant: Tensor,
        transferred: Tensor,
    ) -> None:
        """Accuracy under every attacker; without a defense nothing is random, and one run is enough."""
        options, runs = self.settings, 1 if defense is None else self.settings.samples
        shielded = None if defense is None else Defended(classifier, defense, surrogate="soft")
        model = _Counted(shielded or classifier, lambda count: self._report(name, count))

        def judged(images: Tensor) -> Draws:
            return draw_predictions(model, images, self.labels, runs=runs)

        natural, unaware = judged(self.images), judged(ignorant)
        pgd = informed = f"pgd-{options.steps}"
        if shielded is None:
            aware = unaware
            self._show("clean", self.images, natural.predictions[0])
            self._show("attacked", ignorant, unaware.predictions[0])
        else:
            attacked = self._informed(model)
            aware, informed = judged(attacked), f"{pgd} + soft + eot-{options.eot}"
            if name not in (CALIBRATED, TUNED):  # their pictures are of attacks on other weights
                self._show_quantized(f"attacked, then {name}", shielded, ignorant)
            if name == BEST:
                self._show_quantized(f"attacked through {name}, then {name}", shielded, attacked)
        found: dict[Threat, tuple[str, Draws]] = {
            "none": ("none", natural),
            "transfer": (pgd, judged(transferred)),
            "ignorant": (pgd, unaware),
            "score": (f"square, {options.calls} calls", judged(self._queried(model))),
            "adaptive": (informed, aware),
        }
        self.rows += [
            DemoRow(
                defense=name,
                settings={} if defense is None else defense.settings(),
                threat=threat,
                attack=attack,
                natural=natural.mean,
                robust=under.mean,
                standard_error=under.standard_error,
                runs=runs,
                n=len(self.images),
            )
            for threat, (attack, under) in found.items()
        ]

    def _informed(self, model: "_Counted") -> Tensor:
        """Adversarial images through the shield; images misclassified in every sample take no more steps.

        The progress bar counts the steps as planned, also those that are not taken.
        """
        options = self.settings
        end = model.count + options.steps * options.eot * len(self.images)
        counted = _Counted(model.model, lambda count: model.report(min(count, end - model.count)))
        averaged = EOT(counted, draws=options.eot)
        found = options.adaptive(averaged, self.images, self.labels, drop_lost=True)
        model.report(end - model.count)
        return found

    def _queried(self, model: "_Counted") -> Tensor:
        """Images of an attacker who queries the model for its scores; every sample is a call."""
        options, before = self.settings, model.count
        found = options.score.trace(model, self.images, self.labels, calls=(options.calls,)).images[-1]
        model.report(options.calls * len(self.images) - (model.count - before))  # it may end before that
        return found

    def _show(self, caption: str, images: Tensor, answers: Tensor) -> None:
        self.shown[caption] = images[:GALLERY_ROWS], answers[:GALLERY_ROWS]

    @torch.no_grad()
    def _show_quantized(self, caption: str, shielded: Defended, images: Tensor) -> None:
        quantized = shielded.defense(images[:GALLERY_ROWS])
        self._show(caption, quantized, shielded.classifier(quantized).argmax(1))

    def _picture(self, caption: str, index: int) -> GalleryPicture:
        images, answers = self.shown[caption]
        answer = int(answers[index])
        return GalleryPicture(
            caption=caption,
            image=png_uri(png(images[index])),
            verdict=self.data.classes[answer],
            correct=answer == int(self.labels[index]),
        )


def sentences(rows: Sequence[DemoRow], settings: DemoSettings) -> list[str]:
    """What the results mean, in a few sentences."""
    accuracy = {(row.defense, row.threat): row.robust for row in rows}
    if (BEST, "adaptive") not in accuracy:
        return []
    said = [
        f"Against an attack that does not know of the shield, {BEST} keeps "
        f"{accuracy[BEST, 'ignorant']:.0%} of the images right where the bare classifier keeps "
        f"{accuracy[NONE, 'ignorant']:.0%}; on clean images it costs "
        f"{100 * (accuracy[NONE, 'none'] - accuracy[BEST, 'none']):.0f} points "
        f"({accuracy[NONE, 'none']:.0%} to {accuracy[BEST, 'none']:.0%}).",
        f"An attacker who knows of it and attacks through it leaves {accuracy[BEST, 'adaptive']:.0%} "
        f"with only {settings.steps} steps of {settings.eot} draws, and longer attacks lower it: "
        "the shield does not protect against an adversary who expects it.",
    ]
    if (CALIBRATED, "none") in accuracy:
        said.append(
            f"Calibrated on {CALIBRATION_IMAGES} unlabelled images at most, without training, {BEST} has "
            f"{accuracy[CALIBRATED, 'none']:.0%} on clean images and "
            f"{accuracy[CALIBRATED, 'ignorant']:.0%} against the attack that does not know of the shield "
            "(`vqshield calibrate`)."
        )
    if (TUNED, "adaptive") in accuracy:
        said += [
            f"With noise on the image and a classifier that was fine-tuned behind both, {BEST} has "
            f"{accuracy[TUNED, 'none']:.0%} on clean images and keeps {accuracy[TUNED, 'ignorant']:.0%} "
            "against the attack that does not know of the shield, and "
            f"{accuracy[TUNED, 'adaptive']:.0%} against the short one that does.",
            f"An attacker who may ask {settings.calls} times for each image and sees the scores leaves "
            f"{accuracy[TUNED, 'score']:.0%} right with that one, {accuracy[BEST, 'score']:.0%} without "
            f"tuning and noise, and {accuracy[NONE, 'score']:.0%} without a shield; `vqshield ladder` "
            "tries 10,000 calls.",
        ]
    return said


class _InParts(nn.Module):
    """The same classifier, a few images at a time, so that activations stay in the CPU's caches."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.classifier(part) for part in torch.split(images, IMAGES_AT_ONCE)])


class _Counted(nn.Module):
    """The same model, which reports how many images it has classified."""

    def __init__(self, model: nn.Module, tell: Callable[[int], None]) -> None:
        super().__init__()
        self.model, self._tell, self.count = model, tell, 0

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        self.report(len(images))
        return logits

    def report(self, count: int) -> None:
        """That number of images is done."""
        self.count += count
        self._tell(count)

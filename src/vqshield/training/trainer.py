"""Train a classifier: all data on the device, and between epochs a state that a checkpoint can hold.

Order and augmentation of an epoch come from generators seeded by (seed, epoch). So a resumed run sees the
batches of an unbroken one, and the global generator is left alone.

Guarantee: on a CPU, with one version of torch, one kind of processor and one number of threads
(OMP_NUM_THREADS), the weights are bit-equal and their files byte-equal, however often the run is killed and
resumed. There is no guarantee on a GPU: cuDNN times its algorithms, and some sum in no fixed order.
"""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vqshield.classifiers import Network, Normalised, build
from vqshield.classifiers.folding import Precision
from vqshield.core import checks
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.core.seeds import torch_seeded
from vqshield.data import ImageSet
from vqshield.defenses import Defense
from vqshield.training.augment import crop_and_flip, cutout
from vqshield.training.objectives import LossAndHits, RunContext, objective
from vqshield.training.settings import MOMENTUM, WEIGHT_DECAY, TrainSettings
from vqshield.training.shielding import TrainingShield, accuracy

REPORT_EVERY = 20  # steps; each report waits for the device
WARMUP = 0.2  # the share of a cycle in which the rate rises
START, END = 0.1, 1e-3  # a cycle's first and last rate, as shares of the peak

Steps = Callable[[int, float], None]
"""Called every few steps: how many of this epoch are done, and the mean loss since the last call."""

Parts = dict[str, dict[str, Tensor]]
"""Tensors by part ("weights", "optimizer", "ema") and name."""


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """The result of one epoch; accuracies are fractions."""

    epoch: int  # from 1
    loss: float
    train_accuracy: float
    test_accuracy: float | None  # None: this epoch was not tested
    seconds: float


class Trainer:
    """The state of one run: ``epoch`` advances it, ``tensors`` and ``restore`` carry it over a restart.

    Another recipe is a subclass with its own ``first_model``, ``make_optimizer``, ``rate`` or ``augmented``.

    Args:
        model, defense: replace the network and the shield that the settings name.
    """

    def __init__(
        self,
        settings: TrainSettings,
        training: ImageSet,
        test: ImageSet,
        device: torch.device,
        *,
        model: Normalised | None = None,
        defense: Defense | None = None,
    ) -> None:
        if settings.batch > len(training):
            raise InvalidInputError(
                f"batch={settings.batch} must be at most {len(training)}, the training images"
            )
        self.settings, self.device = settings, device
        # An incomplete last batch is left out; the next epoch's order leaves out other images.
        self.steps = len(training) // settings.batch
        self.images, self.labels = training.images.to(device), training.labels.to(device)
        self.test_images, self.test_labels = test.images.to(device), test.labels.to(device)
        self.shield, shield = None, settings.shield if defense is None else defense
        if shield is not None:
            self.shield = TrainingShield(shield, seed=settings.seed, device=device)
            self.shield.check(self.images)
        mean, _ = channel_statistics(training.images)
        self.fill = (torch.tensor(mean, device=device) * 255).round()
        self.model = (self.first_model(training) if model is None else model).to(device)
        self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = copy.deepcopy(self.model).eval().requires_grad_(False) if settings.ema else None
        self.moving = () if self.average is None else (_moving(self.average), _moving(self.model))
        self.optimizer = self.make_optimizer()
        self.objective = objective(settings.method)
        self.objective.check(None if self.shield is None else self.shield.attacked, self.images[:1])
        network = InPrecision(self.model, settings.precision)
        self.context = RunContext(
            network=network,
            entropy=self._compiled_entropy(network),
            shield=self.shield,
            label_smoothing=settings.label_smoothing,
            seed=settings.seed,
        )

    @property
    def best(self) -> Normalised:
        """The weights that are tested and saved: the moving average where there is one."""
        return self.model if self.average is None else self.average

    def first_model(self, training: ImageSet) -> Normalised:
        """The classifier before the first step, on the CPU, its weights drawn from the seed."""
        mean, std = channel_statistics(training.images)
        return Normalised(self.fresh_network(training), mean=mean, std=std)

    def fresh_network(self, training: ImageSet) -> Network:
        """The network that the settings name, its weights drawn from the seed."""
        with torch_seeded(self.settings.seed, torch.device("cpu")):  # what initialisers draw from
            return build(
                self.settings.arch,
                classes=len(training.classes),
                in_channels=training.images.shape[1],
                **self.settings.options,
            )

    def make_optimizer(self) -> torch.optim.Optimizer:
        """SGD with Nesterov's momentum; weights decay, norms and biases do not."""
        return torch.optim.SGD(
            parameter_groups(self.model, decay=WEIGHT_DECAY, others=0.0),
            lr=self.settings.peak_lr,
            momentum=MOMENTUM,
            nesterov=True,
            fused=self.device.type == "cuda",
        )

    def rate(self, step: int) -> float:
        """The learning rate of a step, numbered from 0 over the whole run."""
        return one_cycle(step, steps=self.settings.epochs * self.steps, peak=self.settings.peak_lr)

    def augmented(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """An epoch's images, shifted and mirrored at random."""
        settings = self.settings
        return crop_and_flip(images, padding=settings.padding, flip=bool(settings.flip), generator=generator)

    def epoch(self, number: int, report: Steps = lambda *_: None, *, test: bool = True) -> EpochRecord:
        """Run epoch ``number`` (from 0), and test."""
        began, batch = time.perf_counter(), self.settings.batch
        # Images behind the shield are checked at every report: a check per step would sync the GPU.
        with torch_seeded(epoch_seed(self.settings.seed, number), self.device), checks.later() as pending:
            images, labels = self._epoch_data(number)
            self.model.train()
            total = torch.zeros((), device=self.device)
            correct = torch.zeros((), device=self.device, dtype=torch.int64)
            reported, reported_at = 0.0, 0
            for step in range(self.steps):
                part = slice(step * batch, (step + 1) * batch)
                loss, hits = self._step(number * self.steps + step, images[part], labels[part])
                total += loss
                correct += hits
                if (step + 1) % REPORT_EVERY == 0 or step + 1 == self.steps:
                    pending.settle()
                    so_far = float(total)
                    report(step + 1, (so_far - reported) / (step + 1 - reported_at))
                    reported, reported_at = so_far, step + 1
            if not math.isfinite(reported):
                raise VqshieldError(
                    f"the loss of epoch {number + 1} is {reported}; "
                    f"lower peak_lr={self.settings.peak_lr} and start over"
                )
            tested = self.test_accuracy(self.best, precision=self.settings.precision) if test else None
        return EpochRecord(
            epoch=number + 1,
            loss=reported / self.steps,
            train_accuracy=int(correct) / (self.steps * batch),
            test_accuracy=tested,
            seconds=round(time.perf_counter() - began, 3),
        )

    def test_accuracy(self, model: nn.Module, *, precision: Precision = "float32") -> float:
        """The accuracy of a model on the test images, behind the shield if there is one."""
        return accuracy(model, self.test_images, self.test_labels, shield=self.shield, precision=precision)

    def tensors(self) -> Parts:
        """Everything that a resumed run needs."""
        return {
            "weights": dict(self.model.state_dict()),
            "optimizer": {
                f"{slot}/{name}": value
                for name, parameter in self.model.named_parameters()
                for slot, value in self.optimizer.state[parameter].items()
                if value is not None
            },
            "ema": {} if self.average is None else dict(self.average.state_dict()),
        }

    def restore(self, tensors: Parts) -> None:
        """Load the tensors of a checkpoint."""
        try:
            self.model.load_state_dict(tensors["weights"])
            if self.average is not None:
                self.average.load_state_dict(tensors["ema"])
            parameters = dict(self.model.named_parameters())
            for key, value in tensors["optimizer"].items():
                slot, _, name = key.partition("/")
                parameter = parameters[name]
                # Adam's count of steps is one number, which its fused form keeps on the device.
                state = torch.empty_like(parameter).copy_(value) if value.ndim else value.to(self.device)
                self.optimizer.state[parameter][slot] = state
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise FileFormatError(f"the checkpoint is of another network: {reason}") from error

    def _epoch_data(self, number: int) -> tuple[Tensor, Tensor]:
        """The epoch's augmented images and labels in their order; all at once needs few kernel launches."""
        settings = self.settings
        generator = torch.Generator(self.device).manual_seed(epoch_seed(settings.seed, number))
        order = torch.randperm(len(self.images), generator=generator, device=self.device)
        order = order[: self.steps * settings.batch]
        images = self.augmented(self.images[order], generator)
        images = cutout(images, size=settings.cutout, fill=self.fill, generator=generator)
        return images, self.labels[order]

    def _step(self, step: int, images: Tensor, labels: Tensor) -> LossAndHits:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)
        if self.settings.compile_mode != "off":
            # CUDA graphs may now overwrite the outputs of the last step.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss, hits = self.objective(self.context, images, labels, step=step)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            decay = min(self.settings.ema, (1 + step) / (10 + step))  # short at first: the start is forgotten
            get_ema_multi_avg_fn(decay)(*self.moving, None)  # type: ignore[no-untyped-call]
        return loss.detach(), hits

    def _compiled_entropy(self, network: nn.Module) -> Callable[[Tensor, Tensor], LossAndHits]:
        settings = self.settings

        def entropy(images: Tensor, labels: Tensor) -> LossAndHits:
            floats = images if images.is_floating_point() else images.float() / 255
            logits = network(floats)
            loss = F.cross_entropy(logits, labels, label_smoothing=settings.label_smoothing)
            return loss, (logits.argmax(1) == labels).sum()

        if settings.compile_mode == "off":
            return entropy
        compiled: Callable[[Tensor, Tensor], LossAndHits] = torch.compile(
            entropy, mode=settings.compile_mode, dynamic=False
        )
        return compiled


class InPrecision(nn.Module):
    """The network as a run computes it: channels last and its precision inside, float32 logits outside."""

    def __init__(self, network: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.network, self.in_bf16 = network, precision == "bf16"

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) for float images."""
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.in_bf16):
            logits: Tensor = self.network(images)
        return logits.float()


def channel_statistics(images: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel in [0,1], from exact counts, to four digits."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten().cpu(), minlength=256).double()
        share = counts / counts.sum()
        mean = (share * values).sum()
        means.append(round(float(mean), 4))
        deviations.append(max(round(float((share * (values - mean) ** 2).sum().sqrt()), 4), 1e-4))
    return means, deviations


def one_cycle(step: int, *, steps: int, peak: float) -> float:
    """Smith and Topin 2018: a line up to the peak, then a cosine down to almost 0."""
    top = WARMUP * (steps - 1)
    if step < top:
        return peak * (START + (1 - START) * step / top)
    done = (step - top) / max(steps - 1 - top, 1)
    return peak * (END + (1 - END) * (1 + math.cos(math.pi * done)) / 2)


def epoch_seed(seed: int, epoch: int) -> int:
    """63 bits that differ for every (seed, epoch), unlike seed + epoch."""
    return int.from_bytes(hashlib.sha256(f"vqshield {seed} {epoch}".encode()).digest()[:8], "big") >> 1


@contextmanager
def fast_convolutions() -> Iterator[None]:
    """Let cuDNN time its algorithms during the run, in which shapes never change."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def parameter_groups(model: nn.Module, *, decay: float, others: float) -> list[dict[str, object]]:
    """An optimizer's parameter groups: weights with their decay, norms and biases with another."""
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": decay},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": others},
    ]


def _moving(model: nn.Module) -> list[Tensor]:
    """What an average follows: parameters and norm statistics, but no counters; a shared tensor once."""
    floats = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    return list({tensor.data_ptr(): tensor for tensor in floats}.values())

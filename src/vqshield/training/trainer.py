"""Train a classifier: all data on the device, a state between epochs that a checkpoint can hold.

Order and augmentation of an epoch come from generators seeded by (seed, epoch), so a resumed run meets the
batches that it would have met anyway, and the global generator is left alone.

What is promised: on a CPU, with one version of torch, one kind of processor and one number of threads
(OMP_NUM_THREADS), the weights are the same, bit for bit and as files byte for byte, however often the run is
killed and resumed. Another number of threads adds up in another order and ends with different weights: a
checkpoint records the number, and a run with another one is refused. On a GPU nothing is promised: cuDNN
chooses its algorithms by timing them, and some add up in no fixed order.
"""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vqshield.classifiers import Normalised
from vqshield.core import checks
from vqshield.core.errors import FileFormatError, InvalidInputError, VqshieldError
from vqshield.data import ImageSet
from vqshield.defenses import Defense
from vqshield.training.augment import crop_and_flip, cutout
from vqshield.training.measures import accuracy, channel_statistics
from vqshield.training.objectives import Workplace, objective
from vqshield.training.progress import EpochRecord, Progress
from vqshield.training.schedule import cosine, one_cycle, stepwise
from vqshield.training.settings import TrainSettings
from vqshield.training.shielding import TrainingShield
from vqshield.training.start import first_model

REPORT_EVERY = 20  # steps; each report waits for the device, so not more often


class Trainer:
    """The state of one run: ``epoch`` advances it, ``tensors`` and ``restore`` carry it over a restart."""

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
        """Model and defense: what stands for the network and the shield that the settings name."""
        if settings.batch > len(training):
            raise InvalidInputError(
                f"batch={settings.batch} must be at most {len(training)}, the training images"
            )
        self.settings, self.device = settings, device
        # An incomplete last batch is left out; the next epoch's order leaves out other images.
        self.steps = len(training) // settings.batch
        self.images, self.labels = training.images.to(device), training.labels.to(device)
        self.test_images, self.test_labels = test.images.to(device), test.labels.to(device)
        self.shield, chosen = None, settings.shield if defense is None else defense
        if chosen is not None:
            self.shield = TrainingShield(chosen, seed=settings.seed, device=device)
            self.shield.check(self.images)
        mean, _ = channel_statistics(training.images)
        self.fill = (torch.tensor(mean, device=device) * 255).round()
        self.model = (first_model(settings, training) if model is None else model).to(device)
        if settings.channels_last:
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = copy.deepcopy(self.model).eval().requires_grad_(False) if settings.ema else None
        self.moving = () if self.average is None else (_moving(self.average), _moving(self.model))
        self.optimizer = _optimizer(self.model, settings, device)
        self.loss_of = self._compiled_loss()
        self.objective = objective(settings.method)
        self.objective.check(None if self.shield is None else self.shield.attacked, self.images[:1])
        self.place = Workplace(
            network=InPrecision(self.model, settings),
            entropy=self.loss_of,
            shield=self.shield,
            label_smoothing=settings.label_smoothing,
            seed=settings.seed,
        )

    @property
    def best(self) -> Normalised:
        """The weights that are tested and saved: the moving average where there is one."""
        return self.model if self.average is None else self.average

    def epoch(self, number: int, progress: Progress, *, test: bool = True) -> EpochRecord:
        """Run epoch ``number`` (from 0), and test."""
        # The shield's images are looked at with every report: at every draw, a GPU would wait for the look.
        with _seeded(epoch_seed(self.settings.seed, number), self.device), checks.later() as looks:
            return self._epoch(number, progress, looks, test=test)

    def _epoch(self, number: int, progress: Progress, looks: checks.Later, *, test: bool) -> EpochRecord:
        began = time.perf_counter()
        images, labels = self._epoch_data(number)
        batch = self.settings.batch
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
                looks.settle()
                so_far = float(total)
                progress.step(
                    epoch=number + 1, step=step + 1, loss=(so_far - reported) / (step + 1 - reported_at)
                )
                reported, reported_at = so_far, step + 1
        if not math.isfinite(reported):
            raise VqshieldError(
                f"the loss of epoch {number + 1} is {reported}; "
                f"lower peak_lr={self.settings.peak_lr} and start over"
            )
        return EpochRecord(
            epoch=number + 1,
            loss=reported / self.steps,
            train_accuracy=int(correct) / (self.steps * batch),
            test_accuracy=self.test_accuracy(self.best, precision=self.settings.precision) if test else None,
            seconds=round(time.perf_counter() - began, 3),
        )

    def test_accuracy(self, model: nn.Module, *, precision: str = "fp32") -> float:
        """The fraction of test images that a model labels right, behind the shield if there is one."""
        return accuracy(model, self.test_images, self.test_labels, shield=self.shield, precision=precision)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
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

    def restore(self, tensors: dict[str, dict[str, Tensor]]) -> None:
        """Take over the tensors of a checkpoint."""
        try:
            self.model.load_state_dict(tensors["weights"])
            if self.average is not None:
                self.average.load_state_dict(tensors["ema"])
            parameters = dict(self.model.named_parameters())
            for key, value in tensors["optimizer"].items():
                slot, _, name = key.partition("/")
                parameter = parameters[name]
                # Adam's count of steps is one number, which its fused form keeps on the device.
                place = "cpu" if value.ndim == 0 and self.device.type == "cpu" else self.device
                held = value.to(place) if value.ndim == 0 else torch.empty_like(parameter).copy_(value)
                self.optimizer.state[parameter][slot] = held
        except (RuntimeError, KeyError) as error:
            said = " ".join(str(error).split())
            raise FileFormatError(f"the checkpoint is of another network: {said}") from error

    def _epoch_data(self, number: int) -> tuple[Tensor, Tensor]:
        """The epoch's augmented images and labels in their order; all at once costs few launches."""
        settings = self.settings
        generator = torch.Generator(self.device).manual_seed(epoch_seed(settings.seed, number))
        order = torch.randperm(len(self.images), generator=generator, device=self.device)
        order = order[: self.steps * settings.batch]
        images = crop_and_flip(
            self.images[order],
            padding=settings.padding,
            flip=bool(settings.flip),
            generator=generator,
            border=settings.border,
        )
        images = cutout(images, size=settings.cutout, fill=self.fill, generator=generator)
        return images, self.labels[order]

    def _step(self, step: int, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        rate = self._rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.settings.compile_mode != "off":
            # CUDA graphs may now overwrite the outputs of the last step.
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss, hits = self.objective(self.place, images, labels, step=step)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            decay = min(self.settings.ema, (1 + step) / (10 + step))  # short at first: the start is forgotten
            get_ema_multi_avg_fn(decay)(*self.moving, None)  # type: ignore[no-untyped-call]
        return loss.detach(), hits

    def _rate(self, step: int) -> float:
        settings, steps = self.settings, self.settings.epochs * self.steps
        if settings.schedule == "one-cycle":
            return one_cycle(step, steps=steps, peak=settings.peak_lr)
        if settings.schedule == "cosine":
            return cosine(step, steps=steps, peak=settings.peak_lr)
        milestones = [epoch * self.steps for epoch in settings.milestones]  # none: the rate is constant
        return stepwise(step, steps=steps, peak=settings.peak_lr, milestones=milestones, drop=settings.drop)

    def _compiled_loss(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        settings, model, device = self.settings, self.model, self.device
        layout = torch.channels_last if settings.channels_last else torch.contiguous_format

        def loss_of(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            floats = (
                images if images.is_floating_point() else images.float() / 255
            )  # shielded ones are floats
            floats = floats.contiguous(memory_format=layout)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=settings.precision == "bf16"):
                logits = model(floats)
            loss = F.cross_entropy(logits.float(), labels, label_smoothing=settings.label_smoothing)
            return loss, (logits.argmax(1) == labels).sum()

        if settings.compile_mode == "off":
            return loss_of
        compiled: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = torch.compile(
            loss_of, mode=settings.compile_mode, dynamic=False
        )
        return compiled


class InPrecision(nn.Module):
    """The network as a run computes it: its layout and its precision inside, float32 logits outside."""

    def __init__(self, network: nn.Module, settings: TrainSettings) -> None:
        super().__init__()
        self.network, self.in_bf16 = network, settings.precision == "bf16"
        self.layout = torch.channels_last if settings.channels_last else torch.contiguous_format

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) for float images."""
        images = images.contiguous(memory_format=self.layout)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.in_bf16):
            logits: Tensor = self.network(images)
        return logits.float()


def epoch_seed(seed: int, epoch: int) -> int:
    """63 bits that differ for every (seed, epoch), unlike seed + epoch."""
    return int.from_bytes(hashlib.sha256(f"vqshield {seed} {epoch}".encode()).digest()[:8], "big") >> 1


@contextmanager
def fast_convolutions() -> Iterator[None]:
    """Let cuDNN time its algorithms during the run; shapes never change, and the flag is given back."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Layers that draw (dropout) read the global generators: seed them, and give them back as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _optimizer(model: nn.Module, settings: TrainSettings, device: torch.device) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    others = settings.weight_decay if settings.decay == "all" else 0.0
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": others},  # norms and biases
    ]
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, lr=settings.peak_lr, fused=device.type == "cuda")
    return torch.optim.SGD(
        groups,
        lr=settings.peak_lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        fused=device.type == "cuda",
    )


def _moving(model: nn.Module) -> list[Tensor]:
    """What an average follows: parameters and norm statistics, but no counters; a shared tensor once."""
    floats = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
    return list({tensor.data_ptr(): tensor for tensor in floats}.values())

"""What a training run reports while it runs. The library itself prints nothing."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch gave; accuracies are fractions."""

    epoch: int  # from 1
    loss: float
    train_accuracy: float
    test_accuracy: float | None  # None: this epoch was not tested
    seconds: float


class Progress(Protocol):
    """Receives the reports of a run."""

    def start(self, *, epochs: int, done: int, steps: int) -> None:
        """Training begins after ``done`` epochs; every epoch has ``steps`` steps."""

    def step(self, *, epoch: int, step: int, loss: float) -> None:
        """Called every few steps, with the mean loss since the last call."""

    def epoch_end(self, record: EpochRecord) -> None:
        """Called once an epoch, after its checkpoint is written if one is due."""


class Silent:
    """Ignores every report."""

    def start(self, *, epochs: int, done: int, steps: int) -> None:
        """Do nothing."""

    def step(self, *, epoch: int, step: int, loss: float) -> None:
        """Do nothing."""

    def epoch_end(self, record: EpochRecord) -> None:
        """Do nothing."""


class Lines:
    """Prints one plain line an epoch, for logs and for machines without rich."""

    def start(self, *, epochs: int, done: int, steps: int) -> None:
        """Remember how many epochs there are."""
        self.epochs = epochs
        print(f"{epochs} epochs of {steps} steps" + (f", {done} already done" if done else ""), flush=True)

    def step(self, *, epoch: int, step: int, loss: float) -> None:
        """Do nothing."""

    def epoch_end(self, record: EpochRecord) -> None:
        """Print the epoch."""
        tested = "" if record.test_accuracy is None else f"test {record.test_accuracy:.4f}  "
        print(
            f"epoch {record.epoch}/{self.epochs}  loss {record.loss:.4f}  train {record.train_accuracy:.4f}  "
            f"{tested}{record.seconds:.1f} s",
            flush=True,
        )

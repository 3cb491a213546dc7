"""What a run reports, and to whom: the library itself prints nothing and needs no rich."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch gave; accuracies are fractions."""

    epoch: int  # from 1
    loss: float
    train_accuracy: float
    test_accuracy: float
    seconds: float


class Progress(Protocol):
    """Who wants to watch a run; the library itself prints nothing."""

    def start(self, *, epochs: int, done: int, steps: int) -> None:
        """Training begins after ``done`` epochs; every epoch has ``steps`` steps."""

    def step(self, *, epoch: int, step: int, loss: float) -> None:
        """Come by every few steps: mean loss since the last call."""

    def epoch_end(self, record: EpochRecord) -> None:
        """Come by once an epoch, after its checkpoint is written."""


class Silent:
    """Watches nothing."""

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
        print(
            f"epoch {record.epoch}/{self.epochs}  loss {record.loss:.4f}  train {record.train_accuracy:.4f}  "
            f"test {record.test_accuracy:.4f}  {record.seconds:.1f} s",
            flush=True,
        )

"""What the commands that train show: a progress bar, and how to continue an interrupted run."""

from pathlib import Path

import typer

from vqshield.cli.bars import progress_bar
from vqshield.core.errors import printable
from vqshield.training import EpochRecord


class TrainingBar:
    """A progress bar on stderr with loss, accuracy and the time left."""

    def __init__(self, *, hidden: bool) -> None:
        self.hidden = hidden
        self.bar = progress_bar(
            "epoch {task.fields[epoch]}",
            notes="loss {task.fields[loss]}  test {task.fields[accuracy]}",
            hidden=hidden,
        )

    def __enter__(self) -> "TrainingBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def start(self, *, epochs: int, done: int, steps: int) -> None:
        """Show the bar, already filled by what a checkpoint brought, and say where the run continues."""
        if done and not self.hidden:
            typer.echo(f"resumed from the checkpoint after epoch {done} of {epochs}", err=True)
        self.epochs, self.steps = epochs, steps
        self.task = self.bar.add_task(
            "train",
            total=epochs * steps,
            completed=done * steps,
            epoch=f"{done}/{epochs}",
            loss="-",
            accuracy="-",
        )

    def step(self, *, epoch: int, step: int, loss: float) -> None:
        """Move on by some steps."""
        done = (epoch - 1) * self.steps + step
        self.bar.update(self.task, completed=done, epoch=f"{epoch}/{self.epochs}", loss=f"{loss:.3f}")

    def epoch_end(self, record: EpochRecord) -> None:
        """Show the accuracy of the epoch."""
        if record.test_accuracy is not None:
            self.bar.update(self.task, accuracy=f"{record.test_accuracy:.2%}")


def how_to_continue(checkpoint: Path) -> str:
    """Say how to continue the interrupted run that keeps this checkpoint."""
    if checkpoint.is_file():
        return f"whole epochs are in {printable(checkpoint)}; run the same command to continue"
    return "no epoch was finished, so there is nothing to resume"

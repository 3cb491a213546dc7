"""Training of the classifiers that the defenses shield."""

from vqshield.training.progress import EpochRecord, Lines, Progress, Silent
from vqshield.training.run import TrainResult, checkpoint_path, train, train_on
from vqshield.training.settings import TrainSettings, trainable

__all__ = [
    "EpochRecord",
    "Lines",
    "Progress",
    "Silent",
    "TrainResult",
    "TrainSettings",
    "checkpoint_path",
    "train",
    "train_on",
    "trainable",
]

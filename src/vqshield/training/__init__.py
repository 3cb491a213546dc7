"""Training of the classifiers that the defenses shield."""

from vqshield.training.calibration import Calibrated, Calibration, calibrate
from vqshield.training.hardening import Hardened, HardenSettings, harden
from vqshield.training.objectives import list_objectives
from vqshield.training.progress import EpochRecord, Lines, Progress, Silent
from vqshield.training.run import TrainResult, checkpoint_path, train, train_on
from vqshield.training.settings import TrainSettings, trainable

__all__ = [
    "Calibrated",
    "Calibration",
    "EpochRecord",
    "HardenSettings",
    "Hardened",
    "Lines",
    "Progress",
    "Silent",
    "TrainResult",
    "TrainSettings",
    "calibrate",
    "checkpoint_path",
    "harden",
    "list_objectives",
    "train",
    "train_on",
    "trainable",
]

"""Training of the classifiers that the defenses shield."""

from vqshield.training.calibration import Calibrated, Calibration, calibrate
from vqshield.training.checkpoint import EpochRecord
from vqshield.training.hardening import Hardened, HardenSettings, harden
from vqshield.training.objectives import list_objectives
from vqshield.training.run import TrainResult, train_on
from vqshield.training.saving import RunFiles, checkpoint_path
from vqshield.training.settings import TrainSettings, trainable

__all__ = [
    "Calibrated",
    "Calibration",
    "EpochRecord",
    "HardenSettings",
    "Hardened",
    "RunFiles",
    "TrainResult",
    "TrainSettings",
    "calibrate",
    "checkpoint_path",
    "harden",
    "list_objectives",
    "train_on",
    "trainable",
]

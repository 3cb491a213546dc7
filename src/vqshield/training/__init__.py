"""Training, hardening and calibration of the classifiers that the defenses shield."""

from vqshield.training.calibration import Calibrated, calibrate
from vqshield.training.hardening import Hardened, harden
from vqshield.training.objectives import list_objectives
from vqshield.training.run import RunFiles, TrainResult, train_on
from vqshield.training.settings import TRAINABLE, TrainSettings

__all__ = [
    "TRAINABLE",
    "Calibrated",
    "Hardened",
    "RunFiles",
    "TrainResult",
    "TrainSettings",
    "calibrate",
    "harden",
    "list_objectives",
    "train_on",
]

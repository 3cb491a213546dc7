"""Training from scratch by the recipes of the paper and of the networks' authors."""

from vqshield_paper.training.recipe import Recipe
from vqshield_paper.training.trainer import train, train_on

__all__ = ["Recipe", "train", "train_on"]

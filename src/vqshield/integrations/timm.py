"""A model of timm behind a shield, with its own normalisation inside."""

from collections.abc import Callable

from torch import Tensor, nn

from vqshield.classifiers.normalised import Normalised
from vqshield.defended import Defended
from vqshield.defenses import DefenseLike, as_defense
from vqshield.integrations import require

_data = require("timm.data", "timm")


def defended_timm(
    model: nn.Module, defense: DefenseLike = "swrd", *, surrogate: str = "ste", seed: int | None = None
) -> tuple[Defended, Callable[[object], Tensor]]:
    """A shielded model, and the transform that turns a PIL image into its input in [0, 1].

    Args:
        model: as timm.create_model made it; its data configuration says size, crop, mean and std.
        defense: a spec string, "swrd:size=3", or a Defense.
        surrogate: as of `vqshield.Defended`.
        seed: the seed of the draws; None takes fresh entropy.
    """
    config = _data.resolve_model_data_config(model)
    inside = Normalised(model, mean=list(config["mean"]), std=list(config["std"]))
    outside = {**config, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    transform: Callable[[object], Tensor] = _data.create_transform(**outside, is_training=False)
    return Defended(inside, as_defense(defense, seed=seed), surrogate=surrogate), transform

"""What a recipe decides beyond the settings that every training has."""

from dataclasses import dataclass
from typing import Literal, get_args

from vqshield.core.checks import one_of, real, whole
from vqshield.core.errors import InvalidInputError
from vqshield.training.settings import MOMENTUM, WEIGHT_DECAY, TrainSettings

Optimizer = Literal["sgd", "adam"]
Schedule = Literal["one-cycle", "cosine", "step", "constant"]
Decay = Literal["weights", "all"]
Border = Literal["mirror", "black"]


@dataclass(frozen=True, kw_only=True)
class Recipe(TrainSettings):
    """Everything that decides the weights of a network trained from scratch, or from those of a file.

    Attributes:
        optimizer: "sgd" or "adam".
        momentum: momentum of SGD.
        nesterov: use Nesterov's momentum, with SGD.
        schedule: how the rate goes down from the highest: "one-cycle", "cosine", "step" or
            "constant".
        milestones: epochs after which schedule step drops the rate.
        drop: factor that schedule step multiplies the rate by.
        weight_decay: weight decay.
        decay: what the weight decay applies to: "weights", or "all", norms and biases as well.
        border: what a shifted image shows at its edges: "mirror" or "black".
        normalise: subtract the training images' mean from pixels, and divide by their deviation.
    """

    optimizer: Optimizer = "sgd"
    momentum: float = MOMENTUM
    nesterov: bool = True
    schedule: Schedule = "one-cycle"
    milestones: tuple[int, ...] = ()
    drop: float = 0.1
    weight_decay: float = WEIGHT_DECAY
    decay: Decay = "weights"
    border: Border = "mirror"
    normalise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("optimizer", self.optimizer, get_args(Optimizer))
        one_of("schedule", self.schedule, get_args(Schedule))
        one_of("decay", self.decay, get_args(Decay))
        one_of("border", self.border, get_args(Border))
        real("weight_decay", self.weight_decay)
        self._check_reals(positive=("drop",), below_one=("momentum",))
        milestones = tuple(whole("milestones", each, least=1, below=self.epochs) for each in self.milestones)
        if bool(milestones) != (self.schedule == "step"):
            raise InvalidInputError(
                f"milestones={list(milestones)} with schedule={self.schedule!r}; "
                'give milestones, such as 60, 120, 160, to schedule="step" and to no other'
            )
        if list(milestones) != sorted(set(milestones)):
            raise InvalidInputError(f"milestones={list(milestones)} should rise")
        object.__setattr__(self, "milestones", milestones)

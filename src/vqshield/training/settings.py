"""The settings of a training run."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from vqshield.classifiers import list_classifiers
from vqshield.classifiers.folding import Precision
from vqshield.core.checks import one_of, real, whole
from vqshield.core.entry_points import function_digest
from vqshield.core.errors import InvalidInputError
from vqshield.core.files import file_sha256
from vqshield.core.serialization import Json
from vqshield.defenses import from_text, is_preprocessor
from vqshield.training.objectives import objective

CompileMode = Literal["off", "default", "reduce-overhead", "max-autotune-no-cudagraphs"]

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4
RECIPE: Mapping[str, Json] = {
    "optimizer": "sgd",
    "momentum": MOMENTUM,
    "nesterov": True,
    "schedule": "one-cycle",
    "milestones": [],
    "drop": 0.1,
    "weight_decay": WEIGHT_DECAY,
    "decay": "weights",
    "border": "mirror",
    "normalise": True,
    "channels_last": True,
}
"""What is the same in every run here. Cards and checkpoints state it, because other recipes may vary it."""


TRAINABLE = ("cifar10", "cifar100", "mnist")
"""The data sets whose training split fits into memory, where the trainer holds it."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Everything that decides the weights; a run resumes only under equal settings.

    Attributes:
        data: data set with a training and a test split.
        arch: name of the network.
        epochs: passes over the training images.
        batch: images per step.
        peak_lr: highest learning rate.
        label_smoothing: share of the target that is spread over all classes.
        padding: shift images by up to this many pixels.
        flip: mirror images at random (default: unless the data are digits).
        cutout: side of the square that is painted over, in pixels; 0: none.
        ema: decay of the averaged weights, which are then tested and saved; 0: no averaging.
        seed: seed of initial weights, order and augmentation.
        precision: "float32" or "bf16".
        compile_mode: mode of torch.compile: "off", "default", "reduce-overhead" or
            "max-autotune-no-cudagraphs".
        options: settings of the network, for example widths and blocks of "small", stem of "resnet18".
        shield: defense in front of the network in training and in tests, such as
            "swrd:noise=shared,sigma=0.12,tau=0.12", or noise alone, "gaussian:sigma=0.12" (default: none).
        start: start from the weights in this safetensors file of the same network (default: random weights).
        method: training objective (see training/objectives.py), such as "noise:sigma=0.06"; None: "natural".
    """

    data: str
    arch: str
    epochs: int = 30
    batch: int = 512
    peak_lr: float = 0.4
    label_smoothing: float = 0.05
    padding: int = 4
    flip: bool | None = None
    cutout: int = 0
    ema: float = 0.0
    seed: int = 0
    precision: Precision = "float32"
    compile_mode: CompileMode = "off"
    options: Mapping[str, Json] = field(default_factory=dict)
    shield: str | None = None
    start: str | Path | None = None
    method: str | None = None

    def __post_init__(self) -> None:
        self._check_subject()
        objective(self.method)
        one_of("precision", self.precision, get_args(Precision))
        one_of("compile_mode", self.compile_mode, get_args(CompileMode))
        for name in ("epochs", "batch"):
            whole(name, getattr(self, name), least=1)
        for name in ("padding", "cutout", "seed"):
            whole(name, getattr(self, name), least=0)
        self._check_reals(positive=("peak_lr",), below_one=("ema", "label_smoothing"))
        if self.flip is None:
            object.__setattr__(self, "flip", self.data != "mnist")
        if self.start is not None and not Path(self.start).is_file():
            raise InvalidInputError(f"start={str(self.start)!r} is not a file; give a classifier's weights")
        # Through JSON and back: lists and tuples then equal those of a checkpoint.
        object.__setattr__(self, "options", json.loads(json.dumps(dict(self.options))))

    def _check_reals(self, *, positive: tuple[str, ...], below_one: tuple[str, ...]) -> None:
        for name in positive:
            if real(name, getattr(self, name)) == 0:
                raise InvalidInputError(f"{name}=0 should be above 0")
        for name in below_one:
            if real(name, getattr(self, name), most=1) == 1:
                raise InvalidInputError(f"{name}=1 should be below 1")

    def _check_subject(self) -> None:
        """Refuse data, a network or a shield that cannot be trained on, trained or trained behind."""
        one_of("data", self.data, TRAINABLE)
        one_of("arch", self.arch, list_classifiers())
        if self.shield is not None:
            from_text(self.shield, seed=0)

    @property
    def name(self) -> str:
        return f"{self.arch}-{self.data}"

    @property
    def code(self) -> str | None:
        """A digest of the user's files that make defense and classifier; None: no user's file makes them."""
        return function_digest(self.shield) if self.shield and is_preprocessor(self.shield) else None

    def to_dict(self) -> dict[str, Json]:
        """The settings as JSON holds them; the file to start from by its name and SHA-256."""
        start = None
        if self.start is not None:
            path = Path(self.start)
            start = {"file": path.name, "sha256": file_sha256(path)}
        return {**RECIPE, **json.loads(json.dumps({**asdict(self), "start": start}))}

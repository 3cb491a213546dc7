"""The grey-box attacker's own network: trained behind the shield that is attacked."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from vqshield.core.devices import pick_device
from vqshield.core.files import parse_json
from vqshield.runs.study import Progress
from vqshield.training import EpochRecord, TrainSettings, train


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Where the weights are, and how long they took."""

    weights: Path
    seconds: float


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """What the attacker trains: another architecture with another seed, on the same data.

    Attributes:
        data, folder: the training images.
        shield: the defense by text; None where there is none.
        out: a folder; networks behind other shields lie beside each other in it.
    """

    data: str
    folder: Path
    arch: str
    epochs: int
    batch: int
    seed: int
    shield: str | None
    device: str
    out: Path

    def trained(self, progress: Progress) -> Trained:
        """Train it, continue where that was stopped, or find it done."""
        settings = TrainSettings(
            data=self.data, arch=self.arch, epochs=self.epochs, batch=self.batch, seed=self.seed,
            shield=self.shield, precision="bf16" if pick_device(self.device).type == "cuda" else "fp32",
        )  # fmt: skip
        shield = hashlib.sha256(str(self.shield).encode()).hexdigest()[:8]
        out = self.out / f"{self.arch}-{shield}"
        weights, card = out / f"{settings.name}.safetensors", out / f"{settings.name}.json"
        if weights.is_file() and card.is_file():
            held = parse_json(card.read_bytes(), card)
            if held.get("settings") == settings.to_dict():
                return Trained(weights=weights, seconds=float(held["seconds"]))
        teller = _Teller(f"training the attacker's {self.arch}", progress)
        result = train(settings, folder=self.folder, out=out, device=self.device, progress=teller)
        return Trained(weights=result.weights, seconds=result.seconds)


class _Teller:
    """A training's progress as that of a study."""

    def __init__(self, title: str, progress: Progress) -> None:
        self._title, self._progress, self._steps, self._total = title, progress, 0, 0

    def start(self, *, epochs: int, done: int, steps: int) -> None:
        """How much there is."""
        self._steps, self._total = steps, epochs * steps
        self._progress(self._title, done * steps, self._total)

    def step(self, *, epoch: int, step: int, loss: float) -> None:
        """How much is done."""
        self._progress(self._title, (epoch - 1) * self._steps + step, self._total)

    def epoch_end(self, record: EpochRecord) -> None:
        """Nothing more to tell."""

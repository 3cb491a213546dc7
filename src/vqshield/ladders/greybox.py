"""The grey-box attacker's own network: trained behind the shield that is attacked."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from vqshield.core.devices import pick_device
from vqshield.core.files import parse_json
from vqshield.core.progress import Progress
from vqshield.data import load


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
        from vqshield.training import RunFiles, TrainSettings, train_on  # few ladders train

        settings = TrainSettings(
            data=self.data, arch=self.arch, epochs=self.epochs, batch=self.batch, seed=self.seed,
            shield=self.shield, precision="bf16" if pick_device(self.device).type == "cuda" else "fp32",
        )  # fmt: skip
        shield = hashlib.sha256(str(self.shield).encode()).hexdigest()[:8]
        files = RunFiles(self.out / f"{self.arch}-{shield}", settings.name)
        if files.weights.is_file() and files.card.is_file():
            held = parse_json(files.card.read_bytes(), files.card)
            if held.get("settings") == settings.to_dict():
                return Trained(weights=files.weights, seconds=float(held["seconds"]))
        splits = (load(self.data, split, self.folder) for split in ("train", "test"))
        result = train_on(
            settings, *splits, out=files.folder, device=self.device,
            progress=lambda doing, done, total: progress(f"the attacker's {self.arch}, {doing}", done, total),
        )  # fmt: skip
        return Trained(weights=result.weights, seconds=result.seconds)

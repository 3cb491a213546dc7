"""The grey-box attacker's own network: trained behind the defense that is attacked."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from vqshield.classifiers import Network, Normalised
from vqshield.core.environment import pick_device
from vqshield.core.files import parse_json
from vqshield.core.progress import Progress
from vqshield.data import SAMPLE_NAME, load
from vqshield.ladders.settings import LadderSettings
from vqshield.runs.target import Target


@dataclass(frozen=True, kw_only=True)
class TrainingImages:
    """The folder with the attacker's training images; data: their data set, by default the target's."""

    folder: Path
    data: str | None = None


def own_network(
    images: TrainingImages,
    target: Target,
    shield: str | None,
    settings: LadderSettings,
    *,
    out: Path,
    progress: Progress,
) -> tuple[Path, float]:
    """The weights of another architecture, trained behind a defense, and the seconds that training took.

    An interrupted training resumes, and a finished one is found in `out`, which has a folder per defense.
    """
    from vqshield.training.run import RunFiles, train_on  # few ladders train
    from vqshield.training.settings import TrainSettings

    data = images.data or ("cifar10" if target.data == SAMPLE_NAME else target.data)
    network = target.model.network if isinstance(target.model, Normalised) else target.model
    is_resnet = isinstance(network, Network) and network.arch == "resnet18"
    arch = settings.own_arch or ("small" if is_resnet else "resnet18")  # not the attacked classifier's
    training = TrainSettings(
        data=data, arch=arch, epochs=settings.own_epochs, batch=settings.own_batch, seed=settings.own_seed,
        shield=shield, precision="bf16" if pick_device(target.device).type == "cuda" else "float32",
    )  # fmt: skip
    digest = hashlib.sha256(str(shield).encode()).hexdigest()[:8]
    files = RunFiles(out / f"{arch}-{digest}", training.name)
    if files.weights.is_file() and files.card.is_file():
        card = parse_json(files.card.read_bytes(), files.card)
        if card.get("settings") == training.to_dict():
            return files.weights, float(card["seconds"])
    splits = (load(data, split, images.folder) for split in ("train", "test"))
    result = train_on(
        training, *splits, out=files.folder, device=target.device,
        progress=lambda doing, done, total: progress(f"the attacker's {arch}, {doing}", done, total),
    )  # fmt: skip
    return result.weights, result.seconds

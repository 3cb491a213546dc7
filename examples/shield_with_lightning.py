"""Test a LightningModule on shielded images; the module itself stays as it is.

pip install ".[lightning]" -c constraints.txt
python examples/shield_with_lightning.py
"""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from vqshield.classifiers import small_cifar10
from vqshield.data import sample
from vqshield.integrations.lightning import ShieldCallback


class Module(lightning.LightningModule):
    """A classifier that reports its accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_cifar10()

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        images, labels = batch
        self.log("right", (self.network(images).argmax(1) == labels).float().mean())


photos = sample(16)
loader = DataLoader(TensorDataset(photos.floats(), photos.labels), batch_size=8)
for name, callbacks in {"bare": [], "shielded": [ShieldCallback("swrd:size=3", seed=0)]}.items():
    trainer = lightning.Trainer(
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    print(name, trainer.test(Module(), loader, verbose=False))

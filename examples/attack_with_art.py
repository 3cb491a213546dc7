"""Attack a shielded model with the PGD of ART, and compare with ours.

    pip install adversarial-robustness-toolbox packaging
    python examples/attack_with_art.py --images 100 --steps 10 --draws 5

ART works on float32 numpy arrays. Three things to know: without device_type="cpu" it moves the model to a GPU
where there is one; it leaves the model in eval(); and random starts come from numpy's global RNG, while its
data loader advances torch's. It imports packaging without asking pip for it.
"""

import numpy as np
import torch
from art.attacks.evasion import ProjectedGradientDescent
from art.estimators.classification import PyTorchClassifier
from torch import Tensor, nn

from comparison import Comparison, Settings, global_seed, report
from comparison import compare as compare_with

CLASSES = 10


def attack(model: nn.Module, images: Tensor, labels: Tensor, settings: Settings) -> Tensor:
    """Adversarial images by ART."""
    wrapped = PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(images.shape[1:]),
        nb_classes=CLASSES,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    pgd = ProjectedGradientDescent(
        wrapped,
        norm=np.inf,
        eps=settings.eps,
        eps_step=settings.step,
        max_iter=settings.steps,
        num_random_init=int(settings.random_start),
        batch_size=len(images),
        verbose=False,
    )
    with global_seed(settings.seed):
        # Without y ART would take the model's own answers for the labels.
        found = pgd.generate(images.numpy(), y=labels.numpy())
    return torch.from_numpy(found)


def compare(settings: Settings) -> Comparison:
    """Accuracy under ART's attack and under ours, on the same fresh draws."""
    return compare_with(attack, settings)


def main() -> None:
    """Print the comparison."""
    report("ART", attack, __doc__.splitlines()[0])


if __name__ == "__main__":
    main()

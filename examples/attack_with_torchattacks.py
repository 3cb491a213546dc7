"""Attack a shielded model with torchattacks' PGD, and compare with ours.

    pip install torchattacks==3.3.0
    python examples/attack_with_torchattacks.py --images 100 --steps 10 --draws 5

Later versions work too, but with them pip also installs torchvision, which they never import and which does
not import with a CPU-only torch. Three things to know. The model must have a parameter, because torchattacks
takes the device from the first one. Unless the outermost module is in eval(), torchattacks leaves the whole
model in training mode. Random starts come from torch's global RNG.
"""

import torchattacks
from torch import Tensor, nn

from comparison import Comparison, Settings, global_seed, report
from comparison import compare as compare_with


def attack(model: nn.Module, images: Tensor, labels: Tensor, settings: Settings) -> Tensor:
    """Adversarial images by torchattacks."""
    pgd = torchattacks.PGD(
        model,
        eps=settings.eps,
        alpha=settings.step,
        steps=settings.steps,
        random_start=settings.random_start,
    )
    with global_seed(settings.seed):
        found: Tensor = pgd(images, labels)
    return found


def compare(settings: Settings) -> Comparison:
    """Accuracy under torchattacks' attack and under ours, on the same fresh draws."""
    return compare_with(attack, settings)


def main() -> None:
    """Print the comparison."""
    report("torchattacks", attack, __doc__.splitlines()[0])


if __name__ == "__main__":
    main()

"""Attack a shielded model with foolbox's PGD, and compare with ours.

    pip install foolbox
    python examples/attack_with_foolbox.py --images 100 --steps 10 --draws 5

To foolbox the shielded model is a PyTorch module like any other. Two things to know: without device= it moves
the model to a GPU where there is one, and its random starts come from torch's global RNG.
"""

import foolbox
from torch import Tensor, nn

from comparison import Comparison, Settings, global_seed, report
from comparison import compare as compare_with


def attack(model: nn.Module, images: Tensor, labels: Tensor, settings: Settings) -> Tensor:
    """Adversarial images by foolbox."""
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1), device=images.device)
    pgd = foolbox.attacks.LinfPGD(
        abs_stepsize=settings.step, steps=settings.steps, random_start=settings.random_start
    )
    with global_seed(settings.seed):
        # Not needed: the images before foolbox clips them to eps, and its verdict on a single draw.
        _, clipped, _ = pgd(wrapped, images, labels, epsilons=settings.eps)
    return clipped


def compare(settings: Settings) -> Comparison:
    """Accuracy under foolbox's attack and under ours, on the same fresh draws."""
    return compare_with(attack, settings)


def main() -> None:
    """Print the comparison."""
    report("foolbox", attack, __doc__.splitlines()[0])


if __name__ == "__main__":
    main()

"""What docs/reproduction.md says of the classifier's share in the distance to the paper: T1 and T2."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import recorded
from recorded import Machine
from reproduction_values import compared, images, mean_distance, part
from tables import machine, percent, signed, table

from vqshield.names import display_defense
from vqshield.plain import Json

OTHERS = "reproduction-classifiers"
"""T2 once more for each of these classifiers, a folder each."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a classifier was trained."""

    options: dict[str, Json]
    optimizer: str
    epochs: int
    padding: int
    normalise: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Accuracy behind one defense, and the paper's; fractions."""

    defense: str
    measure: str
    accuracy: float
    paper: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """One classifier's table."""

    name: str
    recipe: Recipe
    test_accuracy: float
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What research/classifier_sensitivity.py wrote."""

    images: int
    runs: int
    environment: Machine
    rows: tuple[Trained, ...]


def sensitivity() -> str:
    """T1 behind classifiers that were trained in other ways, the paper's values first."""
    found = recorded.read(Sensitivity, "classifier-sensitivity-T1.json")
    cells = found.rows[0].cells
    heads = ["stem", "optimizer", "shifted images", "pixels", "epochs", "seed", "test"]
    heads += [f"{display_defense(cell.defense)}, {_MEASURES[cell.measure]}" for cell in cells]
    paper = ["paper", "", "", "", "25", "", "99.4", *(percent(cell.paper) for cell in cells)]
    lines = [[*_recipe(row), *(percent(cell.accuracy) for cell in row.cells)] for row in found.rows]
    return "\n".join(
        [
            *table(heads, [paper, *lines]),
            f"\nResNet18 on MNIST, learning rate 0.001, batch 128; test: all 10,000 images without defense, "
            f"the rest the first {found.images:,}, mean of {found.runs} runs; {machine(found.environment)}.",
        ]
    )


_MEASURES = {"natural": "natural", "pgd": "PGD"}


def _recipe(row: Trained) -> list[str]:
    used = row.recipe
    return [
        "7×7, pool" if used.options.get("stem") == "imagenet" else "3×3",
        used.optimizer,
        f"by {used.padding}" if used.padding else "no",
        "normalised" if used.normalise else "as they are",
        str(used.epochs),
        str(used.seed),
        f"{100 * row.test_accuracy:.1f}",
    ]


def explained() -> str:
    """T2 by classifier: how far each is from the paper."""
    folders = sorted(each.name for each in (recorded.RESULTS / OTHERS).iterdir())
    heads, lines = ["classifier", "N"], []
    for folder in ["reproduction", *(str(Path(OTHERS) / name) for name in folders)]:
        found = part("T2", folder)
        columns = compared(found)
        if not lines:
            heads += [f"{column.title}: mean (furthest)" for column, _ in columns]
        far = [
            f"{mean_distance(deltas):.1f} ({signed(max(deltas.values(), key=abs))})" for _, deltas in columns
        ]
        name = "given" if folder == "reproduction" else Path(folder).name
        lines.append([name, f"{images(found):,}", *far])
    return "\n".join([*table(heads, lines), "\nDistances from the paper in points, over the cells of T2."])


CLASSIFIER_TABLES: dict[str, Callable[[], str]] = {
    "reproduction-T1-sensitivity": sensitivity,
    "reproduction-T2-classifiers": explained,
}

"""What docs/reproduction.md says of the classifier's share in the distance to the paper: T1 to T4."""

from collections.abc import Callable
from functools import partial

import recorded
from recorded import Record
from reproduction_values import ADAPTIVE, compared, differences, images, mean_distance, part, rows
from tables import machine, percent, percent_or_dash, signed, table
from vqshield.core.display_names import NONE, display_defense
from vqshield_paper.reproduction.model import PartSummary

OTHERS = "reproduction-classifiers"
"""Tables once more with other classifiers, a folder for each of these."""
_MEASURES = {"natural": "clean", "pgd": "PGD"}


def sensitivity() -> str:
    """T1 behind classifiers that were trained in other ways, the paper's values first."""
    found = recorded.load("classifier-sensitivity-T1.json")
    cells = found.rows[0].cells
    heads = ["stem", "optimizer", "shifts", "pixels", "decay", "epochs", "seed", "test"]
    heads += [f"{display_defense(cell.defense)}, {_MEASURES[cell.measure]}" for cell in cells]
    paper = ["paper", "", "", "", "", "25", "", "99.4", *(percent(cell.paper) for cell in cells)]
    lines = [
        [*_recipe(row), *(percent(cell.accuracy) for cell in row.cells)]
        for row in sorted(found.rows, key=_furthest)
    ]
    return table(
        heads,
        [paper, *lines],
        "In %, the classifier that is nearest to the paper in its worst cell first. ResNet18 on MNIST, "
        f"learning rate 0.001, batch 128; test: all 10,000 images without defense, the rest the first "
        f"{found.images:,}, mean of {found.runs} runs; {machine(found.environment)}.",
    )


def _furthest(row: Record) -> float:
    return max(abs(cell.accuracy - cell.paper) for cell in row.cells)


def _recipe(row: Record) -> list[str]:
    used = row.recipe
    return [
        "7×7, pool" if used.options.get("stem") == "imagenet" else "3×3",
        used.optimizer if used.momentum else f"{used.optimizer}, no momentum",
        f"by {used.padding}" if used.padding else "no",
        "normalised" if used.normalise else "as they are",
        f"{used.weight_decay:g}",
        str(used.epochs),
        str(used.seed),
        percent(row.test_accuracy),
    ]


def explained(id: str, name: str, paper: str) -> str:
    """A table by classifier: each cell's distance from the paper, and their means; paper: without defense."""
    by_name = _by_classifier(id, name)
    measured = list(by_name.values())
    lines = [["no defense, clean", *(_bare(each) for each in measured)]]
    means = []
    for column, deltas in compared(measured[0]):
        alike = [differences(each, column.key) for each in measured]
        lines += [[f"{title}, {column.title}", *(signed(each[title]) for each in alike)] for title in deltas]
        means.append(
            [f"**mean distance, {column.title}**", *(f"{mean_distance(each):.1f}" for each in alike)]
        )
    counts = " / ".join(f"{images(each):,}" for each in measured)
    return table(
        ["cell", *by_name],
        [*lines, *means],
        f"First line in %, the paper's is {paper}; then ours less the paper's, in points. N = {counts}.",
    )


def _by_classifier(id: str, name: str) -> dict[str, PartSummary]:
    """The one of our tables first; the others go by their folders."""
    folders = sorted(each.name for each in (recorded.RESULTS / OTHERS).iterdir() if (each / id).is_dir())
    first = part(id, name=name)
    called = recorded.stem(first.classifier.name).removeprefix(f"resnet18-{name}-")
    return {called: first} | {folder: part(id, f"{OTHERS}/{folder}", name) for folder in folders}


def _bare(found: PartSummary) -> str:
    return percent_or_dash(next(row for row in rows(found) if row.defense == NONE).value("natural").ours)


def large_images() -> str:
    """T4 by classifier: what there is."""
    measured = list(_by_classifier("T4", "imagenet").values())
    lines = [
        [
            each.classifier.name,
            row.title,
            *(percent_or_dash(row.value(key).ours) for key in ("natural", "autoattack", ADAPTIVE)),
        ]
        for each in measured
        for row in rows(each)
    ]
    seen = images(measured[0], adaptive=True)
    return table(
        ["classifier", "accuracy in %", "clean", "AutoAttack", "`adaptive-v1`"],
        lines,
        f"N = {images(measured[0])}, adaptive {seen}; a dash: not measured.",
    )


CLASSIFIER_TABLES: dict[str, Callable[[], str]] = {
    "reproduction-T1-sensitivity": sensitivity,
    "reproduction-T2-classifiers": partial(explained, "T2", "cifar10", "95.16"),
    "reproduction-T3-classifiers": partial(explained, "T3", "cifar100", "82.05"),
    "reproduction-T4-classifiers": large_images,
}

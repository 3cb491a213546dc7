"""What docs/reproduction.md says of the unit of swRD's beta: F4's curve and T2 once more, beta by beta."""

from collections.abc import Callable

import recorded
from classifier_tables import OTHERS
from protocol_tables import MEASURES
from reproduction_values import differences, mean_distance, part, rows
from tables import machine, percent, percent_or_dash, table
from vqshield.core.display_names import NONE
from vqshield.core.settings import parse_spec
from vqshield.defenses import SWRD
from vqshield.evaluation.summary import EvaluationSummary

_FOLDER = "beta-cifar10-resnet18"
_CURVE, _PGD = "apgd", "pgd"
_COLUMNS = {"natural": _CURVE, "pgd": _PGD, "autoattack": _CURVE}
"""By T2's column, the folder of its attack: APGD is the part of AutoAttack that moves these images."""


def curve() -> str:
    """Natural and attacked accuracy of swRD by beta and by the number of codes, the paper's first."""
    found = _read(_CURVE)
    betas = _betas(found)
    shown = [row for row in rows(part("F4", name="cifar10")) if found.row(f"{row.defense},beta={betas[0]}")]
    lines = [["paper"]]
    for row in shown:
        both = (row.value(key).paper for key in ("natural", "autoattack"))
        lines[0].append(" / ".join(map(percent_or_dash, both)))
    for beta in betas:
        cells = (_accuracies(found, _with_beta(row.defense, beta)) for row in shown)
        lines.append([f"{beta:,g}", *(" / ".join(map(percent, both)) for both in cells)])
    manifest = found.manifest
    return table(
        ["β, in squared units of [0, 1]", *(f"k = {row.x:g}" for row in shown)],
        lines,
        f"swRD with s = 3, clean / under APGD on the bare classifier (the paper: AutoAttack), in %. "
        f"{recorded.stem(manifest.classifier.name)}, the first {manifest.data.images} images, "
        f"{manifest.runs} runs; {machine(manifest.machine)}.",
    )


def distances() -> str:
    """The mean distance of T2's cells from the paper, by beta."""
    folders = {name: _read(name) for name in (_CURVE, _PGD)}
    lines = []
    for beta in _betas(folders[_PGD]):
        far: dict[str, dict[str, float]] = {key: {} for key in _COLUMNS}
        for row in rows(part("T2", name="cifar10")):
            for key, folder in _COLUMNS.items():
                said = row.value(key).paper
                if said is not None:
                    natural, left = _accuracies(folders[folder], _with_beta(row.defense, beta))
                    far[key][row.defense] = 100 * ((natural if key == "natural" else left) - said)
        lines.append([f"{beta:,g}", *(f"{mean_distance(each):.1f}" for each in far.values())])
    return table(
        ["β", *_heads()],
        lines,
        "In points, over RandDisc, pRD and swRD; images and runs as above, APGD for AutoAttack.",
    )


def classifiers() -> str:
    """The same with one other beta, behind classifiers of T2 that were trained in other ways."""
    lines = []
    for folder in sorted((recorded.RESULTS / _FOLDER).glob("resnet18-cifar10-*")):
        name = folder.name.removeprefix("resnet18-cifar10-")
        measured, found = part("T2", f"{OTHERS}/{name}", "cifar10"), _read(folder.name)
        (beta,) = _betas(found)
        attacks = {"natural": NONE} | {parse_spec(each.name)[0]: each.name for each in found.manifest.attacks}
        far = [differences(measured, key) for key in _COLUMNS]
        lines.append([name, f"{SWRD().beta:g}", *(f"{mean_distance(each):.1f}" for each in far)])
        for key, deltas in zip(_COLUMNS, far, strict=True):
            for row in rows(measured):
                other, said = found.row(_with_beta(row.defense, beta), attacks[key]), row.value(key).paper
                if other is not None and said is not None:
                    deltas[row.title] = 100 * (other.mean - said)
        lines.append([name, f"{beta:g}", *(f"{mean_distance(each):.1f}" for each in far)])
    manifest = found.manifest
    return table(
        ["classifier", "β", *_heads()],
        lines,
        f"In points; {manifest.data.images:,} images, {manifest.runs} runs, AutoAttack itself; "
        f"{machine(manifest.machine)}.",
    )


def _heads() -> list[str]:
    return [f"mean distance of T2, {title}" for title in MEASURES.values()]


def _read(name: str) -> EvaluationSummary:
    return recorded.read(EvaluationSummary, f"{_FOLDER}/{name}/summary.json")


def _betas(found: EvaluationSummary) -> list[int]:
    """Those that were tried, all of them whole numbers."""
    settings = (parse_spec(row.defense)[1] for row in found.rows)
    return sorted({int(str(each["beta"])) for each in settings if "beta" in each})


def _with_beta(text: str, beta: int) -> str:
    return f"{text},beta={beta}" if text.startswith("swrd") else text


def _accuracies(found: EvaluationSummary, defense: str) -> tuple[float, float]:
    """Natural, and under the folder's attack."""
    (attack,) = (each.name for each in found.manifest.attacks)
    natural, left = found.row(defense), found.row(defense, attack)
    assert natural is not None, defense
    assert left is not None, defense
    return natural.mean, left.mean


BETA_TABLES: dict[str, Callable[[], str]] = {
    "reproduction-beta-curve": curve,
    "reproduction-beta-T2": distances,
    "reproduction-beta-classifiers": classifiers,
}

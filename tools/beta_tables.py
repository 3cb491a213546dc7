"""What docs/reproduction.md says of the unit of swRD's beta: F4's curve and T2 once more, beta by beta."""

from collections.abc import Callable

import recorded
from protocol_tables import MEASURES
from reproduction_values import mean_distance, part, rows
from tables import machine, percent, percent_or_dash, table

from vqshield.settings import parse_spec
from vqshield.studies.evaluation import EvaluationSummary

_CURVE, _PGD = "apgd", "pgd"
_COLUMNS = {"natural": _CURVE, "pgd": _PGD, "autoattack": _CURVE}
"""By T2's column, the folder whose attack stands for it: APGD is what of AutoAttack moves these images."""


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
    return "\n".join(
        [
            *table(["β, in squared units of [0, 1]", *(f"k = {row.x:g}" for row in shown)], lines),
            f"\nswRD with s = 3, natural / under APGD on the bare classifier (the paper: AutoAttack), in %. "
            f"{recorded.stem(manifest.classifier.name)}, the first {manifest.data.images} images, "
            f"{manifest.runs} runs; {machine(manifest.machine)}.",
        ]
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
    heads = (f"mean distance of T2, {title}" for title in MEASURES.values())
    return "\n".join(
        [
            *table(["β", *heads], lines),
            "\nIn points, over RandDisc, pRD and swRD; images and runs as above, APGD for AutoAttack.",
        ]
    )


def _read(name: str) -> EvaluationSummary:
    return recorded.read(EvaluationSummary, f"beta-cifar10-resnet18/{name}/summary.json")


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
}

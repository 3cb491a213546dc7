"""What docs/reproduction.md says of the unit of swRD's beta: F4's curve and T2 once more, beta by beta."""

from collections.abc import Callable

import recorded
from reproduction_values import mean_distance, part, row
from tables import machine, percent, table

from vqshield.names import NONE
from vqshield.settings import parse_spec
from vqshield.studies.evaluation import EvaluationSummary

_CURVE, _PGD = "apgd", "pgd"
_COLUMNS = {"natural": _CURVE, "pgd": _PGD, "autoattack": _CURVE}
"""By T2's column, the folder whose attack stands for it: APGD is what of AutoAttack moves these images."""


def curve() -> str:
    """Natural and attacked accuracy of swRD by beta and by the number of codes, the paper's first."""
    found = _read(_CURVE)
    paper = part("F4", name="cifar10")
    tried = _tried(found)
    codes = sorted({codes for _, codes in tried} & {int(each.x or 0) for each in paper.rows})
    lines = [["paper"]]
    for each in codes:
        values = row(paper, f"swrd:size=3,codes={each}")
        both = (values.value(key).paper for key in ("natural", "autoattack"))
        lines[0].append(" / ".join(percent(value or 0.0) for value in both))
    for beta in _betas(found):
        cells = (_accuracies(found, tried[beta, each]) for each in codes)
        lines.append([f"{beta:,g}", *(f"{percent(natural)} / {percent(left)}" for natural, left in cells)])
    manifest = found.manifest
    return "\n".join(
        [
            *table(["β, in squared units of [0, 1]", *(f"k = {each}" for each in codes)], lines),
            f"\nswRD with s = 3, natural / under APGD on the bare classifier (the paper: AutoAttack), in %. "
            f"{recorded.stem(manifest.classifier.name)}, the first {manifest.data.images} images, "
            f"{manifest.runs} runs; {machine(manifest.machine)}.",
        ]
    )


def distances() -> str:
    """The mean distance of T2's cells from the paper, by beta."""
    folders = {name: _read(name) for name in (_CURVE, _PGD)}
    paper = part("T2", name="cifar10")
    lines = []
    for beta in _betas(folders[_PGD]):
        far: dict[str, dict[str, float]] = {key: {} for key in _COLUMNS}
        for each in paper.rows:
            for key, folder in _COLUMNS.items():
                said, text = each.value(key).paper, _with_beta(each.defense, beta)
                if each.literature or each.defense == NONE or said is None:
                    continue
                natural, left = _accuracies(folders[folder], text)
                far[key][each.defense] = 100 * ((natural if key == "natural" else left) - said)
        lines.append([f"{beta:,g}", *(f"{mean_distance(each):.1f}" for each in far.values())])
    return "\n".join(
        [
            *table(
                ["β", *(f"mean distance of T2, {each}" for each in ("natural", "PGD", "AutoAttack"))], lines
            ),
            "\nIn points, over RandDisc, pRD and swRD; images and runs as above, APGD for AutoAttack.",
        ]
    )


def _read(name: str) -> EvaluationSummary:
    return recorded.read(EvaluationSummary, f"beta-cifar10-resnet18/{name}/summary.json")


def _tried(found: EvaluationSummary) -> dict[tuple[float, int], str]:
    """The defenses' texts by beta and codes."""
    texts = dict.fromkeys(each.defense for each in found.rows)
    specs = {text: parse_spec(text)[1] for text in texts if text.startswith("swrd")}
    return {(float(str(each["beta"])), int(str(each["codes"]))): text for text, each in specs.items()}


def _betas(found: EvaluationSummary) -> list[float]:
    return sorted({beta for beta, _ in _tried(found)})


def _with_beta(text: str, beta: float) -> str:
    return f"{text},beta={beta:.0f}" if text.startswith("swrd") else text


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

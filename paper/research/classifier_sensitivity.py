"""How much of a table does the classifier explain? The same table with classifiers trained in other ways.

    python paper/research/classifier_sensitivity.py --table T1 --data-dir DIR --limit 1000 RUNS/*
    python paper/research/classifier_sensitivity.py --table T2 --data-dir DIR --limit 1000 RUNS/*

RUNS/* are folders that `vqshield train` wrote, each with weights and their card. Measured of each: the
table's defenses, natural and under its PGD, which ignores the defense, and how far that is from the paper.
Writes paper/results/classifier-sensitivity-TABLE.json; classifiers that the file holds are
not measured again.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import vqshield as vq
from common import RESULTS, ending, make_parser
from vqshield.core.environment import pick_device
from vqshield.core.files import parse_json, read_text, write_json
from vqshield.core.serialization import Json, from_plain, to_plain
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.experiments import experiment
from vqshield_paper.reproduction.parts import AccuracyPart

MEASURES = ("natural", "pgd")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A defense's accuracy, natural or under attack, and the paper's; fractions."""

    defense: str
    measure: str
    accuracy: float
    standard_error: float
    paper: float


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What was varied in training."""

    arch: str
    options: dict[str, Json]
    optimizer: str
    peak_lr: float
    momentum: float
    schedule: str
    batch: int
    epochs: int
    weight_decay: float
    label_smoothing: float
    padding: int
    border: str
    normalise: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """A classifier: how it was trained, its accuracy without a defense on all test images, and its cells."""

    name: str
    sha256: str
    recipe: Recipe
    test_accuracy: float
    cells: tuple[Cell, ...]

    def distance(self, measure: str) -> float:
        """The mean distance from the paper."""
        return statistics.fmean(
            abs(cell.accuracy - cell.paper) for cell in self.cells if cell.measure == measure
        )


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """The file's content."""

    what: str
    table: str
    images: int
    runs: int
    seed: int
    attack: str
    eps: float
    seconds: float
    environment: dict[str, Json]
    rows: tuple[Row, ...]


def recipe_of(card: dict[str, Json]) -> Recipe:
    settings = card["settings"]
    assert isinstance(settings, dict)
    return from_plain(Recipe, {name: settings[name] for name in Recipe.__dataclass_fields__}, "card")


def measure(folder: Path, part: AccuracyPart, table: str, *, data_dir: Path, limit: int, device: str) -> Row:
    weights = next(each for each in folder.glob("*.safetensors") if "checkpoint" not in each.name)
    card = parse_json(read_text(weights.with_suffix(".json")), weights.with_suffix(".json"))
    attack = part.attacks["pgd"]
    found = vq.evaluate(
        str(weights),
        part.data,
        data_dir=data_dir,
        defense=part.defenses,
        attacks=attack,
        eps=part.eps,
        limit=limit,
        device=device,
        batch=1000,
    )
    values = published.section(table).values
    cells = []
    for defense in part.defenses:
        for measured, name in ((found.row(defense), "natural"), (found.row(defense, attack), "pgd")):
            said = published.find(values, data=part.data, defense=without_beta(defense), measure=name)
            assert measured is not None
            assert said is not None
            cells.append(
                Cell(
                    defense=defense,
                    measure=name,
                    accuracy=measured.mean,
                    standard_error=measured.standard_error,
                    paper=said.value,
                )
            )
    return Row(
        name=folder.name,
        sha256=found.manifest.classifier.sha256,
        recipe=recipe_of(card),
        test_accuracy=card["test_accuracy"],
        cells=tuple(cells),
    )


def without_beta(defense: str) -> str:
    """As the paper's values name it."""
    name, _, settings = defense.partition(":")
    return f"{name}:" + ",".join(each for each in settings.split(",") if not each.startswith("beta="))


def main() -> None:
    parser = make_parser(__doc__, "", data_required=True)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--table", choices=["T1", "T2"], required=True)
    parser.add_argument("--limit", type=int, default=1000)
    options = parser.parse_args()
    out = options.out if options.out.suffix else RESULTS / f"classifier-sensitivity-{options.table}.json"
    began = time.perf_counter()
    part = experiment(options.table).parts[0]
    assert isinstance(part, AccuracyPart)
    rows: list[Row] = []
    if out.is_file():
        rows += from_plain(Sensitivity, parse_json(read_text(out), out), str(out)).rows
    for folder in options.folders:
        if folder.name in {row.name for row in rows}:
            continue
        rows.append(
            measure(
                folder,
                part,
                options.table,
                data_dir=options.data_dir,
                limit=options.limit,
                device=options.device,
            )
        )
        row = rows[-1]
        far = ", ".join(f"{measure} {100 * row.distance(measure):.1f}" for measure in MEASURES)
        cells = " ".join(f"{100 * cell.accuracy:.1f}" for cell in row.cells)
        print(f"{row.name}: test {row.test_accuracy:.2%}, distance {far}; cells {cells}", flush=True)
        record = Sensitivity(
            what="accuracy behind the table's defenses, of classifiers trained in other ways",
            table=options.table,
            images=options.limit,
            runs=10,
            seed=0,
            attack=part.attacks["pgd"],
            eps=part.eps,
            rows=tuple(rows),
            **ending(began, pick_device(options.device)),
        )
        write_json(out, to_plain(record))


if __name__ == "__main__":
    main()

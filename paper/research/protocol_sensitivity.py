"""What does the paper leave open that could move its tables? One change at a time, against its values.

    python paper/research/protocol_sensitivity.py --table T1 --data-dir DIR --classifier FILE --limit 1000
    python paper/research/protocol_sensitivity.py --table T2 --data-dir DIR --classifier FILE --limit 1000

Varied: the clustering (start, iterations), the noise (none, twice, one draw an image), the attack (step,
restarts, start, budget), and how answers are counted (a vote of the runs, right in all of them, images that
the bare classifier gets wrong left as they are). Writes paper/results/protocol-sensitivity-TABLE.json.
"""

import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import vqshield as vq
from classifier_sensitivity import without_beta
from common import RESULTS, ending, make_parser
from vqshield.core.display_names import NONE
from vqshield.core.environment import pick_device
from vqshield.core.files import write_json
from vqshield.core.serialization import Json, to_plain
from vqshield.evaluation.records import EvaluationRecord
from vqshield.evaluation.study import Evaluation
from vqshield_paper.reproduction import published
from vqshield_paper.reproduction.experiments import experiment
from vqshield_paper.reproduction.parts import AccuracyPart

DEFENSES = {
    "centres start from random patches": "init=random",
    "5 iterations": "iterations=5",
    "100 iterations": "iterations=100",
    "no noise": "sigma=0,tau=0",
    "noise of 8/255": "sigma=8/255,tau=8/255",
    "noise on the image, not on each patch": "noise=image",
}
"""By what is varied, what is added to every defense's text."""
ATTACKS = {
    "pgd": {
        "steps of eps/4": "step={quarter}",
        "steps of eps/20": "step={twentieth}",
        "100 steps": "steps=100",
        "5 restarts": "restarts=5",
        "no random start": "random_start=false",
    },
    "autoattack": {"APGD alone": "apgd:surrogate=none"},
}
"""By the paper's attack and what is varied: the setting, or an attack in its place."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A defense's accuracy, natural or under attack, and the paper's; fractions."""

    defense: str
    measure: str
    accuracy: float
    paper: float


@dataclass(frozen=True, kw_only=True)
class Variation:
    """What was varied, and the cells that it gives."""

    varied: str
    what: str
    cells: tuple[Cell, ...]

    def distance(self, measure: str) -> float | None:
        """The mean distance from the paper; None where nothing of that kind was measured."""
        far = [abs(cell.accuracy - cell.paper) for cell in self.cells if cell.measure == measure]
        return statistics.fmean(far) if far else None


@dataclass(frozen=True, kw_only=True)
class Varied:
    """The file's content."""

    what: str
    table: str
    classifier: str
    images: int
    runs: int
    seed: int
    seconds: float
    environment: dict[str, Json]
    variations: tuple[Variation, ...]


Records = Mapping[tuple[str, str], Sequence[EvaluationRecord]]


class Table:
    """A table of the paper, measured with one classifier, as often as it takes."""

    def __init__(
        self, id: str, classifier: Path, *, data_dir: Path, limit: int, runs: int, device: str
    ) -> None:
        (part,) = experiment(id).parts
        assert isinstance(part, AccuracyPart)
        self.id, self.part, self.runs = id, part, runs
        self.classifier, self.data_dir, self.limit, self.device = classifier, data_dir, limit, device

    def records(self, defenses: Sequence[str], attacks: Mapping[str, str], eps: float) -> Records:
        """What was answered, by defense and by the paper's name of the attack, or "natural"."""
        with tempfile.TemporaryDirectory() as folder:
            vq.evaluate(
                str(self.classifier),
                self.part.data or "",
                data_dir=self.data_dir,
                defense=list(defenses),
                attacks=list(attacks.values()),
                eps=eps,
                samples=self.runs,
                selection=1,
                limit=self.limit,
                device=self.device,
                batch=500,
                out=folder,
            )
            held = Evaluation.read(Path(folder)).records
        names = {NONE: "natural", **{text: name for name, text in attacks.items()}}
        found: dict[tuple[str, str], list[EvaluationRecord]] = defaultdict(list)
        for record in held:
            found[record.defense, names[record.attack]].append(record)
        return found

    def cells(
        self, records: Records, written: Mapping[str, str], right: Callable[[EvaluationRecord], float]
    ) -> tuple[Cell, ...]:
        """Compared with the paper; written: the paper's notation for each defense, by our spec string."""
        values, cells = published.section(self.id).values, []
        for (defense, measure), answers in records.items():
            if defense not in written:
                continue
            said = published.find(
                values, data=self.part.data, defense=without_beta(written[defense]), measure=measure
            )
            if said is not None:
                accuracy = statistics.fmean(right(answer) for answer in answers)
                cells.append(
                    Cell(defense=written[defense], measure=measure, accuracy=accuracy, paper=said.value)
                )
        return tuple(cells)


def changed(text: str, change: str) -> str:
    """An attack's text with one setting changed or added."""
    name, _, settings = text.partition(":")
    kept = [each for each in settings.split(",") if each.partition("=")[0] != change.partition("=")[0]]
    return f"{name}:{','.join([*kept, change])}"


def share(record: EvaluationRecord) -> float:
    """Of the runs that are right: what the tables report."""
    return sum(answer == record.label for answer in record.predictions) / len(record.predictions)


def vote(record: EvaluationRecord) -> float:
    """Is the most frequent answer of the runs right?"""
    return float(Counter(record.predictions).most_common(1)[0][0] == record.label)


def every(record: EvaluationRecord) -> float:
    """Are all runs right?"""
    return float(share(record) == 1)


def variations(table: Table) -> list[Variation]:
    """The table as we run it first, then one change at a time."""
    part, eps = table.part, float(table.part.eps)
    plain = {text: text for text in part.defenses}
    base = table.records([NONE, *part.defenses], part.attacks, eps)
    found = [Variation(varied="nothing", what="as in our tables", cells=table.cells(base, plain, share))]
    found += [
        Variation(varied="counting", what=what, cells=table.cells(base, plain, right))
        for what, right in (("a vote of the runs", vote), ("right in every run", every))
    ]
    wrong = {each.image for each in base[NONE, "natural"] if share(each) < 1}
    spared = {
        (defense, measure): [
            base[defense, "natural"][place] if each.image in wrong else each
            for place, each in enumerate(answers)
        ]
        for (defense, measure), answers in base.items()
        if defense != NONE
    }
    found.append(
        Variation(
            varied="counting",
            what="misclassified images not attacked",
            cells=table.cells(spared, plain, share),
        )
    )
    for what, added in DEFENSES.items():
        written = {f"{text},{added}": text for text in part.defenses}
        records = table.records(list(written), part.attacks, eps)
        found.append(Variation(varied="defense", what=what, cells=table.cells(records, written, share)))
    for name, changes in ATTACKS.items():
        for what, added in changes.items():
            change = added.format(quarter=eps / 4, twentieth=eps / 20)
            text = change if ":" in change else changed(part.attacks[name], change)
            records = table.records(part.defenses, {name: text}, eps)
            found.append(Variation(varied=name, what=what, cells=table.cells(records, plain, share)))
    for factor in (0.9, 0.75):
        records = table.records(part.defenses, part.attacks, factor * eps)
        found.append(
            Variation(varied="budget", what=f"{factor:g} eps", cells=table.cells(records, plain, share))
        )
    return found


def main() -> None:
    parser = make_parser(__doc__, "", data_required=True)
    parser.add_argument("--table", choices=["T1", "T2"], required=True)
    parser.add_argument("--classifier", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    out = options.out if options.out.suffix else RESULTS / f"protocol-sensitivity-{options.table}.json"
    began = time.perf_counter()
    device = str(pick_device(options.device))
    table = Table(
        options.table, options.classifier, data_dir=options.data_dir, limit=options.limit, runs=options.runs,
        device=device,
    )  # fmt: skip
    found = variations(table)
    for each in found:
        far = {name: each.distance(name) for name in ("natural", "pgd", "autoattack")}
        shown = ", ".join(f"{name} {100 * value:.1f}" for name, value in far.items() if value is not None)
        print(f"{each.varied}: {each.what}: {shown}", flush=True)
    content = Varied(
        what="a table of the paper, with one thing at a time done otherwise",
        table=options.table,
        classifier=options.classifier.stem,
        images=options.limit,
        runs=options.runs,
        seed=0,
        variations=tuple(found),
        **ending(began, device),
    )
    write_json(out, to_plain(content))


if __name__ == "__main__":
    main()

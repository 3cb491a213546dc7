"""Certified accuracy against the L2 radius: noisy quantizers beside plain Gaussian smoothing, to results/.

    python experiments/certified_radius.py --data-dir DIR --weights resnet18-cifar10.safetensors --pilot \\
        --device cuda --out pilot.json
    python experiments/certified_radius.py --data-dir DIR --weights resnet18-cifar10.safetensors \\
        --fine-tuned tuned/*.safetensors --best-of pilot.json --device cuda --deadline 240
    python tools/certificate_plot.py

Without --data-dir: the bundled sample and classifier. A fine-tuned classifier is certified behind the shield
that its file says it was trained behind (`vqshield train --shield`). Configurations are compared at an equal
level: sigma_eff, less the factor that copied pixels cost, which is 1 except for sliding windows with noise on
each; the radius is the level times a function of the votes. The pilot takes the last images of the test set
and a seed of its own, so that what it chooses is not chosen for its luck. Nothing is begun after the
deadline; what is finished is in the file, and the same command goes on with the rest.
"""

import argparse
import json
import math
import tempfile
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from safetensors import safe_open
from vqshield.studies.certification_forward import PRECISIONS
from vqshield.studies.certification_records import VoteRecord
from vqshield.studies.certification_settings import CertificationSettings, coverage_of
from vqshield.studies.certification_summary import summarise_certification

from vqshield.data import SAMPLE_NAME, ImageSet
from vqshield.defenses.gaussian import shield
from vqshield.environment import environment
from vqshield.errors import InvalidInputError
from vqshield.files import write_json
from vqshield.runs.target import BUNDLED, Subject, load_subject
from vqshield.studies.certification import Certification

# The most telling first. The smallest is that of the paper's pRD: two draws of 4/255.
LEVELS = (0.12, 0.25, 0.06, 4 / 255 / math.sqrt(2))
QUANTIZERS = tuple(
    f"{name},codes={codes}" if ":" in name else f"{name}:codes={codes}"
    for codes in (70, 25)
    for name in ("swrd:size=3", "prd:size=2", "randdisc", "swrd:size=2", "prd:size=3")
)
NOISES = ("shared", "image", "patch")
RADII = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)  # common to all levels
STEPS, REACH = 10, 3.3  # radii a sigma_eff, up to what ten thousand draws can certify


@dataclass(frozen=True, kw_only=True)
class Job:
    """One configuration of one classifier."""

    weights: str
    tuned_behind: str | None
    defense: str

    @property
    def level(self) -> float:
        """sigma_eff / copies, rounded: what configurations are compared at."""
        covered = coverage_of(shield(self.defense, seed=0))
        return float(f"{covered.sigma_eff / covered.copies:.4g}")


def configuration(quantizer: str, noise: str, level: float) -> str:
    """The quantizer with so much noise that sigma_eff / copies is the level."""
    weights = ",weights_from=noisy" if noise == "patch" and quantizer.startswith("swrd") else ""
    unit = coverage_of(shield(f"{quantizer},noise={noise},sigma=1,tau=1{weights}", seed=0))
    scale = level * unit.copies / unit.sigma_eff
    return f"{quantizer},noise={noise},sigma={scale:.6g},tau={scale:.6g}{weights}"


def configurations() -> list[str]:
    """All of them, the most important first."""
    plain = [f"gaussian:sigma={level:.6g}" for level in LEVELS]
    return plain + [configuration(*each) for each in product(QUANTIZERS, NOISES, LEVELS)]


def best_of(path: Path, top: int) -> list[str]:
    """Of every level in a pilot's file the Gaussian, and so many quantizers with the largest mean radius."""
    rows = [row for row in json.loads(path.read_text())["rows"] if row["tuned_behind"] is None]
    chosen: list[list[str]] = [[] for _ in range(top + 1)]  # by rank, so that every level gets its best first
    for level in dict.fromkeys(row["level"] for row in rows):
        here = sorted((row for row in rows if row["level"] == level), key=lambda row: -row["mean_radius"])
        chosen[0] += [row["defense"] for row in here if row["noise"] == "gaussian"]
        for rank, row in enumerate([row for row in here if row["noise"] != "gaussian"][:top]):
            chosen[rank + 1].append(row["defense"])
    return [text for texts in chosen for text in texts]


def trained_behind(path: str) -> str:
    if not Path(path).is_file():
        raise InvalidInputError(f"{path} is no file; give safetensors that vqshield train --shield wrote")
    with safe_open(path, framework="pt") as file:
        found = (file.metadata() or {}).get("shield")
    if found is None:
        raise InvalidInputError(
            f"{path} does not say what it was trained behind; train it with vqshield train --shield"
        )
    return str(found)


def planned(options: argparse.Namespace) -> list[Job]:
    """Fine-tuned classifiers first: they are what the others are compared with."""
    texts = options.configuration or (
        configurations() if options.best_of is None else best_of(options.best_of, options.top)
    )
    tuned = [(path, trained_behind(path)) for path in options.fine_tuned]
    jobs = [Job(weights=path, tuned_behind=text, defense=text) for path, text in tuned]
    return jobs + [Job(weights=options.weights, tuned_behind=None, defense=text) for text in texts]


def grid(level: float) -> list[float]:
    own = (number / STEPS * level for number in range(round(REACH * STEPS)))
    return sorted({float(f"{radius:.4g}") for radius in (*own, *RADII)})


def certified(job: Job, subject: Subject, settings: CertificationSettings) -> dict[str, Any]:
    """The figures of one configuration."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:  # rows of the one file are what a next run goes on with
        work = Certification(replace(settings, defense=job.defense), subject, Path(folder) / "records")
        work.run()
        records = work.records.read()
    vote = summarise_certification(work.specification, records, radii=grid(job.level))["vote"]
    chosen = [record.selected == record.label for record in records if isinstance(record, VoteRecord)]
    described = work.specification["defense"]["settings"]
    names = ("images", "abstained", "mean_radius", "largest_radius", "sigma_eff", "copies")
    return {
        "defense": job.defense,
        "classifier": subject.described()["classifier"],
        "tuned_behind": job.tuned_behind,
        "noise": described.get("noise", "gaussian"),
        "level": job.level,
        "settings": described,
        **{name: vote[name] for name in names},
        "draws_right": vote["accuracy"],
        "votes_right": sum(chosen) / len(chosen),
        "certified_right": vote["right"],
        "curve": [
            {"radius": point["radius"], "certified": point["vote"], "draw": point["draw"]}
            for point in vote["curve"]
        ],
        "seconds": round(time.perf_counter() - began, 2),
    }


def loaded(weights: str, options: argparse.Namespace) -> Subject:
    data = SAMPLE_NAME if options.data_dir is None else "cifar10"
    found = load_subject(data=data, data_dir=options.data_dir, classifier=weights, device=options.device)
    part = slice(-options.limit, None) if options.pilot else slice(options.limit)
    whole = found.data
    return replace(found, data=ImageSet(whole.name, whole.images[part], whole.labels[part], whole.classes))


def shown(row: dict[str, Any]) -> str:
    who = "fine-tuned" if row["tuned_behind"] else "as given"
    return (
        f"{row['level']:<7g} {row['mean_radius']:.4f} mean radius, certified {row['certified_right']:6.1%}, "
        f"votes {row['votes_right']:6.1%}, abstained {row['abstained']:6.1%}, {row['seconds']:6.1f} s  "
        f"{row['defense']}, {who}"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--weights", default=BUNDLED)
    parser.add_argument("--fine-tuned", nargs="*", default=[])
    parser.add_argument("--configuration", nargs="+", help="only these, as in swrd:noise=image,sigma=0.1")
    parser.add_argument("--best-of", type=Path, help="a pilot's file to choose the configurations from")
    parser.add_argument("--top", type=int, default=3, help="so many quantizers of each level from --best-of")
    parser.add_argument("--pilot", action="store_true", help="few draws of few other images")
    parser.add_argument("--limit", type=int, help="images; without it 500, in a pilot 50")
    parser.add_argument("--n0", type=int, default=100)
    parser.add_argument("--n", type=int, help="draws; without it 1000, in a pilot 100")
    parser.add_argument("--alpha", type=float, default=0.001)
    parser.add_argument("--seed", type=int, help="without it 0, in a pilot 1")
    parser.add_argument("--batch", type=int, default=8000)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds; nothing is begun after")
    parser.add_argument("--out", type=Path, default=Path("results/certified-radius-cifar10-resnet18.json"))
    options = parser.parse_args()
    for name, usual, in_pilot in (("limit", 500, 50), ("n", 1000, 100), ("seed", 0, 1)):
        if getattr(options, name) is None:
            setattr(options, name, in_pilot if options.pilot else usual)
    return options


def finished(path: Path, heading: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an earlier run of the same measurement; rows of another one are no company for ours."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    for name, value in heading.items():
        if record.get(name) != value:
            raise SystemExit(f"{path} is of another run: its {name} is {record.get(name)}, not {value}")
    rows: list[dict[str, Any]] = record["rows"]
    return rows


def key(row: dict[str, Any]) -> tuple[str, str]:
    return row["classifier"]["sha256"], row["defense"]


def measure(options: argparse.Namespace, jobs: list[Job], settings: CertificationSettings) -> None:
    began, subjects = time.monotonic(), {}
    for job in jobs:
        replace(settings, defense=job.defense)  # whatever cannot be certified is named before any work
        if job.weights not in subjects:
            subjects[job.weights] = loaded(job.weights, options)
    first = subjects[jobs[0].weights]
    plan = {name: getattr(settings, name) for name in ("n0", "n", "alpha", "seed", "batch", "precision")}
    heading = {
        "what": "majority votes certified by randomised smoothing, against the L2 radius",
        "pilot": options.pilot,
        "data": first.described()["data"],
        "plan": plan,
        "environment": environment(first.device),
    }
    rows = finished(options.out, heading)
    done = set(map(key, rows))
    for job in jobs:
        if (subjects[job.weights].sha256, job.defense) in done:
            continue
        if time.monotonic() - began > options.deadline:
            break
        rows.append(certified(job, subjects[job.weights], settings))
        done.add(key(rows[-1]))
        print(shown(rows[-1]), flush=True)
        whole = all((subjects[each.weights].sha256, each.defense) in done for each in jobs)
        record = {**heading, "complete": whole, "rows": rows}
        write_json(options.out, record)
    print(f"{len(done)} of {len(jobs)} configurations in {options.out}, {time.monotonic() - began:.0f} s")
    print("\n".join(map(shown, sorted(rows, key=lambda row: (row["level"], -row["mean_radius"])))))


def main() -> None:
    options = arguments()
    settings = CertificationSettings(
        certificate="vote", n0=options.n0, n=options.n, alpha=options.alpha, seed=options.seed,
        batch=options.batch, precision=options.precision,
    )  # fmt: skip
    measure(options, planned(options), settings)


if __name__ == "__main__":
    main()

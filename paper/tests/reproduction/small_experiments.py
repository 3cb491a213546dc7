"""Experiments small enough for a test: few images of the bundled sample, attacks of two steps."""

import json
from pathlib import Path
from typing import Any

from vqshield.classifiers import BUNDLED
from vqshield.data import SAMPLE_NAME
from vqshield_paper.reproduction.experiments import Experiment, read_experiment
from vqshield_paper.reproduction.parts import Options
from vqshield_paper.reproduction.runner import Reproduction
from vqshield_paper.reproduction.targets import TargetChoices

PART = """
[[parts]]
kind = "accuracy"
name = "few"
title = "CIFAR-10, few images"
data = "cifar10"
eps = "8/255"
count = 8
runs = 2
adaptive_count = 1
defenses = ["prd:size=2,codes=25", "swrd:size=3,codes=25"]
attacks = { pgd = "pgd:steps=2,surrogate=none" }
"""
CURVES = """
[[parts]]
kind = "accuracy"
name = "few"
title = "CIFAR-10, few images"
data = "cifar10"
eps = "8/255"
count = 4
runs = 2
x_title = "k"
x = [5, 10]
defenses = ["prd:size=2,codes={x}"]
attacks = { autoattack = "pgd:steps=2,surrogate=none" }
"""
CPU = TargetChoices(readers={"cifar10": SAMPLE_NAME}, classifiers={"cifar10": BUNDLED}, device="cpu")
"""What is bundled, whatever a machine has in its cache folder."""


def text_of(*parts: str, id: str = "T2", shows: str = "table") -> str:
    return f'id = "{id}"\ntitle = "Small"\nshows = "{shows}"\n' + "".join(parts)


def small(*parts: str, **about: str) -> Experiment:
    return read_experiment(text_of(*(parts or (PART,)), **about), source="small.toml")


def planned(experiment: Experiment, out: Path, **options: Any) -> Reproduction:
    """Without adaptive attacks, unless they are selected."""
    return Reproduction(experiment, options=Options(**{"adaptive": "none", **options}), targets=CPU, out=out)


def records(out: Path) -> dict[str, bytes]:
    """Every file of records below a folder, byte for byte."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("records.jsonl"))}


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]

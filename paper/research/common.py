"""What the scripts of this folder share: arguments, the target (a classifier and images), a record's end."""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from vqshield.classifiers import BUNDLED
from vqshield.core.environment import environment
from vqshield.core.serialization import Json, to_plain
from vqshield.core.settings import parse_spec
from vqshield.defenses import Defense, create
from vqshield.runs.target import Target

RESULTS = Path("paper/results")

__all__ = ["BUNDLED", "RESULTS", "Target", "answers", "defense_of", "described", "ending", "make_parser"]


def make_parser(doc: str | None, out: str, *, data_required: bool = False) -> argparse.ArgumentParser:
    """The arguments of every script: where the data set is, the device, and the file to write."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=data_required)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(out))
    return parser


def defense_of(text: str, *, seed: int) -> Defense:
    """A defense from its text, as in prd:size=2,codes=25."""
    name, settings = parse_spec(text)
    return create(name, **settings, seed=seed)


@torch.no_grad()
def answers(target: Target, images: Tensor, *, batch: int) -> Tensor:
    """The class that the bare classifier gives each image, on the CPU."""
    return torch.cat([target.model(part).argmax(1) for part in images.split(batch)]).cpu()


def described(target: Target) -> dict[str, Json]:
    """How a record begins: which images and which weights."""
    return {"data": to_plain(target.data_id), "classifier": to_plain(target.classifier_id)}


def ending(began: float, device: torch.device | str = "cpu") -> dict[str, Json]:
    """How a record ends: the seconds since `began` (time.perf_counter), and the machine."""
    return {"seconds": round(time.perf_counter() - began, 1), "environment": environment(device)}

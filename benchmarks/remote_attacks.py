"""Do query attacks get as far against `vqshield serve` as against the same model in this process?

    python benchmarks/remote_attacks.py --record benchmarks/results/remote-cpu.json

All see images as bytes. The server answers with the most probable class and its probability. In this process
an attack gets the same, for the comparison, and in another run all logits, which the server does not show.
What an attack finds is judged by fresh samples of the model in this process.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vqshield as vq
from vqshield.classifiers import small_cifar10
from vqshield.classifiers.remote import Endpoint, Remote
from vqshield.core.environment import environment, pick_device
from vqshield.models.draws import Accuracy, draw_predictions

CALLS = (100, 200)
DEFENSES = {"none": 1, "swrd": 10}
"""With the samples that judge an image."""


class InBytes(nn.Module):
    """A model that rounds images to bytes, as a PNG does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.model(images.mul(255).round() / 255)
        return logits


class AsServed(nn.Module):
    """A model of which an attack gets what `vqshield serve` answers."""

    def __init__(self, model: nn.Module, remote: Remote) -> None:
        super().__init__()
        self.model, self.remote = model, remote

    def forward(self, images: Tensor) -> Tensor:
        """Logits from the class and its probability."""
        best = self.model(images).softmax(1).max(1)
        answers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        rows = [self.remote._logits({"index": index, "probability": share}) for index, share in answers]
        return torch.tensor(rows, dtype=images.dtype)


@contextmanager
def served(defense: str) -> Iterator[str]:
    """The address of `vqshield serve` on a free port of this machine."""
    command = [sys.executable, "-m", "vqshield", "serve", "--port", "0", "--no-access-log", "--threads", "1"]
    with subprocess.Popen([*command, "--defense", defense], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    yield f"{found[0]}/classify"
                    break
        finally:
            process.terminate()


def compare(defense: str, images: Tensor, labels: Tensor, calls: tuple[int, ...]) -> list[dict[str, Any]]:
    """Square and RayS against both, at equal numbers of calls."""
    ball, runs = vq.attacks.Linf(8 / 255), DEFENSES[defense]
    here = InBytes(small_cifar10() if defense == "none" else vq.defend(small_cifar10(), defense)).eval()
    rows = []
    with served(defense) as address:
        budget = 2 * len(images) * (calls[-1] + 50)
        remote = Remote(Endpoint(address=address, calls=budget, classes=10, connections=16))
        for attack in (vq.attacks.Square(ball=ball), vq.attacks.RayS(ball=ball)):
            found = {}
            models = {"logits": here, "here": AsServed(here, remote), "remote": remote}
            if isinstance(attack, vq.attacks.RayS):  # it uses decisions alone
                del models["logits"]
            for place, model in models.items():
                before, started = remote.calls, time.perf_counter()
                trace = attack.trace(model, images, labels, calls=calls)
                seconds = time.perf_counter() - started
                judged = [
                    Accuracy.of(draw_predictions(here, moved, labels, runs=runs)) for moved in trace.images
                ]
                found[place] = judged, round(seconds, 1), remote.calls - before
            for number, count in enumerate(calls):
                rows.append(
                    {
                        "defense": defense,
                        "attack": type(attack).__name__,
                        "calls": count,
                        **{
                            f"{place}_{name}": getattr(found[place][0][number], name)
                            if place in found
                            else None
                            for place in ("logits", "here", "remote")
                            for name in ("mean", "standard_error")
                        },
                        "requests": found["remote"][2],
                        "seconds": {place: found[place][1] for place in found},
                    }
                )
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    photos = vq.data.sample(options.images)
    rows = [row for each in DEFENSES for row in compare(each, photos.floats(), photos.labels, CALLS)]
    if options.record:
        content = {"machine": environment(pick_device("cpu")), "images": options.images, "rows": rows}
        options.record.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

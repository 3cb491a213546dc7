"""kill -9 at any moment of an evaluation, a certification or an audit: resumed, it ends in the same bytes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from vqshield.auditing import AuditSettings
from vqshield.auditing.study import audit
from vqshield.certification.study import Certification
from vqshield.evaluation.study import Evaluation
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.target import Target

KINDS = {"evaluation": "records.jsonl", "certification": "records.jsonl", "audit": "audit.json"}
MOMENTS = {"evaluation": (2, 9), "certification": (1, 2), "audit": (3, 6)}
DRIVER = """
import os, sys
from pathlib import Path
from test_kills import run
for part in sys.argv[1:]:
    kind, out, after = part.rsplit(":", 2)
    child = os.fork() if int(after) > 0 else None
    if not child:
        run(kind, Path(out), int(after))
    print(0 if child is None else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""One process imports torch and makes the whole runs; every run that is killed is a fork of it."""


def target() -> Target:
    source = torch.Generator().manual_seed(0)
    images = torch.rand(4, 3, 8, 8, generator=source)
    layer = nn.Linear(3 * 8 * 8, 3)
    layer.weight.data = torch.randn(layer.weight.shape, generator=source)
    layer.bias.data.zero_()
    model = nn.Sequential(nn.Flatten(), layer).eval()
    return Target.in_memory(model, images, model(images).argmax(1))


def run(kind: str, out: Path, after: int) -> None:
    """Run it, and kill the process at that report of progress."""
    left = after

    def watch(*_: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    asked = target()
    if kind == "audit":
        few = AuditSettings(runs=2, queries=2, directions=1, draws=4, probe="pgd:steps=1", rehearsal=True)
        audit(
            asked.model, *asked.part(slice(None)), defense="prd:codes=4", settings=few, out=out,
            attacks="pgd:steps=4,surrogate=soft", progress=watch,
        )  # fmt: skip
        return
    study: Evaluation | Certification = (
        Evaluation(
            target=asked, defenses=("prd:codes=4",), attacks=("pgd:steps=3",), runs=2, selection=2, batch=1
        )
        if kind == "evaluation"
        else Certification(target=asked, defense="prd:codes=4", certificate="vote", n0=4, n=20)
    )
    LocalExecutor().run(study, out, progress=watch)


@pytest.mark.slow
def test_killed_at_several_moments_it_ends_in_the_same_bytes(tmp_path: Path) -> None:
    never = -1
    plan = [(kind, tmp_path / f"{kind} whole", never) for kind in KINDS]
    for kind, moments in MOMENTS.items():
        plan += [(kind, tmp_path / f"{kind} killed", after) for after in (*moments, never)]
    found = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *(f"{kind}:{out}:{after}" for kind, out, after in plan)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": found}, check=True, timeout=300,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    codes = [int(line) for line in done.stdout.split()]
    assert codes == [0 if after == never else -signal.SIGKILL for _, _, after in plan]
    for kind, name in KINDS.items():
        whole, killed = (tmp_path / f"{kind} {how}" / name for how in ("whole", "killed"))
        assert untimed(killed) == untimed(whole), kind


def untimed(path: Path) -> bytes:
    """A file without the line that says how long an audit took."""
    return re.sub(rb'\n "seconds": [0-9.]+,', b"", path.read_bytes())

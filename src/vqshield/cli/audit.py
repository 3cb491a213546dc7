"""`vqshield audit`: can the robust accuracy of a defended classifier be believed?"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vqshield.attacks import ball
from vqshield.auditing import QUICK, AuditSettings
from vqshield.auditing import audit as run_audit
from vqshield.classifiers import BUNDLED
from vqshield.cli.bars import progress_bar
from vqshield.cli.options import AsJson, Classifier, Data, DataDir, Device, Eps, Norm
from vqshield.data import SAMPLE_NAME
from vqshield.defenses import list_defenses
from vqshield.environment import environment
from vqshield.errors import InvalidInputError
from vqshield.files import Journal, write_atomically, write_json
from vqshield.plain import to_plain
from vqshield.reports.audit import audit_table, render_audit
from vqshield.runs.target import Target
from vqshield.settings import parse_number
from vqshield.studies.asked import defense_from
from vqshield.suites import expand, list_suites

PARTS = 8  # what the audit reports as it goes


def audit(
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help=f"The attacks to judge, as for evaluate; without it, {list_suites()[0]}, or -quick."
        ),
    ] = None,
    defense: Annotated[str, typer.Option(help=f"A defense, of {', '.join(list_defenses())}.")] = "swrd",
    data: Data = SAMPLE_NAME,
    data_dir: DataDir = None,
    classifier: Classifier = BUNDLED,
    norm: Norm = "linf",
    eps: Eps = "8/255",
    limit: Annotated[int, typer.Option(help="So many images.")] = 50,
    seed: Annotated[int, typer.Option(help="Decides every draw.")] = 0,
    device: Device = "auto",
    quick: Annotated[bool, typer.Option("--quick/--full", help="Fewer draws and steps, for a CPU.")] = True,
    out: Annotated[Path, typer.Option(help="Folder for audit.json, audit.html; resumes there.")] = Path(
        "vqshield-audit"
    ),
    as_json: AsJson = False,
) -> None:
    """Try to catch a robust accuracy out: ten checks, R1 to R10, each with its figures and what they mean."""
    settings = dataclasses.replace(QUICK if quick else AuditSettings(), seed=seed)
    chosen = attack or ["adaptive-v1-quick" if quick else "adaptive-v1"]
    shield = defense_from(defense, seed=seed)
    if shield is None:
        raise InvalidInputError(
            f"defense={defense!r} leaves nothing to audit; give one of {', '.join(list_defenses())}"
        )
    room = ball(norm, parse_number("eps", eps))
    for text in chosen:
        expand(text, room)  # refuses nonsense before anything is written
    target = Target(data=data, data_dir=data_dir, classifier=classifier, limit=limit, device=device)
    target.check()
    images, labels = target.part(slice(None))
    about = {
        "data": target.images.name,
        "classifier": target.name,
        "defense": defense,
        "given": chosen,
        "norm": norm,
        "eps": room.eps,
        "settings": dataclasses.asdict(settings),
        "machine": environment(target.place),
    }
    known = Journal(out / "measured.jsonl")
    whole = json.loads(
        json.dumps({**about, "data": to_plain(target.data_id), "classifier": to_plain(target.classifier_id)})
    )
    if "specification" not in known:
        known["specification"] = whole
    if known["specification"] != whole:
        raise InvalidInputError(f"{out} holds what another audit has measured; choose another folder")
    began = time.perf_counter()
    with progress_bar("{task.description}", hidden=as_json) as bar:
        task = bar.add_task("starting", total=PARTS)
        try:
            found = run_audit(
                target.model, shield.to(target.place), images, labels, attacks=chosen, ball=room,
                settings=settings, known=known,
                report=lambda part: bar.update(task, description=part, advance=1),
            )  # fmt: skip
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"what was measured is in {out}; run the same command to go on") from stop
    record = {
        "what": "red flags R1 to R10",
        **about,
        "seconds": round(time.perf_counter() - began, 1),
        **found.plain(),
    }
    write_json(out / "audit.json", record)
    write_atomically(out / "audit.html", render_audit(record).encode())
    if as_json:
        typer.echo(json.dumps(record, indent=1))
        return
    Console().print(audit_table(record))
    typer.echo(f"Details in {out / 'audit.html'}, figures in {out / 'audit.json'}")

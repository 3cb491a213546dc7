"""`vqshield certify`: what draws prove about a defended classifier, image by image and for all of them."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from vqshield.certification.study import CERTIFICATES, Certification
from vqshield.certification.study import certify as measure
from vqshield.certification.summary import CertificationSummary
from vqshield.classifiers import BUNDLED
from vqshield.classifiers.folding import PRECISIONS
from vqshield.cli.certify_l1 import certify_exactly
from vqshield.cli.executors import (
    Address,
    ExecutorName,
    Retries,
    TaskCpus,
    TaskGpus,
    Workers,
    executor_for,
)
from vqshield.cli.options import (
    AsJson,
    Behind,
    Classifier,
    Data,
    DataDir,
    Device,
    Fresh,
    Limit,
    Records,
    SummaryOnly,
    parse_eps,
)
from vqshield.cli.resumable import run_to_end, set_aside, write_summary
from vqshield.core import checks
from vqshield.core.serialization import to_plain
from vqshield.data import SAMPLE_NAME
from vqshield.runs.study import Progress

DEFAULT = Certification()


def certify(
    certificate: Annotated[
        str,
        typer.Option(
            help=f"One of {', '.join(CERTIFICATES)}. vote: the majority vote within an L2 radius, whatever "
            "the attack; sequential: the same, drawing no more than it takes to decide about every --radius; "
            "draws: error bounds that hold for given images alone."
        ),
    ] = DEFAULT.certificate,
    norm: Annotated[
        str,
        typer.Option(
            help="l2: the certificates of --certificate, from draws. l1: the exact one of a splitting, as in "
            "--defense splitting:scale=0.5, from all of its shifts; it takes no draws, alpha or attack."
        ),
    ] = "l2",
    after: Annotated[
        str | None,
        typer.Option(help="With --norm l1: a quantizer between the splitting and the classifier, by text."),
    ] = None,
    defense: Behind = None,
    data: Data = SAMPLE_NAME,
    data_dir: DataDir = None,
    classifier: Classifier = BUNDLED,
    attack: Annotated[
        str, typer.Option(help="Makes the images of --certificate draws; as for evaluate, no suite.")
    ] = DEFAULT.attack,
    eps: Annotated[
        list[str] | None,
        typer.Option(
            help="A budget of that attack, L-inf, as in 8/255; may be repeated. Natural images always come "
            "first. Without it, 8/255."
        ),
    ] = None,
    draws: Annotated[int, typer.Option(help="m, the draws behind an error bound.")] = DEFAULT.draws,
    delta: Annotated[float, typer.Option(help="The chance that an error bound fails.")] = DEFAULT.delta,
    n0: Annotated[int, typer.Option(help="Draws that choose a vote's answer.")] = DEFAULT.n0,
    n: Annotated[int, typer.Option(help="Fresh draws that bound its probability.")] = DEFAULT.n,
    alpha: Annotated[
        float, typer.Option(help="The chance that a vote's certificate is wrong.")
    ] = DEFAULT.alpha,
    radius: Annotated[
        list[float] | None,
        typer.Option(help="A radius, in --norm, to give the certified accuracy at; may be repeated."),
    ] = None,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Decides every draw of defense and attack.")] = DEFAULT.seed,
    batch: Annotated[int, typer.Option(help="Draws made at once.")] = DEFAULT.batch,
    precision: Annotated[
        str, typer.Option(help=f"Of the classifier, one of {', '.join(PRECISIONS)}; bf16 is faster on a GPU.")
    ] = DEFAULT.precision,
    device: Device = "auto",
    out: Records = Path("vqshield-certificates"),
    executor: ExecutorName = "local",
    workers: Workers = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    retries: Retries = None,
    fresh: Fresh = False,
    summary_only: SummaryOnly = False,
    as_json: AsJson = False,
) -> None:
    """Certify a defended classifier: tables, summary.json, and records.jsonl with a line for every image."""
    where = executor_for(
        executor, device=device, workers=workers, address=address, cpus=task_cpus, gpus=task_gpus,
        retries=retries,
    )  # fmt: skip
    if checks.one_of("norm", norm, ("l1", "l2")) == "l1":
        certify_exactly(
            classifier, data, defense=defense, after=after, radii=radius or (), seed=seed, batch=batch,
            precision=precision, limit=limit, data_dir=data_dir, device=device, out=out, fresh=fresh,
            summary_only=summary_only, as_json=as_json, executor=where,
        )  # fmt: skip
        return

    def stored() -> CertificationSummary:
        return CertificationSummary.of(Certification.read(out), radii=radius or ())

    def run(progress: Progress) -> CertificationSummary:
        budgets = None if eps is None else tuple(parse_eps(each) for each in eps)
        return measure(
            classifier, data, defense=defense, certificate=certificate, attack=attack, eps=budgets,
            draws=draws, delta=delta, n0=n0, n=n, alpha=alpha, radii=radius or (), seed=seed, batch=batch,
            precision=precision, limit=limit, data_dir=data_dir, device=device, out=out, executor=where,
            progress=progress,
        )  # fmt: skip

    if fresh and not summary_only:
        set_aside(out)
    summary = stored() if summary_only else run_to_end(run, stored, out, hidden=as_json)
    write_summary(out, summary)
    if as_json:
        typer.echo(json.dumps(to_plain(summary), indent=1))
        return
    console = Console()
    for table in summary.tables():
        console.print(table.terminal())
    for line in summary.caveats():
        console.print(line, markup=False, highlight=False)
    typer.echo(f"\nFigures in {out / 'summary.json'}, every image in {out / 'records.jsonl'}")

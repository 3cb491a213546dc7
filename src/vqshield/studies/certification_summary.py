"""From records of certificates to figures: certified accuracies, and statements about all images at once."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vqshield import checks
from vqshield.certificates import (
    Evidence,
    accuracy_bound,
    allowed_failures,
    binomial_statement,
    bounds_from,
    linf_radius,
    list_bounds,
    per_image_delta,
    radius,
    union_statement,
)
from vqshield.runs.manifests import read_manifest
from vqshield.runs.records import RecordFolder
from vqshield.studies.certification_records import (
    CertificateRecord,
    DrawsRecord,
    VoteRecord,
    parse_record,
)
from vqshield.studies.certification_settings import cells

STEPS = 10  # about so many radii where none are given


def summarise_certification(
    specification: Mapping[str, Any],
    records: Iterable[CertificateRecord],
    *,
    seconds: float = 0.0,
    radii: Sequence[float] = (),
) -> dict[str, Any]:
    """What summary.json holds; of a run that is not finished, what there is.

    radii: where the certified accuracies are given, in L2; without any, evenly up to the largest possible.
    """
    found = list(records)
    votes = [record for record in found if isinstance(record, VoteRecord)]
    rows = []
    for source in specification["sources"]:
        part = [each for each in found if isinstance(each, DrawsRecord) and each.eps == source["eps"]]
        if part:
            rows.append({**source, **_error_bounds(specification, part)})
    return {
        "title": f"Certificates of {specification['defense']['name']} for {specification['data']['images']} "
        f"images of {specification['data']['name']}, classifier {specification['classifier']['name']}",
        "complete": len(found) == sum(len(cell.images) for cell in cells(specification)),
        "vote": _votes(specification, votes, radii) if votes else None,
        "draws": rows,
        "seconds": round(seconds, 1),
        "specification": dict(specification),
    }


def summarise_certification_folder(folder: Path, *, radii: Sequence[float] = ()) -> dict[str, Any]:
    """The summary of the records in a folder, finished or not."""
    specification = read_manifest(folder, field="certificate")
    records = RecordFolder(folder, [cell.keys for cell in cells(specification)], parse_record)
    found = records.read()
    seconds = sum(records.seconds(found).values())
    return summarise_certification(specification, found, seconds=seconds, radii=radii)


def _votes(
    specification: Mapping[str, Any], records: Sequence[VoteRecord], radii: Sequence[float]
) -> dict[str, Any]:
    """The vote's certificate: shares of images, against the radius."""
    draws, alpha, values = specification["n"], specification["alpha"], specification["values"]
    covered = specification["coverage"]
    largest = radius(counts_top=draws, draws=draws, alpha=alpha, **covered)
    reached = torch.tensor([each.radius for each in records], dtype=torch.float64)
    right = torch.tensor([each.answer == each.label for each in records])
    p_y = torch.tensor([each.p_y for each in records], dtype=torch.float64)
    failing = allowed_failures(images=len(records), delta=alpha, eta=alpha)
    curve = []
    for given in radii or _even_radii(largest):
        certified = float((right & (reached > checks.real("radius", given))).double().mean())
        single = accuracy_bound(p_y=p_y, radius=given, **covered)
        together = binomial_statement(upper=1 - single, delta=alpha, eta=alpha)
        curve.append(
            {
                "radius": float(given),
                "linf": linf_radius(radius=float(given), values=values),
                "vote": certified,
                "vote_statement": max(0.0, certified - failing / len(records)),
                "draw": float(single.mean()),
                "draw_statement": together.certified_accuracy,
            }
        )
    return {
        "images": len(records),
        "draws": draws,
        "accuracy": sum(each.right for each in records) / (draws * len(records)),
        "right": float(right.double().mean()),
        "abstained": sum(each.abstain for each in records) / len(records),
        "mean_radius": float((reached * right).mean()),
        "largest_radius": largest,
        "largest_linf": linf_radius(radius=largest, values=values),
        **covered,
        "alpha": alpha,
        "confidence": 1 - alpha,
        "allowed_failures": failing,
        "curve": curve,
    }


def _error_bounds(specification: Mapping[str, Any], records: Sequence[DrawsRecord]) -> dict[str, Any]:
    """Each error bound: the mean over the images, and two statements that pay for bounds that fail."""
    draws, delta = specification["draws"], specification["delta"]
    seen = _evidence(records, draws)
    together = bounds_from(seen, delta=per_image_delta(delta=delta, images=len(records)))
    figures = {}
    for name in list_bounds():
        upper = torch.tensor([each.bounds[name] for each in records], dtype=torch.float64)
        all_but = binomial_statement(upper=upper, delta=delta, eta=delta)
        figures[name] = {
            "certified_accuracy": float((1 - upper).mean()),
            "union": union_statement(upper=together[name], delta=delta).certified_accuracy,
            "binomial": all_but.certified_accuracy,
            "binomial_holding": all_but.holding,
        }
    return {
        "images": len(records),
        "draws": draws,
        "delta": delta,
        "accuracy": 1 - sum(each.errors for each in records) / (draws * len(records)),
        "bounds": figures,
    }


def _evidence(records: Sequence[DrawsRecord], draws: int) -> Evidence:
    def column(name: str) -> Tensor:
        return torch.tensor([getattr(each, name) for each in records], dtype=torch.float64)

    return Evidence(
        draws=draws,
        margin=column("margin"),
        mean_l1=column("mean_l1"),
        mean_truncated=column("mean_truncated"),
        variance_truncated=column("variance_truncated"),
        errors=column("errors").long(),
    )


def _even_radii(largest: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, below the largest radius that so many draws can give."""
    if largest <= 0:  # too few draws to certify anything
        return [0.0]
    rough = largest / STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(number * step, 12) for number in range(math.ceil(largest / step))]

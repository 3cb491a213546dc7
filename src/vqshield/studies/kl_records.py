"""What the KL diagnostic found of each image, and its means over images."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from vqshield.runs.records import Key, Line

FIGURES = ("kl", "floor", "excess")


def what_at(eps: float) -> str:
    """The budget's name in a record's key."""
    return f"kl eps={eps}"


@dataclass(frozen=True, kw_only=True)
class DivergenceRecord(Line):
    """The diagnostic of one image and of what an attack with a budget of eps made of it; 0: the image again.

    distance: how far it was moved, in the norm of the study.
    kl, floor, excess: in nats, with the standard errors of their Monte-Carlo sums alone; kl means nothing
        without the floor, which is the same measurement between two sets of codebooks of the same image.
    second: the term of the labels, None where it was not computed; second_is: what it means for the defense.
    proved: what each term cannot exceed, whatever the mixtures say; None where nothing is proved.
    log_likelihood: of the mixture of x at the codebooks it was fitted to; held_out_loss: how much less it is
        at fresh ones.
    """

    eps: float
    image: int
    label: int
    distance: float
    kl: float
    kl_standard_error: float
    floor: float
    floor_standard_error: float
    excess: float
    excess_standard_error: float
    second: float | None
    second_standard_error: float | None
    second_is: str
    proved: dict[str, float | None]
    log_likelihood: float
    held_out_loss: float
    converged: bool
    codebooks: int
    dimensions: int

    @property
    def key(self) -> Key:
        """What it is of."""
        return self.defense, what_at(self.eps), self.image

    @classmethod
    def of(
        cls,
        found: Mapping[str, Any],
        *,
        defense: str,
        eps: float,
        image: int,
        label: int,
        distance: float,
    ) -> Self:
        """The record of what `divergence.measure` found, less its times, which differ from run to run."""
        second = found["second"] or {"value": None, "standard_error": None}
        return cls(
            defense=defense,
            eps=eps,
            image=image,
            label=label,
            distance=distance,
            **{name: found[name]["value"] for name in FIGURES},
            **{f"{name}_standard_error": found[name]["standard_error"] for name in FIGURES},
            second=second["value"],
            second_standard_error=second["standard_error"],
            second_is=found["second_is"],
            proved=dict(found["proved"]),
            log_likelihood=found["log_likelihood"],
            held_out_loss=found["log_likelihood"] - found["held_out"],
            converged=found["converged"],
            codebooks=found["codebooks"],
            dimensions=found["dimensions"],
        )


def summarise_divergence(
    specification: Mapping[str, Any], records: Iterable[DivergenceRecord]
) -> dict[str, Any]:
    """Means over the images for every defense and budget; of a study that is not finished, what there is."""
    found = list(records)
    rows = []
    for each in specification["defenses"]:
        for source in specification["sources"]:
            part = [
                record for record in found if (record.defense, record.eps) == (each["name"], source["eps"])
            ]
            if part:
                rows.append(
                    {
                        "defense": each["name"],
                        "eps": source["eps"],
                        "attack": source["attack"]["name"],
                        **_row(part),
                    }
                )
    count, data = specification["images"], specification["data"]["name"]
    return {
        "title": f"KL diagnostic of {count} images of {data}, "
        f"classifier {specification['classifier']['name']}",
        "what": "means over images in nats; fitted mixtures bound nothing: read kl beside its floor",
        "complete": len(found) == count * len(specification["sources"]) * len(specification["defenses"]),
        "rows": rows,
        "specification": dict(specification),
    }


def _row(records: Sequence[DivergenceRecord]) -> dict[str, Any]:
    labels = [record.second for record in records if record.second is not None]
    return {
        "images": len(records),
        **{name: _mean([getattr(record, name) for record in records]) for name in FIGURES},
        "second": _mean(labels) if labels else None,
        "second_images": len(labels),
        "second_is": records[0].second_is,
        "proved": {term: _proved(records, term) for term in ("first", "second")},
        "distance": statistics.fmean(record.distance for record in records),
        "held_out_loss": statistics.fmean(record.held_out_loss for record in records),
        "converged": sum(record.converged for record in records),
        "codebooks": records[0].codebooks,
        "dimensions": records[0].dimensions,
    }


def _mean(values: Sequence[float]) -> dict[str, float | None]:
    """The mean over images and its standard error, from their spread; one image has none."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_error": error}


def _proved(records: Sequence[DivergenceRecord], term: str) -> float | None:
    """The mean of the bounds, which bounds the mean; None as soon as one image has none."""
    bounds = [bound for record in records if (bound := record.proved[term]) is not None]
    return statistics.fmean(bounds) if len(bounds) == len(records) else None

"""Error bounds for given images, as functions of the evidence in m draws of each image.

A new bound is one function and one line in `bounds_from`. Every bound holds for the image x' that was
drawn from, not for a ball around it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vqshield.certificates.intervals import clopper_pearson, empirical_bernstein, truncated_markov
from vqshield.certificates.numbers import Value, chance, doubles, like, per_class, same_shape
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError

_ROUNDING = 1e-2  # outputs in half precision add up to 1 only about; logits do not at all


@dataclass(frozen=True)
class Evidence:
    """The numbers of m draws x̂'_i of each given image x' that bounds depend on, (B,). Made by `evidence`.

    Example:
        >>> softmax = classifier(images).softmax(1)
        >>> seen = vq.certificates.evidence(reference=softmax, drawn=[softmax] * 5, labels=labels)
        >>> seen.draws, int(seen.errors.sum())
        (5, 0)
    """

    draws: int  # m
    margin: Tensor  # rho(x, y, f)
    mean_l1: Tensor  # mean of ‖f(x) − f(x̂'_i)‖₁
    mean_truncated: Tensor  # mean of min(1, ‖f(x) − f(x̂'_i)‖₁ / rho); 1 where rho ≤ 0
    variance_truncated: Tensor  # sample variance of the same; 0 for a single draw
    errors: Tensor  # how many draws have rho(x̂'_i, y, f) ≤ 0


def margin(outputs: Tensor, labels: Tensor) -> Tensor:
    """rho = f[y] − max_{j≠y} f[j], (..., B), of softmax outputs f (..., B, classes) and labels y (B,), int64.

    An image is right where rho > 0; a tie is an error, as in the paper.

    Example:
        >>> vq.certificates.margin(torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([0]))
        tensor([0.5000])
    """
    labels = _check_labels(outputs, labels)
    chosen = labels.expand(outputs.shape[:-1])[..., None]
    others = outputs.scatter(-1, chosen, -torch.inf).amax(-1)
    return outputs.gather(-1, chosen)[..., 0] - others


def l1_distance(outputs: Tensor, others: Tensor) -> Tensor:
    """‖f(x) − f(x̂')‖₁ over the classes, the last dimension: between 0 and 2.

    Example:
        >>> vq.certificates.l1_distance(torch.tensor([0.75, 0.25]), torch.tensor([0.5, 0.5]))
        tensor(0.5000)
    """
    return (outputs - others).abs().sum(-1)


def evidence(*, reference: Tensor, drawn: Iterable[Tensor], labels: Tensor) -> Evidence:
    """The evidence in softmax outputs.

    Args:
        reference: f(x) of the clean images, (B, classes).
        drawn: f(x̂'_i), (m, B, classes), or an iterable of draws (B, classes) or of some of them (some, B,
            classes), so that they need not all be in memory.
        labels: the true classes, (B,), int64.

    Example:
        >>> model = vq.defend(classifier, "swrd", seed=0)
        >>> drawn = [model(images).softmax(1) for _ in range(5)]
        >>> reference = classifier(images).softmax(1)
        >>> vq.certificates.evidence(reference=reference, drawn=drawn, labels=labels).draws
        5
    """
    outputs = _softmax("reference", reference)
    labels = _check_labels(outputs, labels)
    rho = margin(outputs, labels)
    rows, errors = [], torch.zeros_like(labels)
    for draw in drawn:
        if draw.dim() > 3 or draw.shape[-2:] != outputs.shape:
            shape, wanted = tuple(draw.shape[1:] if draw.dim() == 3 else draw.shape), tuple(outputs.shape)
            raise InvalidInputError(f"a draw of shape {shape} should be {wanted}, as the reference")
        values = _softmax("drawn", draw.to(outputs.device).flatten(0, -2)).view(-1, *outputs.shape)
        rows.append(l1_distance(outputs, values))
        errors += (margin(values, labels) <= 0).sum(0)
    if not rows:
        raise InvalidInputError("drawn holds 0 draws; there should be at least 1")
    distances = torch.cat(rows)  # (m, B)
    truncated = torch.where(rho > 0, distances / rho, 1.0).clamp(max=1)
    spread = truncated.var(0) if len(distances) > 1 else torch.zeros_like(rho)
    mean_truncated = truncated.mean(0).clamp(max=1)  # rounding may leave a mean of ones just above 1
    return Evidence(len(distances), rho, distances.mean(0), mean_truncated, spread, errors)


def _softmax(name: str, outputs: Tensor) -> Tensor:
    """Softmax outputs (B, classes) as float64."""
    per_class(name, outputs, "floating-point")
    values = outputs.detach().double()
    checks.finite(name, values)
    sums = values.sum(-1)
    wrong = ((sums - 1).abs() > _ROUNDING) | (values < 0).any(-1)
    if bool(wrong.any()):
        row = values[wrong][0]
        raise InvalidInputError(
            f"{name} holds a row with minimum {float(row.min()):g} and sum {float(row.sum()):g}; "
            "give softmax outputs (≥ 0, sum 1), not logits"
        )
    return values


def _check_labels(outputs: Tensor, labels: Tensor) -> Tensor:
    labels = checks.per_image("labels", labels, outputs.flatten(0, -3)[0] if outputs.dim() > 2 else outputs)
    classes = outputs.shape[-1]
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise InvalidInputError(f"labels contain {int(wrong[0])}; they should be from 0 to {classes - 1}")
    return labels


def proposition1(*, mean_l1: Value, margin: Value, draws: int, delta: float) -> Value:
    """gamma = (mean_l1 + sqrt(2 ln(1/delta)/m)) / rho, an upper bound on the error, clipped to [0, 1].

    It holds with probability at least 1 − delta over the draws, for the one image x' that was drawn from, not
    for a ball around x: another x' needs draws of its own.

    Args:
        mean_l1: the mean of ‖f(x) − f(x̂'_i)‖₁ over the m draws of x', of softmax outputs.
        margin: rho(x, y, f); where it is not positive nothing is certified, and the bound is 1.
        delta: the chance that the bound fails.

    Example:
        >>> round(vq.certificates.proposition1(mean_l1=0.2, margin=0.9, draws=100, delta=0.05), 3)
        0.494
    """
    checks.whole("draws", draws, least=1)
    distance = doubles("mean_l1", mean_l1, least=0, most=2 + _ROUNDING)
    rho = doubles("margin", margin, least=-1 - _ROUNDING, most=1 + _ROUNDING)
    same_shape(mean_l1=distance, margin=rho)
    slack = math.sqrt(2 * math.log(1 / chance("delta", delta)) / draws)
    gamma = torch.where(rho > 0, (distance + slack) / rho, 1.0)
    return like(gamma.clamp(max=1), mean_l1, margin)


_BOUNDS = ("proposition1", "truncated_markov", "empirical_bernstein", "clopper_pearson")


def list_bounds() -> list[str]:
    """The names of the registered error bounds, the paper's first.

    Example:
        >>> vq.certificates.list_bounds()
        ['proposition1', 'truncated_markov', 'empirical_bernstein', 'clopper_pearson']
    """
    return list(_BOUNDS)


def bounds_from(seen: Evidence, *, delta: float) -> dict[str, Tensor]:
    """Every bound by name, (B,) each. Each alone holds with probability 1 − delta; the smallest does not.

    Example:
        >>> softmax = classifier(images).softmax(1)
        >>> seen = vq.certificates.evidence(reference=softmax, drawn=[softmax] * 100, labels=labels)
        >>> float(vq.certificates.bounds_from(seen, delta=0.05)["clopper_pearson"].max())
        0.0295...
    """
    m, mean, variance = seen.draws, seen.mean_truncated, seen.variance_truncated
    bounds = (
        proposition1(mean_l1=seen.mean_l1, margin=seen.margin, draws=m, delta=delta),
        truncated_markov(mean=mean, draws=m, delta=delta),
        empirical_bernstein(mean=mean, variance=variance, draws=m, delta=delta),
        clopper_pearson(errors=seen.errors, draws=m, delta=delta),
    )
    return dict(zip(_BOUNDS, bounds, strict=True))


def error_bounds(
    *, reference: Tensor, drawn: Iterable[Tensor], labels: Tensor, delta: float
) -> dict[str, Tensor]:
    """Every bound by name from softmax outputs; arguments as of `evidence`.

    Example:
        >>> f = classifier(images).softmax(1)
        >>> list(vq.certificates.error_bounds(reference=f, drawn=[f] * 100, labels=labels, delta=0.05))
        ['proposition1', 'truncated_markov', 'empirical_bernstein', 'clopper_pearson']
    """
    return bounds_from(evidence(reference=reference, drawn=drawn, labels=labels), delta=delta)

"""One formula for numbers and for tensors: what is given is checked and becomes float64, and what comes out
is a number where only numbers went in.
"""

from typing import Literal, TypeVar

import torch
from torch import Tensor

from vqshield.core import checks
from vqshield.core.errors import InvalidInputError

Value = TypeVar("Value", float, Tensor)
"""A number, or a tensor with one value per image."""


def chance(name: str, value: object) -> float:
    """A probability of being wrong (delta, alpha, eta): strictly between 0 and 1."""
    number = checks.real(name, value, most=1.0)
    if number in (0.0, 1.0):
        raise InvalidInputError(f"{name}={value} should lie strictly between 0 and 1")
    return number


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    number = checks.real(name, value)
    if number == 0:
        raise InvalidInputError(f"{name}={value} should be > 0")
    return number


def doubles(name: str, value: float | Tensor, *, least: float, most: float) -> Tensor:
    """A number or floating-point tensor as float64, every value in least … most."""
    if not isinstance(value, Tensor):
        return torch.tensor(checks.real(name, value, least=least, most=most), dtype=torch.float64)
    if not value.is_floating_point():
        raise InvalidInputError(f"{name} of dtype {value.dtype} should be floating-point")
    values = value.detach().double()
    checks.finite(name, values)
    wrong = values[(values < least) | (values > most)]
    if len(wrong):
        value = float(wrong[0])
        raise InvalidInputError(f"{name} contain {value:g}; every value should lie in [{least:g}, {most:g}]")
    return values


def counts(name: str, value: object, *, most: int) -> Tensor:
    """A whole number or integer tensor as int64, every value in 0 … most, the number of draws."""
    if not isinstance(value, Tensor):
        return torch.tensor(checks.whole(name, value, least=0, below=most + 1))
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise InvalidInputError(f"{name} of dtype {value.dtype} should be whole numbers")
    values = value.detach().long()
    wrong = values[(values < 0) | (values > most)]
    if len(wrong):
        raise InvalidInputError(f"{name} contain {int(wrong[0])}; every value should lie in 0 … draws={most}")
    return values


def per_class(name: str, given: Tensor, kind: Literal["whole numbers", "floating-point"]) -> None:
    """Refuse what is not (B, classes) with two classes or more, or other numbers than these."""
    if given.dim() != 2 or given.shape[1] < 2 or given.is_floating_point() != (kind == "floating-point"):
        found = f"shape {tuple(given.shape)} and dtype {given.dtype}"
        raise InvalidInputError(f"{name} of {found} should be {kind}, (B, classes), 2 classes or more")


def same_shape(**values: Tensor) -> None:
    """Tensors that belong together have one shape; numbers go with every shape."""
    shapes = {name: tuple(value.shape) for name, value in values.items() if value.dim()}
    if len(set(shapes.values())) > 1:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise InvalidInputError(f"shapes differ: {found}; give one value per image in each")


def like(result: Tensor, *given: Value) -> Value:
    """The result as a number where only numbers were given."""
    if any(isinstance(value, Tensor) for value in given):
        return result  # type: ignore[return-value]
    return result.item()  # type: ignore[return-value]

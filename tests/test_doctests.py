"""The examples in the docstrings run, and every public name has one."""

import doctest
import importlib.util
import inspect
from types import ModuleType
from typing import Any

import pytest
import torch

import vqshield as vq
from contracts.test_names import MODULES
from vqshield.classifiers import small_cifar10
from vqshield.data import sample

NEEDS = {"vqshield.attacks.autoattack": "pyautoattack"}
PUBLIC = [vq, vq.attacks, vq.certificates, vq.defenses, vq.surrogates]
EXAMPLES = {
    module.__name__: found
    for module in MODULES
    if (found := [each for each in doctest.DocTestFinder().find(module) if each.examples])
}


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """What the package's docstring says that the examples begin with."""
    photos = sample(8)
    return {
        "torch": torch, "vq": vq, "classifier": small_cifar10(), "images": photos.floats(),
        "labels": photos.labels,
    }  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_a_module_run(name: str, shown: dict[str, Any]) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    runner, said = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False), []
    for example in EXAMPLES[name]:
        example.globs = {**example.globs, **shown}
        runner.run(example, out=said.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_every_public_name_has_an_example(module: ModuleType) -> None:
    for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
        held = getattr(module, name)
        if inspect.isclass(held) or inspect.isfunction(held):
            assert ">>> " in (held.__doc__ or ""), f"{module.__name__}.{name} has no example in its docstring"

"""One name, one thing: nothing in a package hides one of its modules."""

import importlib
import pkgutil
from types import ModuleType

import pytest

import vqshield


def modules() -> list[ModuleType]:
    """Every module of the package that can be imported here; what needs an absent extra is left out."""
    found = [vqshield]
    for each in pkgutil.walk_packages(vqshield.__path__, "vqshield.", onerror=lambda name: None):
        if each.name.endswith("__main__") or "._native_" in each.name:
            continue
        try:
            found.append(importlib.import_module(each.name))
        except ImportError as absent:
            if str(absent.name).startswith("vqshield"):
                raise
    return found


MODULES = modules()
PACKAGES = [each for each in MODULES if hasattr(each, "__path__")]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_no_attribute_of_a_package_hides_a_module(package: ModuleType) -> None:
    for each in pkgutil.iter_modules(package.__path__):
        held = getattr(package, each.name, None)
        assert held is None or isinstance(held, ModuleType), (
            f"{package.__name__}.{each.name} is a {type(held).__name__}; it should be the module of that name"
        )


@pytest.mark.parametrize("name", ["attacks", "certificates", "defenses", "surrogates"])
def test_the_rooms_of_the_api_are_modules(name: str) -> None:
    assert getattr(vqshield, name) is importlib.import_module(f"vqshield.{name}")
    assert name in dir(vqshield)


def test_dir_shows_the_public_names_alone() -> None:
    assert [name for name in dir(vqshield) if not name.startswith("__")] == sorted(vqshield.__all__)

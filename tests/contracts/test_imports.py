"""The data flows one way: a module imports only from those listed before it."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vqshield

ROOT = Path(vqshield.__file__).parent
ORDER = [
    ["core"],
    ["images.files"],
    ["models"],
    ["reports"],
    ["quantization"],
    ["defenses"],
    ["surrogates"],
    ["defended"],
    ["attacks"],
    ["attacks.threats"],
    ["attacks.suites"],
    ["images.pictures"],
    ["certificates"],
    ["data"],
    ["classifiers"],
    ["voting"],
    ["training"],
    ["images.purify"],
    ["runs"],
    ["doctor"],
    ["evaluation"],
    ["certification"],
    ["auditing"],
    ["ladders"],
    ["leaderboards"],
    ["demo"],
    ["integrations"],
    ["cli"],
]
FORBIDDEN = {"attacks": {"defenses", "defended", "surrogates"}}
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}


def part(path: Path) -> str:
    return place(list(path.relative_to(ROOT).with_suffix("").parts))


def place(names: list[str]) -> str:
    """The folder of a module, or the module itself where ORDER names it."""
    module = ".".join(names[:2])
    return module if module in LEVEL else names[0]


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vqshield":
            tail = (node.module or "").split(".")[1:]
            names = [place([*tail, alias.name]) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [place(a.name.split(".")[1:]) for a in node.names if a.name.startswith("vqshield.")]
        found.update(name for name in names if not name.startswith("__"))
    return found


def test_every_module_has_a_place_in_the_order() -> None:
    present = {part(path) for path in ROOT.rglob("*.py")} - {"__init__", "__main__", "images"}
    assert present == set(LEVEL) & present
    assert present <= set(LEVEL), f"give {present - set(LEVEL)} a place in ORDER and in CONTRIBUTING.md"


def test_the_package_does_not_import_what_is_built_on_it() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert (
            re.search(r"^\s*(?:import|from) vqshield_(?:app|deploy|paper)\b", text, re.MULTILINE) is None
        ), path


def test_imports_point_one_way() -> None:
    for path in ROOT.rglob("*.py"):
        here = part(path)
        if here in ("__init__", "__main__", "images"):  # images: its __init__.py alone
            continue
        for other in imported_parts(path) - {here}:
            assert LEVEL[other] < LEVEL[here] or other in ORDER[LEVEL[here]], f"{path} imports {other}"
            assert other not in FORBIDDEN.get(here, set()), f"{path}: {here} must not know {other}"


OPTIONAL = {
    "adversarial-robustness-toolbox", "albumentations", "kornia", "lightning", "timm", "torchvision",
    "transformers", "triton",
}  # fmt: skip
OFFLINE = """
import importlib, pkgutil, sys, warnings

module = "vqshield"

def refuse(event, details):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print(f"{module} connects to {details}", flush=True)  # a library may swallow the exception
        raise OSError("the network is blocked")

sys.addaudithook(refuse)
warnings.simplefilter("ignore")
import vqshield
for found in pkgutil.walk_packages(vqshield.__path__, "vqshield."):
    module = found.name
    if "._native" in module:  # shared libraries, loaded by torch
        continue
    try:
        importlib.import_module(module)
    except ImportError as error:
        if not {*str(error.name).split()} & {*sys.argv[1:]}:  # or "a torchvision that imports beside torch …"
            raise
"""


@pytest.mark.slow
def test_no_import_uses_the_network() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NO_ALBUMENTATIONS_UPDATE"}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, *OPTIONAL], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

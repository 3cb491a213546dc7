"""The short examples run, and stay short."""

import importlib.util
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NEEDS = {
    "shield_with_art": ("art.attacks", "packaging"),
    "shield_with_torchvision": ("torchvision",),
    "shield_with_kornia": ("kornia",),
    "shield_with_albumentations": ("albumentations",),
    "shield_with_transformers": ("transformers",),
    "shield_with_timm": ("timm", "torchvision"),
    "shield_with_lightning": ("lightning",),
    "export_to_onnx": ("onnx", "onnxruntime", "onnxscript"),
    "kmeans_of_many_problems": (),
}


def present(module: str) -> bool:
    return all(importlib.util.find_spec(part) for part in (module.partition(".")[0], module))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_runs(name: str, capsys, monkeypatch, tmp_path) -> None:
    absent = [module for module in NEEDS[name] if not present(module)]
    if absent:
        pytest.skip(f"{absent[0]} is not installed")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_is_short_and_listed(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 40
    assert f"{name}.py" in (EXAMPLES / "README.md").read_text()

"""vqshield doctor: what it says is what there is."""

import json

import torch
from typer.testing import CliRunner

import vqshield
from vqshield.cli.application import app
from vqshield.cli.doctor import installation, missing_packages
from vqshield.quantization import kernels as clustering

RUNNER = CliRunner()


def test_it_names_versions_backends_and_the_cache(monkeypatch, tmp_path):
    (tmp_path / "cifar10").mkdir()
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path))
    facts = installation()
    assert facts["version"] == vqshield.__version__
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["backends"] == clustering.availability()
    assert (facts["cache"], facts["cached"]) == (str(tmp_path), ["cifar10"])
    text = RUNNER.invoke(app, ["doctor"]).stdout
    for word in (vqshield.__version__, torch.__version__, facts["kernel"], "backend native", "cifar10"):
        assert word in text
    as_json = json.loads(RUNNER.invoke(app, ["doctor", "--json"]).stdout)
    assert as_json == facts


def test_what_an_extra_lacks_is_named():
    needed = ["torch>=2.6", "numpy ; extra == 'a'", "no-such-package>=1; extra == 'a'", "numpy; extra == 'b'"]
    assert missing_packages(needed) == {"a": ["no-such-package"], "b": []}
    assert missing_packages(None) is None


def test_the_version_names_the_commit_and_the_kernel():
    text = RUNNER.invoke(app, ["--version"]).stdout
    assert text.startswith(f"vqshield {vqshield.__version__}, commit ")
    assert clustering.kernel_name("auto") in text
    for name, said in clustering.availability().items():
        assert name not in text or said.startswith("serves"), f"doctor says that {name} is {said}"

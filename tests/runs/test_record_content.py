"""What no measurement can have written is refused, and so is what was changed after it was written."""

import importlib
import json
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import pytest

import vqshield
from quantization.kernels.emulated_cuda import compiler, emulate
from vqshield.certification.study import Certification
from vqshield.classifiers import BUNDLED
from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.evaluation.study import Evaluation
from vqshield.runs.code import sources_digest
from vqshield.runs.executors import LocalExecutor
from vqshield.runs.target import Target

ATTACK = "pgd:steps=1,surrogate=none"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    target = Target(limit=3, device="cpu")
    evaluation = Evaluation(target=target, defenses=("prd:iterations=2",), attacks=(ATTACK,), runs=2, batch=3)
    LocalExecutor().run(evaluation, folder / "evaluation")
    votes = Certification(target=target, defense="prd:iterations=2", n0=2, n=4, draws=3, batch=64)
    LocalExecutor().run(votes, folder / "certification")
    return folder


def forged(source: Path, folder: Path, line: int, *, keep_times: bool = False, **changes: object) -> Path:
    """A copy with one record changed; without the times, as of an earlier version, there is no digest."""
    shutil.copytree(source, folder)
    lines = (folder / "records.jsonl").read_text().splitlines()
    lines[line] = json.dumps({**json.loads(lines[line]), **changes})
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    if not keep_times:
        (folder / "times.jsonl").unlink()
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictions": [1]}, "it has 1 predictions; the manifest says runs=2"),
        ({"predictions": [1, 10]}, "class 10 is none of the classes 0 to 9"),
        ({"predictions": [1, -1]}, "class -1"),
        ({"predictions": [1, True]}, "class True"),
        ({"predictions": [1, 1.5]}, "class 1.5"),
        ({"label": 99}, "class 99"),
        ({"distance": 0.5}, "distance=0.5 is not within eps=0.03"),
        ({"distance": -1.0}, "distance=-1.0"),
        ({"distance": float("nan")}, "distance=nan"),
        ({"selected": 3}, "selected=3 should be from 0 to selection=2"),
        ({"selected": -1}, "selected=-1"),
        ({"selected": None}, "selected=None of attack"),
    ],
)
def test_an_impossible_record_of_an_evaluation_is_named(measured, tmp_path, changes, message) -> None:
    folder = forged(measured / "evaluation", tmp_path / "forged", 6, **changes)
    with pytest.raises(FileFormatError, match=f"line 7 cannot be: {message}"):
        Evaluation.read(folder)


@pytest.mark.parametrize(
    ("line", "changes", "message"),
    [
        (0, {"top": 5}, "5 of 4 draws"),
        (0, {"right": -1}, "-1 of 4 draws"),
        (0, {"radius": float("nan")}, "nan is not a finite number"),
        (0, {"radius": float("inf")}, "inf is not a finite number"),
        (0, {"p_y": 1.5}, "1.5 is not a share"),
        (0, {"selected": 12}, "class 12"),
        (4, {"errors": 4}, "4 of 3 draws"),
        (4, {"distance": 9.0}, "distance=9.0"),
        (4, {"bounds": {"proposition1": -0.5}}, "-0.5 is not a finite number"),
    ],
)
def test_an_impossible_certificate_is_named(measured, tmp_path, line, changes, message) -> None:
    folder = forged(measured / "certification", tmp_path / "forged", line, **changes)
    with pytest.raises(FileFormatError, match=f"line {line + 1} cannot be: {message}"):
        Certification.read(folder)


def test_what_could_be_but_was_not_written_is_refused(measured, tmp_path) -> None:
    assert len(Evaluation.read(measured / "evaluation").records) == 9
    folder = forged(measured / "evaluation", tmp_path / "forged", 1, keep_times=True, label=5)
    with pytest.raises(FileFormatError, match=r"lines 1 to 3 are not what was written"):
        Evaluation.read(folder)
    (folder / "times.jsonl").unlink()
    assert len(Evaluation.read(folder).records) == 9, "folders of earlier versions have no digest"


def test_a_classifier_whose_source_changed_is_another_one(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "changing_net.py"
    text = "from vqshield.classifiers import small_cifar10\ndef net():\n    return small_cifar10()\n"

    def study() -> Evaluation:
        sys.modules.pop("changing_net", None)
        target = Target(limit=2, device="cpu", classifier="changing_net:net")
        return Evaluation(target=target, defenses=("none",), runs=1)

    source.write_text(text)
    LocalExecutor().run(study(), tmp_path / "out")
    LocalExecutor().run(study(), tmp_path / "out")
    source.write_text(text + "# the same weights, another program\n")
    with pytest.raises(InvalidInputError, match=r"records made with classifier\.source="):
        LocalExecutor().run(study(), tmp_path / "out")


@pytest.mark.parametrize("helper", ["from helping import factor", "import helping"])
@pytest.mark.parametrize("kind", ["classifier", "defense"])
def test_a_helper_that_changed_makes_another_function(tmp_path, monkeypatch, kind, helper) -> None:
    """Its answers are the same, so it is the digest of the source that tells."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "helped.py").write_text(
        f"from vqshield.classifiers import small_cifar10\n{helper}\n"
        "def net():\n    return small_cifar10()\n"
        "def same(images):\n    return images.clone()\n"
    )
    (tmp_path / "helping.py").write_text("factor = 0.5\n")

    def run() -> None:
        for name in ("helped", "helping"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        named = {"classifier": "helped:net"} if kind == "classifier" else {"defense": "helped:same"}
        LocalExecutor().run(small_study(**named), tmp_path / "out")

    run()
    run()
    (tmp_path / "helping.py").write_text("factor = 0.25\n")
    with pytest.raises(InvalidInputError, match=r"made with (classifier|defenses\.0\.settings)\.source="):
        run()


def small_study(classifier: str = BUNDLED, defense: str = "none") -> Evaluation:
    target = Target(limit=2, device="cpu", classifier=classifier)
    return Evaluation(target=target, defenses=(defense,), runs=1)


def test_a_classifier_that_answers_otherwise_is_another_one(tmp_path, monkeypatch) -> None:
    """The same source and the same weights; what else it reads decides its answers."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "reading_net", raising=False)
    (tmp_path / "reading_net.py").write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "from vqshield.classifiers import small_cifar10\n"
        "class Scaled(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.net = small_cifar10()\n"
        "        self.scale = float(Path(__file__).with_name('scale').read_text())\n"
        "    def forward(self, images):\n"
        "        return self.scale * self.net(images)\n"
        "def net():\n"
        "    return Scaled().eval()\n"
    )
    (tmp_path / "scale").write_text("1")
    LocalExecutor().run(small_study("reading_net:net"), tmp_path / "out")
    LocalExecutor().run(small_study("reading_net:net"), tmp_path / "out")
    (tmp_path / "scale").write_text("2")
    with pytest.raises(InvalidInputError, match=r"records made with classifier\.answers="):
        LocalExecutor().run(small_study("reading_net:net"), tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "value", "named"),
    [
        ("vqshield.runs.code.sources_digest", lambda _: "0" * 16, r"code\.sources=.*without later edits"),
        ("vqshield.quantization.kernels.kernel_name", lambda *_: "native mmx", r"code\.kernels\.0="),
    ],
)
def test_other_code_is_refused(tmp_path, monkeypatch, changed, value, named) -> None:
    study = small_study(defense="prd:iterations=1")
    LocalExecutor().run(study, tmp_path)
    monkeypatch.setattr(changed, value)
    with pytest.raises(InvalidInputError, match=f"records made with {named}"):
        LocalExecutor().run(small_study(defense="prd:iterations=1"), tmp_path)


def test_uncommitted_edits_of_vqshield_are_other_code(tmp_path, monkeypatch) -> None:
    copied, native = (
        tmp_path / "elsewhere" / "vqshield",
        "quantization/kernels/_native_mine" + EXTENSION_SUFFIXES[-1],
    )
    shutil.copytree(Path(vqshield.__file__).parent, copied)
    here = sources_digest()
    found = {here}
    monkeypatch.setattr("vqshield.__file__", str(copied / "__init__.py"))
    (copied / "runs/archived.py").write_text("COMMIT = 'of an archive'")
    (copied / "attacks/pgd.pyc").write_bytes(b"")
    assert sources_digest.__wrapped__() == here, "the folder, git's commit and Python's caches do not count"
    for name in (
        "attacks/pgd.py",
        "quantization/kernels/cuda/noise.cuh",
        "quantization/kernels/cuda/strips.cu",
        native,
    ):
        with (copied / name).open("a") as file:
            file.write("\n")
        found.add(sources_digest.__wrapped__())
    assert len(found) == 5, "every edit makes other code"


def test_another_commit_with_the_same_sources_continues(tmp_path, monkeypatch) -> None:
    LocalExecutor().run(small_study(), tmp_path)
    monkeypatch.setattr("vqshield.runs.code.commit", lambda: "0" * 40)
    LocalExecutor().run(small_study(), tmp_path)


@pytest.mark.skipif(find_spec("triton") is None, reason="the package triton is not installed")
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler here to emulate a GPU with")
def test_runs_with_and_without_the_cuda_kernels_do_not_mix(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    emulate(monkeypatch.setattr)

    def begin() -> None:
        study = small_study(defense="prd:iterations=1,backend=gpu")
        with study.folder(tmp_path).writing(study.manifest):
            pass

    begin()
    begin()
    monkeypatch.setenv("VQSHIELD_CUDA", "off")
    with pytest.raises(
        InvalidInputError,
        match=r"code\.kernels\.0='gpu cuda\+triton', this .*='gpu triton'.*VQSHIELD_CUDA=off",
    ):
        begin()

"""What a release is built from and tried with; `make wheels` and `make check-wheels` do the whole."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import setuptools

import check_wheels
import make_wheels

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch):
    """What setup.py hands to setuptools, with some environment."""

    def ran(**environment: str) -> dict:
        given: dict = {}
        monkeypatch.setattr(setuptools, "setup", lambda **settings: given.update(settings))
        monkeypatch.chdir(ROOT)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), {"__name__": "__main__"})
        return given

    return ran


@pytest.mark.parametrize(
    ("environment", "builds"),
    [
        ({"VQSHIELD_MACHINE": "x86_64"}, ["generic", "avx2", "avx512"]),
        ({"VQSHIELD_MACHINE": "aarch64"}, ["generic"]),
        ({"VQSHIELD_KERNEL": "none"}, []),
    ],
)
def test_each_processor_has_its_builds(set_up, environment: dict[str, str], builds: list[str]) -> None:
    found = set_up(**environment)["ext_modules"]
    assert [each.name.removeprefix("vqshield.quantization.kernels._native_") for each in found] == builds
    assert all(each.optional for each in found)  # without a compiler, the exact reference is installed
    assert all((ROOT / source).is_file() for each in found for source in each.sources)


def test_the_kernel_and_the_wheel_serve_every_version_of_python(set_up) -> None:
    commands = set_up(VQSHIELD_MACHINE="x86_64")["cmdclass"]
    distribution = setuptools.Distribution()
    named = commands["build_ext"](distribution).get_ext_filename("vqshield.quantization.kernels._native_avx2")
    assert named == "vqshield/quantization/kernels/_native_avx2.so"
    wheel = commands["bdist_wheel"](distribution)
    wheel.plat_name, wheel.plat_name_supplied, wheel.root_is_pure = "manylinux_2_28_aarch64", True, False
    assert wheel.get_tag() == ("py3", "none", "manylinux_2_28_aarch64")


@pytest.mark.parametrize(("tag", "fits"), [("2_17", True), ("2_28", True), ("2_34", False)])
def test_auditwheel_is_asked_about_the_name(tag: str, fits: bool) -> None:
    assert make_wheels.agrees(f'the following platform tag:\n"manylinux_{tag}_x86_64".') == fits
    assert not make_wheels.agrees("is not compatible")


def test_setuptools_gets_compilers_of_one_word(tmp_path: Path) -> None:
    found = make_wheels.compilers(tmp_path, "aarch64")
    for variable, tool in (("CC", "cc"), ("CXX", "c++")):
        script = Path(found[variable])
        assert " " not in found[variable]
        assert script.stat().st_mode & 0o100
        assert f"ziglang {tool} -target aarch64-linux-gnu.2.28" in script.read_text()


def test_a_wheels_requirements_are_read(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr(
            "a-1.dist-info/METADATA",
            "Metadata-Version: 2.4\nName: a\nVersion: 1\nRequires-Dist: torch>=2.6\nRequires-Dist: numpy\n"
            "Requires-Dist: typer>=0.12; extra == 'cli'\nProvides-Extra: cli\n",
        )
    assert check_wheels.required(wheel) == ({"torch", "numpy"}, {"cli"})
    with pytest.raises(SystemExit, match="0 files match"):
        check_wheels.only(tmp_path, "*aarch64.whl")


def test_the_core_needs_three_packages() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (needed,) = re.findall(r"^dependencies = \[(.*)\]$", text, re.M)
    assert {re.match(r"\w+", each.strip(' "'))[0] for each in needed.split(",")} == check_wheels.CORE


def test_what_tries_the_wheels_needs_nothing_installed() -> None:
    """It is run by any Python, before anything of this project is there."""
    command = [sys.executable, "-I", "-S", str(ROOT / "tools" / "check_wheels.py"), "--help"]
    assert "--dist" in subprocess.run(command, check=True, capture_output=True, text=True).stdout

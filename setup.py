"""The CPU kernel's build; everything else about the package stands in pyproject.toml.

One source is built for several processors, and vqshield.quantization.kernels.native loads the best at run
time. It does so by ctypes: the libraries know nothing of Python, so one wheel serves every version of it.
Every build is optional: where one fails (no compiler, or one without vector types), installation goes on.

VQSHIELD_MACHINE names another processor to build for ("aarch64"), where CC and CXX are cross compilers;
VQSHIELD_KERNEL=none leaves the kernel out, for a wheel that installs anywhere.
"""

import os
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

COMMON = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
]
MACHINE = os.environ.get("VQSHIELD_MACHINE") or platform.machine()
BUILDS: dict[str, list[str]] = {"generic": []}
if MACHINE in ("x86_64", "AMD64"):
    BUILDS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512dq", "-mfma"]}
if os.environ.get("VQSHIELD_KERNEL") == "none":
    BUILDS = {}


class Library(build_ext):
    """Libraries without the version of Python in their names."""

    def get_ext_filename(self, name: str) -> str:
        return str(Path(*name.split("."))) + EXTENSION_SUFFIXES[-1]


class AnyPython(bdist_wheel):
    """Wheels that depend on the platform and not on the version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            f"vqshield.quantization.kernels._native_{isa}",
            [f"native/{isa}.cpp"],
            depends=sorted(map(str, Path("native").glob("*.hpp"))),
            language="c++",
            extra_compile_args=[*COMMON, *flags],
            extra_link_args=["-pthread"],
            optional=True,
        )
        for isa, flags in BUILDS.items()
    ],
    cmdclass={"build_ext": Library, "bdist_wheel": AnyPython},
)

"""The CPU kernel's build; everything else about the package stands in pyproject.toml.

One source is built for several processors, and vqshield.clustering.native loads the best at run time. Every
build is optional: where one fails (no compiler, or one without vector types), installation goes on.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup

COMMON = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-pthread",
]
BUILDS: dict[str, list[str]] = {"generic": []}
if platform.machine() in ("x86_64", "AMD64"):
    BUILDS |= {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512dq", "-mfma"]}

setup(
    ext_modules=[
        Extension(
            f"vqshield.clustering._native_{isa}",
            [f"native/{isa}.cpp"],
            depends=sorted(map(str, Path("native").glob("*.hpp"))),
            language="c++",
            extra_compile_args=[*COMMON, *flags],
            extra_link_args=["-pthread"],
            optional=True,
        )
        for isa, flags in BUILDS.items()
    ]
)

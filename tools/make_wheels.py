"""Build the wheels and the source archive that a release consists of, into dist/.

    make wheels

Zig's C++ compiler (from PyPI) builds the kernel against glibc 2.28 for either processor, so that neither a
container nor another machine is needed:

    py3-none-manylinux_2_28_x86_64    generic, AVX2 and AVX-512, chosen at run time
    py3-none-manylinux_2_28_aarch64   generic, which is NEON there
    py3-none-any                      without the kernel: the exact reference, on any machine

auditwheel has to agree with the first name.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
GLIBC = "2.28"
MACHINES = ("x86_64", "aarch64")


def main() -> None:
    """Build everything, and check the names."""
    DIST.mkdir(exist_ok=True)
    _build("--sdist", env={})
    _build("--wheel", env={"VQSHIELD_KERNEL": "none"}, platform="any")
    for machine in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            _build(
                "--wheel",
                env={"VQSHIELD_MACHINE": machine, **compilers(Path(folder), machine)},
                platform=f"manylinux_{GLIBC.replace('.', '_')}_{machine}",
            )
    (wheel,) = DIST.glob("*manylinux*x86_64.whl")
    said = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], check=True, capture_output=True, text=True
    )
    print(said.stdout)
    if not agrees(said.stdout):
        raise SystemExit(f"auditwheel does not agree with the name of {wheel.name}")


def agrees(said: str) -> bool:
    """Whether a wheel runs with the C library that its name promises, going by what auditwheel says."""
    found = re.search(r'platform tag:\s+"manylinux_(\d+)_(\d+)_x86_64"', said)
    return found is not None and tuple(map(int, found.groups())) <= tuple(map(int, GLIBC.split(".")))


def _build(kind: str, *, env: dict[str, str], platform: str | None = None) -> None:
    # A copy for each build: in build/ lie objects of another processor.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "vqshield"
        subprocess.run(["git", "clone", "--quiet", ROOT, copy], check=True)
        options = [] if platform is None else [f"-C--build-option=--plat-name={platform}"]
        subprocess.run(
            [sys.executable, "-m", "build", kind, "--outdir", DIST, *options, copy],
            check=True,
            env={**os.environ, **env},
        )


def compilers(folder: Path, machine: str) -> dict[str, str]:
    """Scripts that are Zig's compilers for a processor: setuptools wants one word."""
    found = {}
    for variable, tool in (("CC", "cc"), ("CXX", "c++")):
        script = folder / tool
        script.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {tool} -target {machine}-linux-gnu.{GLIBC} "$@"\n'
        )
        script.chmod(0o755)
        found[variable] = str(script)
    return found


if __name__ == "__main__":
    main()

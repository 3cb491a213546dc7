"""Install what `make wheels` built into an empty environment, without a compiler in reach, and try it.

    make check-wheels

    core     the wheel with nothing but torch, numpy, safetensors and what those need: a shield by the kernel
    demo     with the extra cli: `vqshield doctor`, and `vqshield demo` by the kernel
    pure     the wheel for any machine: the same shield by the exact reference
    sdist    the source archive, where nothing can be compiled: the same

Writes benchmarks/results/wheels.json. Needs the standard library alone.
"""

import argparse
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = {"torch", "numpy", "safetensors"}
SAID = ("version", "python", "processor", "kernel", "packages", "backends")
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")
TRIAL = """
import json, torch, vqshield as vq
from vqshield import clustering
images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
found = vq.SWRD(size=2, codes=6, seed=0)(images)
print(json.dumps({"kernel": clustering.kernel_name("auto"), "values": found.flatten().tolist()}))
"""


def required(wheel: Path) -> tuple[set[str], set[str]]:
    """The packages that a wheel needs, and its extras."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [each for each in packed.namelist() if each.endswith(".dist-info/METADATA")]
        said = email.message_from_bytes(packed.read(name))
    always = [each for each in said.get_all("Requires-Dist", []) if "extra ==" not in each]
    named = {re.match(r"[A-Za-z0-9._-]+", each) for each in always}
    return {each[0] for each in named if each}, set(said.get_all("Provides-Extra", []))


def only(folder: Path, pattern: str) -> Path:
    """The one file of that name."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} files match {folder / pattern}, and one should: run make wheels")
    return found[0]


class Bare:
    """An empty environment whose programs find nothing but itself."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        self.environment = {**os.environ, "PATH": str(self.bin), "HOME": str(self.work)}
        for name in ("PYTHONPATH", "CC", "CXX"):
            self.environment.pop(name, None)
        reached = [each for each in COMPILERS if shutil.which(each, path=self.environment["PATH"])]
        if reached:
            raise SystemExit(f"{reached[0]} can be reached from the empty environment")

    def run(self, *command: str | Path) -> str:
        """What a program of the environment prints."""
        first, *rest = map(str, command)
        done = subprocess.run(
            [str(self.bin / first), *rest], cwd=self.work, env=self.environment, stdout=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{first} {' '.join(rest)} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def install(self, *what: str | Path) -> None:
        """Install packages."""
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def main() -> None:
    """Try every file, and write what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    parser.add_argument("--record", type=Path, default=ROOT / "benchmarks" / "results" / "wheels.json")
    options = parser.parse_args()
    dist = options.dist.resolve()
    wheel, pure = only(dist, "*manylinux*x86_64.whl"), only(dist, "*-any.whl")
    arm, source = only(dist, "*manylinux*aarch64.whl"), only(dist, "*.tar.gz")
    for each in (wheel, pure, arm):
        needs, _ = required(each)
        if needs != CORE:
            raise SystemExit(f"{each.name} needs {sorted(needs)} and should need {sorted(CORE)}")
    constraints = ("--constraint", ROOT / "constraints.txt")
    with tempfile.TemporaryDirectory() as name:
        bare, core = Bare(Path(name) / "bare"), Path(name) / "core"
        bare.run("python", "-m", "pip", "download", "--quiet", "--dest", core, *constraints, wheel)
        downloaded = sorted("-".join(each.name.split("-")[:2]) for each in core.iterdir())
        print("pip download:", ", ".join(downloaded), flush=True)
        bare.install("--no-index", "--find-links", core, wheel)
        tried = {wheel.name: json.loads(bare.run("python", "-I", "-c", TRIAL))}
        bare.install(*constraints, f"{wheel}[cli]")
        said = json.loads(bare.run("vqshield", "doctor", "--json"))
        began = time.monotonic()
        demo = json.loads(bare.run("vqshield", "demo", "--json"))
        seconds = round(time.monotonic() - began, 1)
        print("demo:", said["kernel"], f"{seconds} s", flush=True)
        for each in (pure, source):
            bare.install("--force-reinstall", "--no-deps", each)
            tried[each.name] = json.loads(bare.run("python", "-I", "-c", TRIAL))
    expected = {wheel.name: "native", pure.name: "torch", source.name: "torch"}
    files = []
    for file, found in tried.items():
        print(file, "->", found["kernel"], flush=True)
        if not found["kernel"].startswith(expected[file]):
            raise SystemExit(f"{file} quantizes with {found['kernel']}, and should with {expected[file]}")
        apart = [abs(a - b) for a, b in zip(found["values"], tried[wheel.name]["values"], strict=True)]
        near = sum(each < 1e-5 for each in apart) / len(apart)
        files.append({"file": file, "kernel": found["kernel"], "as_the_kernel": near})
    record = {
        "what": "files of a release, installed into an empty environment without a compiler",
        "built": sorted(each.name for each in (wheel, pure, arm, source)),
        "core": {"requires": sorted(CORE), "downloaded": downloaded},
        "compilers_in_reach": [],
        "doctor": {key: said[key] for key in SAID},
        "demo": {"seconds": seconds, "rows": demo["rows"]},
        "files": files,
    }  # fmt: skip
    options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("the wheels are for Linux: try them there")
    main()

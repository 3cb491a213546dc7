"""Runs the tests of the CPU kernel with the address and the undefined-behaviour sanitizer built into it.

    python native/sanitize.py

Needs GCC, whose sanitizers can be loaded into a Python that was built without.
A finding ends it with an error.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from vqshield.clustering import native

FOLDER = Path(__file__).resolve().parent
TESTS = FOLDER.parent / "tests"
FLAGS = ["-std=c++17", "-O1", "-g", "-pthread", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
PROCESSOR = {"generic": [], "avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512dq", "-mfma"]}


def main() -> int:
    """Build, then start this file again with the sanitizers loaded first."""
    compiler = os.environ.get("CXX", "g++")
    libraries = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in ("libasan.so", "libubsan.so")
    ]
    preload = " ".join(found.stdout.strip() for found in libraries)
    with tempfile.TemporaryDirectory() as folder:
        builds = []
        for isa in native.available():
            files = [FOLDER / f"{isa}.cpp", "-o", Path(folder) / f"_native_{isa}.so"]
            builds.append(subprocess.Popen([compiler, *FLAGS, *CHECKS, *PROCESSOR[isa], *files]))
        failed = [build.wait() for build in builds]
        if any(failed):
            return 1
        # Python itself frees not everything at its end, so leaks are not looked for.
        environment = os.environ | {"LD_PRELOAD": preload, "ASAN_OPTIONS": "detect_leaks=0"}
        return subprocess.run([sys.executable, __file__, folder], env=environment, check=False).returncode


def run_tests(folder: Path) -> int:
    """The contract tests on the native backend, and the kernel's own tests."""
    native._FOLDER = folder
    native._load.cache_clear()
    native._best.cache_clear()
    assert native._find("generic").parent == folder
    print("sanitized builds:", ", ".join(native.available()), flush=True)
    options = ["-q", "--capture=sys", "-p", "no:cacheprovider", f"--rootdir={FOLDER.parent}"]
    wanted = ["-k", "native and not interrupt", "-m", "not slow"]
    files = [str(TESTS / "contracts/test_defense_contract.py"), str(TESTS / "clustering/test_native.py")]
    return pytest.main([*options, *wanted, *files])


if __name__ == "__main__":
    sys.exit(run_tests(Path(sys.argv[1])) if len(sys.argv) > 1 else main())

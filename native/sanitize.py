"""Runs the CPU kernel with the address and the undefined-behaviour sanitizer built into it.

    python native/sanitize.py [--calls 20000] [--seed 1] [--record FILE] [--brief]

First its tests, then random calls (native/fuzz.py). --brief is for the test suite: a build that is made
quickly and runs slowly, and of the tests only those of images larger than a strip and of several threads.
Needs GCC, whose sanitizers can be loaded into a Python that was built without. A finding ends it with an
error; the record says how many calls were made, of what kinds, with which compiler and on what machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from vqshield.core.environment import environment
from vqshield.core.files import write_json
from vqshield.quantization.kernels import native

FOLDER = Path(__file__).resolve().parent
TESTS = FOLDER.parent / "tests"
COMPILER = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-pthread", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
THOROUGH, BRIEF = ["-O1", "-g"], ["-O0", "-g1"]
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
PROCESSOR = {"generic": [], "avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512dq", "-mfma"]}
FINDINGS = ("ERROR: AddressSanitizer", "runtime error:")


def main() -> int:
    """Build, then start this file again with the sanitizers loaded first: for the tests, and to fuzz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="random calls")
    parser.add_argument("--seed", type=int, default=1, help="of the random calls")
    parser.add_argument("--record", type=Path, help="a JSON file to write")
    parser.add_argument("--brief", action="store_true", help="what the test suite has time for")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        level = BRIEF if options.brief else THOROUGH
        if not build(folder, level):
            return 1
        if sanitized(folder, "brief" if options.brief else "tests").returncode != 0:
            return 1
        began = time.perf_counter()
        done = sanitized(folder, "fuzz", str(options.calls), str(options.seed))
        said = done.stderr.decode(errors="replace")
        print(said, end="", file=sys.stderr)
        tally = folder / "tally.json"
        counts = json.loads(tally.read_text()) if tally.is_file() else {"calls": 0}
        record = {
            "what": "random calls of the CPU kernel under the address and undefined-behaviour sanitizers",
            "seed": options.seed,
            **counts,
            "findings": sum(said.count(finding) for finding in FINDINGS),
            "complete": done.returncode == 0 and counts["calls"] == options.calls,
            "seconds": round(time.perf_counter() - began, 1),
            "builds": native.available(),
            "compiler": compiler_version(),
            "flags": [*FLAGS, *level, *CHECKS],
            "machine": environment(),
        }
        if options.record is not None:
            write_json(options.record, record)
        print(f"{counts['calls']} calls, {record['findings']} findings", flush=True)
        return 0 if record["complete"] and record["findings"] == 0 else 1


def build(folder: Path, level: list[str]) -> bool:
    """The kernel with the sanitizers in it, for every processor that this one can stand for."""
    builds = []
    for isa in native.available():
        files = [FOLDER / f"{isa}.cpp", "-o", folder / f"_native_{isa}.so"]
        builds.append(subprocess.Popen([COMPILER, *FLAGS, *level, *CHECKS, *PROCESSOR[isa], *files]))
    failed = [each.wait() for each in builds]
    return not any(failed)


def sanitized(folder: Path, *task: str) -> "subprocess.CompletedProcess[bytes]":
    """This file again, with the sanitizers loaded into Python."""
    libraries = [
        subprocess.run([COMPILER, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in ("libasan.so", "libubsan.so")
    ]
    # Python itself frees not everything at its end, so leaks are not looked for.
    settings = {
        "LD_PRELOAD": " ".join(found.stdout.strip() for found in libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    errors = subprocess.PIPE if task[0] == "fuzz" else None
    command = [sys.executable, __file__, "--inside", str(folder), *task]
    return subprocess.run(command, env=os.environ | settings, stderr=errors, check=False)


def compiler_version() -> str:
    """The first line that the compiler says about itself."""
    said = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True).stdout
    return said.splitlines()[0]


def inside(folder: Path, task: str, *numbers: str) -> int:
    """What is done under the sanitizers."""
    native._FOLDER = folder
    native._load.cache_clear()
    native._best.cache_clear()
    assert Path(native._load("generic")._name).parent == folder
    print("sanitized builds:", ", ".join(native.available()), flush=True)
    if task == "fuzz":
        sys.path.insert(0, str(FOLDER))
        import fuzz

        calls, seed = map(int, numbers)
        fuzz.main(calls, seed, folder / "tally.json")
        return 0
    # The contract tests on the native backend, and the kernel's own tests.
    options = ["-q", "--capture=sys", "-p", "no:cacheprovider", f"--rootdir={FOLDER.parent}"]
    contract, own, gradient = (
        str(TESTS / name)
        for name in (
            "contracts/test_defense_contract.py",
            "quantization/kernels/test_native.py",
            "surrogates/test_soft_kernel.py",
        )
    )
    if task == "brief":
        wanted = "larger_than_a_strip or (change_no_bit and not halves)"  # which random calls give too
        return int(pytest.main([*options, "-k", wanted, own]))
    wanted = ["-k", "native and not interrupt and not process", "-m", "not slow"]
    return int(pytest.main([*options, *wanted, contract, own])) or int(pytest.main([*options, gradient]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(Path(sys.argv[2]), *sys.argv[3:]))
    sys.exit(main())

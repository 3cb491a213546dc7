"""Which code measured: the commit, the package's sources, and the kernels that quantized."""

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

import vqshield
from vqshield.core.files import file_sha256
from vqshield.defenses import Defense, Quantizer
from vqshield.quantization import kernels
from vqshield.runs import archived

_CODE = (".py", ".cu", ".cuh", ".hpp", EXTENSION_SUFFIXES[-1])


@dataclass(frozen=True, kw_only=True)
class CodeId:
    """commit: of vqshield, where it is known. sources: a digest of the package's code, uncommitted edits
    included. kernels: the implementations behind the defenses' backends.
    """

    commit: str | None
    sources: str | None = field(default=None, metadata={"omit": True})
    kernels: tuple[str, ...]

    @classmethod
    def of(
        cls, defenses: Sequence[Defense | None], device: torch.device, *, package: str = vqshield.__name__
    ) -> "CodeId":
        """The code that these defenses run on a device; package: the one whose study it is."""
        backends = {defense.backend for defense in defenses if isinstance(defense, Quantizer)}
        names = sorted({kernels.kernel_name(name, device) for name in backends})
        return cls(commit=commit(), sources=sources_digest(package), kernels=tuple(names))


@cache
def sources_digest(package: str = vqshield.__name__) -> str:
    """SHA-256 (16 digits) of vqshield's Python, CUDA and compiled files, by name; then of another package's.

    It does not depend on the folder, and is computed once per process: later edits do not change the code
    that runs. archived.py is left out: git writes the commit into it.
    """
    home, digest = Path(str(import_module(package).__file__)).parent, hashlib.sha256()
    for name in sorted(path.relative_to(home).as_posix() for path in home.rglob("*")):
        if name.endswith(_CODE) and name != "runs/archived.py":
            digest.update(f"{name} {file_sha256(home / name)}\n".encode())
    sources = digest.hexdigest()[:16]
    return sources if package == vqshield.__name__ else f"{sources_digest()} {sources}"


def commit() -> str | None:
    """The commit of the running code, in a checkout or an archive of one."""
    package = Path(vqshield.__file__)
    try:
        if not _git(package.parent, "ls-files", package.name):  # installed inside another checkout
            return archived.COMMIT
        return _git(package.parent, "rev-parse", "HEAD") or archived.COMMIT
    except (OSError, subprocess.SubprocessError):
        return archived.COMMIT


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()

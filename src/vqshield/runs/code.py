"""Which code measured: the commit, and the kernel that quantized."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import vqshield
from vqshield import archived, clustering
from vqshield.defenses import Defense, Quantizer


@dataclass(frozen=True, kw_only=True)
class CodeId:
    """commit: of vqshield, where it is known. kernels: the implementations behind the defenses' backends."""

    commit: str | None
    kernels: tuple[str, ...]

    @classmethod
    def of(cls, defenses: Sequence[Defense | None], device: torch.device) -> "CodeId":
        """The code that these defenses run on a device."""
        backends = {each.backend for each in defenses if isinstance(each, Quantizer)}
        kernels = sorted({clustering.kernel_name(name, device) for name in backends})
        return cls(commit=commit(), kernels=tuple(kernels))


def commit() -> str | None:
    """The commit of the code that runs, where it runs from a checkout or an archive of one."""
    here = Path(vqshield.__file__)
    try:
        if not _git(here.parent, "ls-files", here.name):  # installed below somebody else's checkout
            return archived.COMMIT
        return _git(here.parent, "rev-parse", "HEAD") or archived.COMMIT
    except (OSError, subprocess.SubprocessError):
        return archived.COMMIT


def _git(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
    )
    return found.stdout.strip()

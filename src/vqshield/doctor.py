"""What is installed here, what works, and why the rest does not: for `vqshield doctor` and bug reports."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

import torch

import vqshield
from vqshield.core.devices import pick_device
from vqshield.core.environment import environment
from vqshield.data import cache_folder
from vqshield.quantization import kernels
from vqshield.runs.code import commit

_CORE = ("torch", "numpy", "safetensors")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"extra == ['\"]([a-z]+)['\"]")


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """Versions, backends and folders.

    Attributes:
        commit: of the code that runs, where it is known.
        packages: versions of what the core needs.
        kernel: the implementation that "auto" takes on this device.
        backends: what each serves here, or why it does not.
        cache: the folder for data sets and weights; cached: what lies there.
        extras: the packages that an optional part still needs, by its name; None: vqshield runs from its
            source, uninstalled, and its requirements are not known.
    """

    version: str
    commit: str | None
    python: str
    system: str
    processor: str
    threads: int
    packages: Mapping[str, str | None]
    device: str
    kernel: str
    backends: Mapping[str, str]
    cache: str
    cached: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]] | None


def checkup() -> Checkup:
    """Look at this installation.

    Example:
        >>> from vqshield.doctor import checkup
        >>> checkup().version == vq.__version__
        True
    """
    device = pick_device("auto")
    used = environment(device)
    cache = cache_folder()
    return Checkup(
        version=vqshield.__version__,
        commit=commit(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver()) or 'libc unknown'}",
        processor=str(used["processor"]),
        threads=torch.get_num_threads(),
        packages={name: installed(name) for name in _CORE},
        device=str(used["device"]),
        kernel=kernels.kernel_name("auto", device),
        backends=kernels.availability(),
        cache=str(cache),
        cached=tuple(sorted(each.name for each in cache.iterdir())) if cache.is_dir() else (),
        extras=missing_packages(_requirements()),
    )


def installed(package: str) -> str | None:
    """The version of a package; None: it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def missing_packages(requirements: list[str] | None) -> dict[str, tuple[str, ...]] | None:
    """By extra, what is not installed of it; requirements as a package's metadata has them."""
    if requirements is None:
        return None
    missing: dict[str, list[str]] = {}
    for requirement in requirements:
        extra, package = _EXTRA.search(requirement), _PACKAGE.match(requirement)
        if extra is None or package is None:
            continue
        absent = missing.setdefault(extra[1], [])
        if installed(package[0]) is None:
            absent.append(package[0])
    return {extra: tuple(packages) for extra, packages in missing.items()}


def _requirements() -> list[str] | None:
    try:
        return metadata.requires("vqshield")
    except metadata.PackageNotFoundError:
        return None

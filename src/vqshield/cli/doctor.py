"""`vqshield doctor`: what is installed here, what works, and why the rest does not, for bug reports."""

import platform
import re
from importlib import metadata
from typing import Any

import torch

import vqshield
from vqshield.cli.output import AsJson, show_json
from vqshield.core.environment import environment, pick_device
from vqshield.data import cache_folder
from vqshield.quantization import kernels
from vqshield.runs.code import commit

_CORE = ("torch", "numpy", "safetensors")
_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"extra == ['\"]([a-z]+)['\"]")


def doctor(as_json: AsJson = False) -> None:
    """Show versions, backends, device and cache, for bug reports."""
    facts = installation()
    if as_json:
        show_json(facts)
        return
    packages = {name: version or "missing" for name, version in facts["packages"].items()}
    lines = {
        "vqshield": f"{facts['version']}, commit {facts['commit'] or 'unknown'}",
        "python": f"{facts['python']}, {facts['system']}",
        "processor": f"{facts['processor']}, {facts['threads']} threads",
        "packages": ", ".join(map(" ".join, packages.items())),
        "device": f"{facts['device']}, quantizing with {facts['kernel']}",
        **{f"backend {name}": state for name, state in facts["backends"].items()},
        "cache": f"{facts['cache']} ({', '.join(facts['cached']) or 'empty'})",
    }
    if facts["extras"] is None:
        lines["extras"] = "unknown: vqshield is not installed, it runs from its source"
    else:
        for extra, missing in facts["extras"].items():
            lines[f"extra {extra}"] = f"lacks {', '.join(missing)}" if missing else "complete"
    width = max(map(len, lines))
    print("\n".join(f"{name:<{width}}  {text}" for name, text in lines.items()))


def installation() -> dict[str, Any]:
    """Versions, backends and folders.

    kernel is the implementation that "auto" takes on this device, backends what each serves here or why it
    does not, cached what lies in the cache folder, and extras the packages that each optional part still
    needs. extras is None where vqshield runs from its source, uninstalled: its requirements are not known.
    """
    device, cache = pick_device("auto"), cache_folder()
    machine = environment(device)
    return {
        "version": vqshield.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, "
        f"{' '.join(platform.libc_ver()) or 'libc unknown'}",
        "processor": str(machine["processor"]),
        "threads": torch.get_num_threads(),
        "packages": {name: _installed(name) for name in _CORE},
        "device": str(machine["device"]),
        "kernel": kernels.kernel_name("auto", device),
        "backends": kernels.availability(),
        "cache": str(cache),
        "cached": sorted(file.name for file in cache.iterdir()) if cache.is_dir() else [],
        "extras": missing_packages(_requirements()),
    }


def missing_packages(requirements: list[str] | None) -> dict[str, list[str]] | None:
    """By extra, what is not installed of it; requirements as a package's metadata has them."""
    if requirements is None:
        return None
    missing: dict[str, list[str]] = {}
    for requirement in requirements:
        extra, package = _EXTRA.search(requirement), _PACKAGE.match(requirement)
        if extra and package:
            absent = missing.setdefault(extra[1], [])
            absent += [package[0]] if _installed(package[0]) is None else []
    return missing


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str] | None:
    try:
        return metadata.requires("vqshield")
    except metadata.PackageNotFoundError:
        return None

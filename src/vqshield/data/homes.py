"""Where the data sets come from, and the SHA-256 of what must arrive: assets/homes.toml."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from vqshield.core.files import parse_toml
from vqshield.core.serialization import from_plain


@dataclass(frozen=True, kw_only=True)
class Home:
    """One file to fetch; the addresses are tried in turn.

    path: where it goes below the data folder. members: what an archive is unpacked to there, with SHA-256
    of each; the archive itself is then removed.
    """

    path: Path
    urls: tuple[str, ...]
    sha256: str
    members: Mapping[str, str] = field(default_factory=dict)


def asset(name: str) -> bytes:
    """A file that comes with this package."""
    return (resources.files("vqshield.data") / "assets" / name).read_bytes()


HOMES = dict(
    from_plain(
        Mapping[str, tuple[Home, ...]],  # type: ignore[type-abstract]
        parse_toml(asset("homes.toml").decode(), "homes.toml"),
        "homes.toml",
    )
)
"""The files of each data set that can be fetched."""

"""Downloads of data sets from their official homes; a file appears only after its SHA-256 is right.

An interrupted download is kept as NAME.part, and the next try continues it.
"""

import hashlib
import http.client
import os
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vqshield.core.checks import one_of
from vqshield.core.entry_points import require
from vqshield.core.errors import FileFormatError
from vqshield.core.files import file_sha256, parse_toml, write_atomically
from vqshield.core.serialization import from_plain
from vqshield.data.base import asset

Progress = Callable[[str, int, int | None], None]  # the file's name, bytes so far, bytes in all where known

CACHE_VARIABLE = "VQSHIELD_CACHE"
BLOCK = 1 << 18
TIMEOUT = 60  # seconds without a single byte
NO_MORE = 416  # the server's answer where the part already is the whole file


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


HOMES = dict(
    from_plain(
        Mapping[str, tuple[Home, ...]],  # type: ignore[type-abstract]
        parse_toml(asset("homes.toml").decode(), "homes.toml"),
        "homes.toml",
    )
)
"""The files of each data set that can be fetched."""


def cache_folder() -> Path:
    """The folder named by VQSHIELD_CACHE, else ``vqshield`` in the platform's own cache folder."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "vqshield", "Cache")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "vqshield"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "vqshield")


def list_downloadable() -> tuple[str, ...]:
    """The names that ``download`` knows."""
    return tuple(HOMES)


def download(name: str, folder: str | Path | None = None, *, progress: Progress = lambda *_: None) -> Path:
    """Fetch what is missing of a data set; return its folder.

    Args:
        name: the data set.
        folder: folder for its files (default: the cache folder, VQSHIELD_CACHE if set).
        progress: called with a file, the bytes that are done, and how many there are, if known.
    """
    one_of("name", name, list_downloadable())
    place = cache_folder() if folder is None else Path(folder)
    pooch = require("pooch", "cli")
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # the progress bar says as much
    try:
        for home in HOMES[name]:
            if not _is_complete(home, place):
                _fetch(pooch, home, place, progress)
    finally:
        logger.setLevel(level)
    return place


def _fetch(pooch: Any, home: Home, place: Path, progress: Progress) -> None:
    try:
        archive = _retrieve(pooch, home, place / home.path, progress)
        if home.members:
            _unpack(archive, place, home.members)
            archive.unlink()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:  # a full disk, no right to write, …
        raise FileFormatError(f"{home.path.name} could not be stored in {place}: {error}") from error


def _retrieve(pooch: Any, home: Home, target: Path, progress: Progress) -> Path:
    reasons = []
    for url in home.urls:
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{home.sha256}",
                fname=target.name,
                path=target.parent,
                downloader=_Resuming(target.with_name(f"{target.name}.part"), progress),
            )
            return target
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reasons.append(f"{url}: {error}")
        except FileFormatError as error:
            reasons.append(f"{url} {error}")
        except ValueError as error:  # pooch's error for a wrong sum; it has removed the file
            reasons.append(f"{url} sent another file than the published one, which was not kept ({error})")
    raise FileFormatError(f"{target.name} could not be fetched. " + "; ".join(reasons))


class _Resuming:
    """A downloader for pooch that can continue an earlier one: fills NAME.part, then hands it over."""

    def __init__(self, part: Path, progress: Progress) -> None:
        self.part, self.progress = part, progress

    def __call__(self, url: str, output_file: str, pooch: Any, **_: Any) -> None:
        have = self.part.stat().st_size if self.part.is_file() else 0
        headers = {"User-Agent": "vqshield"} | ({"Range": f"bytes={have}-"} if have else {})
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                self._receive(answer, have if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0)
        except urllib.error.HTTPError as error:
            if not (have and error.code == NO_MORE):
                raise
        self.part.replace(output_file)  # now pooch checks the sum

    def _receive(self, answer: http.client.HTTPResponse, done: int) -> None:
        total = None if answer.length is None else done + answer.length
        with self.part.open("r+b" if done else "wb") as file:
            file.seek(done)
            self.progress(self.part.stem, done, total)
            while block := answer.read(BLOCK):
                done += file.write(block)
                self.progress(self.part.stem, done, total)
        if total is not None and done < total:
            raise FileFormatError(
                f"ended after {done} of {total} bytes, which are kept in {self.part}; "
                "try again to continue from there"
            )


def _unpack(archive: Path, place: Path, members: Mapping[str, str]) -> None:
    """Write the files that we know, by our own names: whatever else an archive holds is ignored."""
    missing = dict(members)
    with tarfile.open(archive, "r:gz") as opened:
        for entry in opened:
            if entry.name not in missing or not entry.isreg():
                continue
            content = opened.extractfile(entry)
            assert content is not None  # it is a regular file
            data = content.read()
            if hashlib.sha256(data).hexdigest() != missing.pop(entry.name):
                raise FileFormatError(f"{entry.name} in {archive} is not the published file")
            write_atomically(place / entry.name, data)
    if missing:
        raise FileFormatError(f"{archive} does not hold {', '.join(missing)}")


def _is_complete(home: Home, place: Path) -> bool:
    wanted = home.members or {str(home.path): home.sha256}
    places = {place / name: known for name, known in wanted.items()}
    return all(path.is_file() and file_sha256(path) == known for path, known in places.items())

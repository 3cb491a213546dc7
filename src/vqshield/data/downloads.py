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

from vqshield.core.checks import one_of
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
    for home in HOMES[name]:
        if not _is_complete(home, place):
            _fetch(home, place, progress)
    return place


def _fetch(home: Home, place: Path, progress: Progress) -> None:
    try:
        archive = _retrieve(home, place / home.path, progress)
        if home.members:
            _unpack(archive, place, home.members)
            archive.unlink()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:  # a full disk, no right to write, …
        raise FileFormatError(f"{home.path.name} could not be stored in {place}: {error}") from error


def _retrieve(home: Home, target: Path, progress: Progress) -> Path:
    """The file, from the first address that sends the published one."""
    part, reasons = target.with_name(f"{target.name}.part"), []
    target.parent.mkdir(parents=True, exist_ok=True)
    for url in home.urls:
        try:
            _continue(url, part, progress)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reasons.append(f"{url}: {error}")
        except FileFormatError as error:
            reasons.append(f"{url} {error}")
        else:
            if (sha256 := file_sha256(part)) == home.sha256:
                return part.replace(target)
            part.unlink()
            reasons.append(
                f"{url} sent another file than the published one, which was not kept "
                f"(SHA-256 {sha256}, expected {home.sha256})"
            )
    raise FileFormatError(f"{target.name} could not be fetched. " + "; ".join(reasons))


def _continue(url: str, part: Path, progress: Progress) -> None:
    """Fill a part of a file, from where an earlier download ended if the server can."""
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "vqshield"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            _receive(answer, part, have if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0, progress)
    except urllib.error.HTTPError as error:
        if not (have and error.code == NO_MORE):
            raise


def _receive(answer: http.client.HTTPResponse, part: Path, done: int, progress: Progress) -> None:
    total = None if answer.length is None else done + answer.length
    with part.open("r+b" if done else "wb") as file:
        file.seek(done)
        progress(part.stem, done, total)
        while block := answer.read(BLOCK):
            done += file.write(block)
            progress(part.stem, done, total)
    if total is not None and done < total:
        raise FileFormatError(
            f"ended after {done} of {total} bytes, which are kept in {part}; try again to continue from there"
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

"""Downloads of data sets from their official homes; a file is there only after its SHA-256 is right.

An interrupted download is kept as NAME.part, and the next try continues it.
"""

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vqshield.core.checks import one_of
from vqshield.core.errors import FileFormatError
from vqshield.core.extras import require
from vqshield.core.files import write_atomically
from vqshield.data.cache import cache_folder
from vqshield.data.homes import HOMES, Home

Progress = Callable[[str, int, int | None], None]  # the file's name, bytes so far, bytes in all where known

BLOCK = 1 << 18
TIMEOUT = 60  # seconds without a single byte
NO_MORE = 416  # the server's answer where the part is already all there is


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
    for home in HOMES[name]:
        if _is_here(home, place):
            continue
        with _refusals(home, place), _quiet(pooch):
            archive = _fetch(pooch, home, place, progress)
            if home.members:
                _unpack(archive, place, home.members)
                archive.unlink()
    return place


def _fetch(pooch: Any, home: Home, place: Path, progress: Progress) -> Path:
    target, reasons = place / home.path, []
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
        except ValueError as error:  # pooch's word for a wrong sum; it has removed what came
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
            with urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=TIMEOUT
            ) as answer:
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


def _is_here(home: Home, place: Path) -> bool:
    wanted = home.members or {str(home.path): home.sha256}
    return all((place / name).is_file() and _sha256(place / name) == sum_ for name, sum_ in wanted.items())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _refusals(home: Home, place: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:  # a full disk, no right to write, …
        raise FileFormatError(f"{home.path.name} could not be stored in {place}: {error}") from error


@contextmanager
def _quiet(pooch: Any) -> Iterator[None]:
    logger = pooch.get_logger()
    before = logger.level
    logger.setLevel("WARNING")  # the progress bar says as much
    try:
        yield
    finally:
        logger.setLevel(before)

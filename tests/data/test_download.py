"""Downloads against a local server that can be cut off, lie, or know no ranges."""

import hashlib
import http.server
import io
import tarfile
import threading
from pathlib import Path

import pytest

from vqshield.core.errors import FileFormatError, InvalidInputError
from vqshield.data import download, list_downloadable, load
from vqshield.data.downloads import HOMES, Home

RECORD = bytes([3]) + bytes(range(256)) * 12  # one CIFAR-10 image
BATCHES = {f"cifar-10-batches-bin/data_batch_{i}.bin": RECORD * i for i in range(1, 6)} | {
    "cifar-10-batches-bin/test_batch.bin": RECORD * 2
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def packed(files, *extra):
    """A tar.gz with these files, and further entries as they are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as archive:
        for entry, content in [*extra, *((tarfile.TarInfo(name), data) for name, data in files.items())]:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class Server:
    """Serves the bytes in ``files``; may end an answer early, or ignore ranges."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: int | None = None  # bytes of the body after which the connection is closed, once
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/"

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.asked.append((request.path[1:], wanted))
        content = self.files.get(request.path[1:])
        if content is None:
            request.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if start >= len(content):
            request.send_error(416)
            return
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        request.wfile.write(content[start:][: self.cut])
        self.cut = None


@pytest.fixture
def server():
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture
def archive(server, monkeypatch):
    """A small CIFAR-10 at the server, in the table of homes; the archive's bytes."""
    content = packed(BATCHES, (tarfile.TarInfo("cifar-10-batches-bin/readme.html"), b"hello"))
    server.files["cifar.tar.gz"] = content
    members = {name: sha256(data) for name, data in BATCHES.items()}
    home = Home(
        path=Path("cifar.tar.gz"),
        urls=(server.url + "cifar.tar.gz",),
        sha256=sha256(content),
        members=members,
    )
    monkeypatch.setitem(HOMES, "cifar10", (home,))
    return content


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_an_archive_is_unpacked_read_and_fetched_only_once(server, archive, tmp_path):
    seen = []
    assert download("cifar10", tmp_path, progress=lambda *step: seen.append(step)) == tmp_path
    assert files_in(tmp_path) == sorted(BATCHES)
    assert len(load("cifar10", "train", tmp_path)) == 15
    assert seen[-1] == ("cifar.tar.gz", len(archive), len(archive))
    download("cifar10", tmp_path)
    assert len(server.asked) == 1


def test_a_spoilt_file_is_fetched_again(server, archive, tmp_path):
    download("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(RECORD)
    download("cifar10", tmp_path)
    assert len(load("cifar10", "test", tmp_path)) == 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_truncated_download_is_told_kept_and_gone_on_with(server, archive, tmp_path, ranges):
    server.cut, server.ranges = 1000, ranges
    with pytest.raises(FileFormatError, match=rf"ended after 1000 of {len(archive)} bytes.*try again"):
        download("cifar10", tmp_path)
    assert files_in(tmp_path) == ["cifar.tar.gz.part"]
    assert (tmp_path / "cifar.tar.gz.part").read_bytes() == archive[:1000]
    download("cifar10", tmp_path)
    assert server.asked[-1] == ("cifar.tar.gz", "bytes=1000-")
    assert files_in(tmp_path) == sorted(BATCHES)


def test_a_part_that_is_already_whole_is_used(server, archive, tmp_path):
    (tmp_path / "cifar.tar.gz.part").write_bytes(archive)
    download("cifar10", tmp_path)
    assert files_in(tmp_path) == sorted(BATCHES)


def test_a_part_of_another_file_does_not_stay_in_the_way(server, archive, tmp_path):
    (tmp_path / "cifar.tar.gz.part").write_bytes(b"?" * 1000)
    with pytest.raises(FileFormatError, match="another file than the published one"):
        download("cifar10", tmp_path)
    assert files_in(tmp_path) == []
    download("cifar10", tmp_path)
    assert files_in(tmp_path) == sorted(BATCHES)


def test_a_corrupted_download_is_refused_and_nothing_of_it_stays(server, archive, tmp_path):
    download("cifar10", tmp_path)
    good = (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").read_bytes()
    (tmp_path / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    server.files["cifar.tar.gz"] = archive[:-1] + bytes([archive[-1] ^ 1])
    with pytest.raises(FileFormatError, match=rf"cifar\.tar\.gz.*not kept.*{sha256(archive)}"):
        download("cifar10", tmp_path)
    assert files_in(tmp_path) == sorted(BATCHES.keys() - {"cifar-10-batches-bin/test_batch.bin"})
    assert (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").read_bytes() == good


def test_entries_of_an_archive_cannot_go_elsewhere(server, monkeypatch, tmp_path):
    link = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    content = packed(
        BATCHES, (link, b""), (tarfile.TarInfo("../outside.bin"), b"x"), (tarfile.TarInfo("/abs"), b"x")
    )
    server.files["evil.tar.gz"] = content
    members = {name: sha256(data) for name, data in BATCHES.items()}
    home = Home(
        path=Path("evil.tar.gz"), urls=(server.url + "evil.tar.gz",), sha256=sha256(content), members=members
    )
    monkeypatch.setitem(HOMES, "cifar10", (home,))
    download("cifar10", tmp_path / "below")
    assert files_in(tmp_path) == sorted(f"below/{name}" for name in BATCHES)
    assert not (tmp_path / "below/cifar-10-batches-bin/test_batch.bin").is_symlink()


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (
            {**BATCHES, "cifar-10-batches-bin/test_batch.bin": RECORD},
            "test_batch.bin in .* is not the published",
        ),
        ({"cifar-10-batches-bin/test_batch.bin": RECORD * 2}, "does not hold .*data_batch_1.bin"),
        (None, "could not be stored"),
    ],
)
def test_an_archive_of_other_contents_is_refused(server, monkeypatch, tmp_path, files, named):
    content = b"no archive" if files is None else packed(files)
    server.files["odd.tar.gz"] = content
    members = {name: sha256(data) for name, data in BATCHES.items()}
    home = Home(
        path=Path("odd.tar.gz"), urls=(server.url + "odd.tar.gz",), sha256=sha256(content), members=members
    )
    monkeypatch.setitem(HOMES, "cifar10", (home,))
    with pytest.raises(FileFormatError, match=named):
        download("cifar10", tmp_path)


def test_the_second_address_serves_where_the_first_refuses(server, monkeypatch, tmp_path):
    server.files["copy/labels"] = b"content"
    home = Home(
        path=Path("MNIST", "raw", "labels"),
        urls=(server.url + "home/labels", server.url + "copy/labels"),
        sha256=sha256(b"content"),
    )
    monkeypatch.setitem(HOMES, "mnist", (home,))
    monkeypatch.setenv("VQSHIELD_CACHE", str(tmp_path / "cache"))
    assert download("mnist") == tmp_path / "cache"
    assert (tmp_path / "cache/MNIST/raw/labels").read_bytes() == b"content"
    server.files.clear()
    (tmp_path / "cache/MNIST/raw/labels").unlink()
    with pytest.raises(FileFormatError, match=r"home/labels: HTTP Error 404.*copy/labels: HTTP Error 404"):
        download("mnist")


def test_a_folder_that_cannot_be_written_is_named(server, archive, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"could not be stored in .*file"):
        download("cifar10", tmp_path / "file")


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"'imagenet'.*cifar10, cifar100, mnist"):
        download("imagenet", tmp_path)


def test_the_table_is_complete_and_agrees_with_real_copies(shared):
    assert list_downloadable() == ("mnist", "cifar10", "cifar100")
    for home in (home for each in HOMES.values() for home in each):
        assert {len(digest) for digest in (home.sha256, *home.members.values())} == {64}
    for name in ("cifar10", "cifar100"):
        for member, digest in HOMES[name][0].members.items():
            if (shared / "data" / member).is_file():
                assert sha256((shared / "data" / member).read_bytes()) == digest

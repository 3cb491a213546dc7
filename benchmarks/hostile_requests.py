"""Requests that no honest client sends, for a server of `vqshield serve` on 127.0.0.1.

python benchmarks/hostile_requests.py    sends them and prints what came back

The requests are the same every time. Each is sent on a connection of its own,
a few at a time; there are about
220 of them, and none waits for more than 30 s.
"""

import argparse
import io
import json
import random
import re
import socket
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from PIL import Image

AT_ONCE = 12
PATIENCE = 30.0  # seconds without a byte until a connection counts as hanging
KEY = "a-valid-key-for-the-hostile-requests"
LEAKS = re.compile(
    rb"Traceback|most recent call last|File \"|\.py\b|site-packages|0x[0-9a-f]{8}"
    rb"|/(?:usr|home|root|opt|tmp|var|work|etc|proc|app|source)/"
)
"""What no response may contain: tracebacks, addresses of objects, and paths."""


@dataclass(frozen=True)
class Hostile:
    """One request.

    Attributes:
        kind: what is wrong with it.
        sent: its bytes.
        end: "read" reads to the end of the connection, "reset" aborts the connection after sending, "silence"
            sends nothing more and waits.
    """

    kind: str
    sent: bytes
    end: Literal["read", "reset", "silence"] = "read"


@dataclass(frozen=True)
class Reply:
    """What came back: the status of the first response (0: none), its bytes, and whether nothing ended it."""

    kind: str
    status: int
    content: bytes
    hangs: bool


def head(*lines: str, method: str = "POST", path: str = "/classify", key: str | None = KEY) -> bytes:
    """The line and headers of a request."""
    keyed = [] if key is None else [f"Authorization: Bearer {key}"]
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", "Host: here", "Connection: close", *keyed, *lines, "", ""]
    ).encode("latin1")


def form(
    body: bytes, *lines: str, kind: str = "multipart/form-data; boundary=x", **others: str | None
) -> bytes:
    """A request with a body of that type."""
    return head(f"Content-Type: {kind}", f"Content-Length: {len(body)}", *lines, **others) + body  # type: ignore[arg-type]


def part(content: bytes, disposition: str = 'form-data; name="file"; filename="a.png"', *lines: str) -> bytes:
    """A part of a form."""
    return (
        "\r\n".join(["--x", f"Content-Disposition: {disposition}", *lines, "", ""]).encode()
        + content
        + b"\r\n"
    )


def upload(content: bytes, **others: str | None) -> bytes:
    """A form with a file, as a client should send it."""
    return form(part(content) + b"--x--\r\n", **others)


def png(
    width: int, height: int, *, data: bytes = bytes(4096), depth: int = 8, colour: int = 2, more: bytes = b""
) -> bytes:
    """A PNG file whose header may promise what its data do not hold."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + more
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def picture(kind: str = "PNG", mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> bytes:
    """An honest picture."""
    buffer = io.BytesIO()
    Image.frombytes("L", size, random.Random(1).randbytes(size[0] * size[1])).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def requests(seed: int = 0) -> list[Hostile]:
    """All of them, in a random order."""
    chance = random.Random(seed)
    made = [*_contents(chance), *_forms(chance), *_heads(chance), *_transfers(chance)]
    chance.shuffle(made)
    return made


def _contents(chance: random.Random) -> Iterator[Hostile]:
    """Uploads other than pictures, or pictures that are meant to hurt."""
    honest, jpeg = picture(), picture("JPEG")
    bombs = {
        "huge header": png(65000, 65000), "largest header": png(2**31 - 1, 2**31 - 1), "no pixels": png(0, 0),
        "just too many": png(4001, 4000), "promise": png(3000, 3000),
        "long data": png(8, 8, data=bytes(20_000_000)),
        "text": png(8, 8, more=chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(50_000_000)))),
        "many texts": png(8, 8, more=b"".join(chunk(b"tEXt", b"a\0b") for _ in range(5000))),
        "profile": png(8, 8, more=chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(50_000_000)))),
        "palette without one": png(8, 8, colour=3), "16 bits": png(8, 8, depth=16, data=bytes(8 * 49)),
        "frames": png(8, 8, more=chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
        "chunk of 4 GiB": honest[:33] + b"\xff\xff\xff\xffIDAT" + honest[41:],
        "JPEG of 65,500 pixels": re.sub(rb"(\xff\xc0..\x08)....", b"\\1\xff\xdc\xff\xdc", jpeg,
        flags=re.DOTALL),
        "bad EXIF": jpeg[:2] + b"\xff\xe1\x00\x10Exif\0\0MM\0*\xff\xff\xff\xff" + jpeg[2:],
    }  # fmt: skip
    for name, content in bombs.items():
        yield Hostile(f"bomb: {name}", upload(content))
    others = {
        "nothing": b"", "text": b"hello", "HTML": b"<html><script>alert(1)</script>", "GIF": picture("GIF",
        "P"),
        "BMP": picture("BMP"), "TIFF": picture("TIFF"), "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "ZIP": b"PK\x03\x04" + bytes(60), "ELF": b"\x7fELF" + bytes(60), "pickle": b"\x80\x04\x8c\x02os\x94.",
        "PDF": b"%PDF-1.7\n", "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "zeros": bytes(100_000), "ones": b"\xff" * 100_000, "too large": honest + bytes(300_000),
        "ICO": picture("ICO"), "WebP header": b"RIFF\x10\0\0\0WEBPVP8 " + bytes(8), "path": b"/etc/passwd",
    }  # fmt: skip
    for name, content in others.items():
        yield Hostile(f"wrong type: {name}", upload(content))
    for _ in range(24):  # broken at a random place
        source = bytearray(chance.choice((honest, jpeg)))
        for place in chance.sample(range(len(source)), chance.choice((1, 5, 50))):
            source[place] = chance.randrange(256)
        yield Hostile("broken picture", upload(bytes(source[: chance.randrange(40, len(source))])))


def _forms(chance: random.Random) -> Iterator[Hostile]:
    """Forms that are not what they say."""
    file, end = part(picture()), b"--x--\r\n"
    tricks = {
        "no file": part(b"x", 'form-data; name="other"') + end, "file as text": part(b"\xff\xfe",
        'form-data; name="file"') + end,
        "no end": file[:-2], "no parts": end, "nothing": b"", "two files": file + file + end,
        "1,001 files": part(b"x") * 1001 + end,
        "2,000 fields": b"".join(part(b"x", f'form-data; name="{n}"') for n in range(2000)) + file + end,
        "no name": part(b"x", "form-data") + end, "no disposition": b"--x\r\n\r\nx\r\n" + end,
        "path as name": part(picture(), 'form-data; name="file"; filename="../../../etc/passwd"') + end,
        "absolute path": part(b"x", 'form-data; name="file"; filename="/etc/ssh/id"') + end,
        "NUL in name": part(b"x", 'form-data; name="file\0"; filename="a\0.png"') + end,
        "long name": part(b"x", f'form-data; name="file"; filename="{"a" * 100_000}"') + end,
        "many headers": part(b"x", 'form-data; name="file"; filename="a"',
        *(f"X-{n}: y" for n in range(5000))) + end,
        "header without end": b"--x\r\nContent-Disposition: form-data; " + b"a" * 50_000,
        "nested": part(b"--y\r\n\r\nx\r\n--y--", 'form-data; name="file"',
        "Content-Type: multipart/mixed; boundary=y") + end,
        "encoded": part(b"aGVsbG8=", 'form-data; name="file"; filename="a"',
        "Content-Transfer-Encoding: base64") + end,
        "wrong boundary": file.replace(b"--x", b"--z") + end, "dashes": b"-" * 100_000,
        "boundaries": b"--x\r\n" * 20_000, "large field": part(b"x" * 150_000,
        'form-data; name="file"') + end,
        "rubbish": chance.randbytes(10_000), "rubbish after": file + end + chance.randbytes(10_000),
        "line feeds": file.replace(b"\r\n", b"\n") + end,
    }  # fmt: skip
    for name, body in tricks.items():
        yield Hostile(f"form: {name}", form(body))
    for kind in (
        "multipart/form-data", "multipart/form-data; boundary=", 'multipart/form-data; boundary="',
        "application/json",
        "application/x-www-form-urlencoded", "text/xml", "image/png", "multipart/mixed; boundary=x",
        "a" * 5000,
        f"multipart/form-data; boundary={'x' * 5000}", "multipart/form-data; boundary=x; boundary=y", "",
        "\xff\xfe",
        "multipart/form-data; boundary=x; charset=utf-16",
        "multipart/form-data; boundary=x; charset=nonsense",
    ):  # fmt: skip
        yield Hostile("form: content type", form(file + end, kind=kind))
    for body in (b'{"file": 1}', b"file=x", b"file=%ff%00", b"[" * 50_000, b"&" * 50_000):
        for kind in ("application/json", "application/x-www-form-urlencoded"):
            yield Hostile("form: none", form(body, kind=kind))


def _heads(chance: random.Random) -> Iterator[Hostile]:
    """Keys, headers, methods and paths."""
    honest = picture()
    keys = (
        "",
        "wrong",
        KEY[:-1],
        f"{KEY}x",
        KEY.upper(),
        "\xff\xfe",
        "a" * 8000,
        f"{KEY}, {KEY}",
        "../" * 20,
        "' OR 1=1 --",
    )
    for key in keys:
        yield Hostile("wrong key", upload(honest, key=key))
    yield Hostile("wrong key: none", upload(honest, key=None))
    for line in (
        f"Authorization: Bearer {KEY}",
        "Authorization: Bearer wrong",
        f"authorization: Basic {KEY}",
    ):
        yield Hostile("wrong key: two headers", form(part(honest) + b"--x--\r\n", line))
    for line in (
        "X-Forwarded-For: 10.0.0.1", "Forwarded: for=/etc/passwd", "X-Request-ID: a\tb", "Range: bytes=0-",
        "Upgrade: h2c",
        "Upgrade: websocket\r\nConnection: Upgrade", "Content-Encoding: gzip", "Accept: ../../etc/passwd",
        "Cookie: " + "a" * 9000,
        "X-Original-URL: /metrics", "X-HTTP-Method-Override: DELETE", "Host: two",
        "Accept-Encoding: " + "gzip;q=0," * 500,
        "Origin: null", "Content-Type: image/png", "Expect: 100-continue", "Expect: 200-maybe",
    ):  # fmt: skip
        yield Hostile("header", form(part(honest) + b"--x--\r\n", line))
    for raw in (
        b"Content-Length: -1", b"Content-Length: 99999999999999999999",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 0x10", b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, chunked", b"Bad Header: x", b"X: a\x00b", b"X: a\nY: b", b": empty",
        b"X", b" folded",
        b"X: a\r\n folded", b"\xff\xfe: x", b"X: " + b"a" * 1_000_000,
        b"\r\n".join(b"X-%d: y" % n for n in range(3000)),
    ):  # fmt: skip
        yield Hostile("raw header", b"POST /classify HTTP/1.1\r\nHost: here\r\n" + raw + b"\r\n\r\nhello")
    for method in (
        "GET",
        "PUT",
        "DELETE",
        "PATCH",
        "HEAD",
        "OPTIONS",
        "TRACE",
        "CONNECT",
        "PROPFIND",
        "x",
        "POST" * 900,
    ):
        yield Hostile("method", head(method=method))
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
        yield Hostile("method", head("Content-Length: 5", path=path) + b"hello")
    for path in (
        "/../../../etc/passwd", "/classify/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//classify",
        "/classify/", "/CLASSIFY",
        "/classify%00", "/classify?file=/etc/passwd", "/classify#x", "/docs", "/redoc", "/static/../x.py",
        "/%ff%fe", "*", "classify",
        "http://evil.example/classify", "/" + "a" * 12_000, "/{0.__class__}", "/%0d%0aX: y",
        "/healthz/%2e%2e/metrics", "/\xff",
    ):  # fmt: skip
        yield Hostile("path", head(method=chance.choice(("GET", "POST")), path=path))
    for raw in (
        b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5000,
        chance.randbytes(5000),
        b"GET /" + b"a" * 2_000_000,
    ):  # fmt: skip
        yield Hostile("no HTTP", raw)


def _transfers(chance: random.Random) -> Iterator[Hostile]:
    """Requests that do not arrive as a whole."""
    whole = upload(picture("PNG", "RGB", (90, 90)))
    for _ in range(10):
        cut = chance.randrange(1, len(whole) - 1)
        yield Hostile("slow upload", whole[:cut], "silence")
        yield Hostile("aborted upload", whole[:cut], "reset")
    yield Hostile("aborted upload: after sending", whole, "reset")
    chunked = head("Content-Type: multipart/form-data; boundary=x", "Transfer-Encoding: chunked")
    for raw in (
        b"zz\r\n",
        b"5\r\nhel",
        b"-5\r\nhello\r\n",
        b"ffffffffffffffff\r\nx",
        b"5;" + b"a" * 50_000,
        b"0\r\n\r\n",
        b"1\r\nx\r\n" * 30_000,
    ):
        yield Hostile("chunks", chunked + raw, "silence")
    yield Hostile("pipelined", upload(picture()).replace(b"Connection: close\r\n", b"") * 5)
    yield Hostile(
        "smuggled", form(b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "Transfer-Encoding: chunked")
    )


def sent_to(port: int, made: Sequence[Hostile]) -> list[Reply]:
    """The replies of the server on that port of this machine."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda each: _reply(port, each), made))


def _reply(port: int, hostile: Hostile) -> Reply:
    content, hangs = b"", False
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            connection.sendall(hostile.sent)
            if hostile.end == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                while received := connection.recv(65536):
                    content += received
        except TimeoutError:
            hangs = True
        except ConnectionError:
            pass
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", content)
    return Reply(hostile.kind, int(status[1]) if status else 0, content, hangs)


def found_wrong(replies: Sequence[Reply]) -> list[str]:
    """What should not be in replies: failures of the server, connections that hang, and leaks."""
    wrong = [f"{each.kind}: hangs" for each in replies if each.hangs]
    wrong += [
        f"{each.kind}: {each.status}" for each in replies if re.search(rb"HTTP/1\.1 50[0-24-9]", each.content)
    ]
    for each in replies:
        wrong += [f"{each.kind}: {leak.decode(errors='replace')}" for leak in LEAKS.findall(each.content)]
    return wrong


def summary(replies: Sequence[Reply]) -> dict[str, dict[str, int]]:
    """How often each status came back, by the first words of the kinds; "0": closed without a response."""
    counts: dict[str, Counter[str]] = {}
    for each in replies:
        counts.setdefault(each.kind.partition(":")[0], Counter())[str(each.status)] += 1
    return {kind: dict(sorted(counts[kind].items())) for kind in sorted(counts)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Send hostile requests to a server of this machine.")
    parser.add_argument("port", type=int)
    replies = sent_to(parser.parse_args().port, requests())
    print(json.dumps(summary(replies), indent=1))
    sys.exit("\n".join(found_wrong(replies)) or None)


if __name__ == "__main__":
    main()

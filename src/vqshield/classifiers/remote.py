"""A classifier behind HTTP: it is queried with 8-bit PNG images, has no gradients, and may be random.

"http://127.0.0.1:8000/classify#calls=5000,rate=20" is an address and, after #, settings of an `Endpoint`,
which are never sent. A server is not trusted: an answer is read up to a length and a time, redirects are not
followed, and compressed answers are refused.
"""

import atexit
import base64
import http.client
import json
import logging
import math
import os
import re
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, get_args, get_type_hints
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from vqshield.classifiers.normalised import Normalised
from vqshield.core import checks
from vqshield.core.errors import InvalidInputError, NoGradientError, VqshieldError, printable
from vqshield.core.files import parse_json, read_text
from vqshield.core.serialization import from_plain
from vqshield.core.settings import parse_spec, refuse_unknown
from vqshield.images.files import encode_png

MOST_BYTES = 1 << 20  # of an answer: the scores of 20,000 classes
POLITE = 10.0  # requests per second to other machines
_AGAIN = (429, 502, 503, 504)
_LONGEST_WAIT = 30.0
_LEAST = 1e-12  # a probability that was rounded to 0
_IMAGE = "{image}"
_TURNS = threading.Lock()
_PRINTED = re.compile("[!-~]+")
_LOG = logging.getLogger("vqshield")


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a remote classifier is, and how it is queried. The defaults fit `vqshield serve`.

    Attributes:
        address: of http:// or https://, without a password.
        calls: the most requests that a process makes, repeated ones included.
        rate: requests per second (default: 10; no limit for this machine).
        timeout: seconds that a request may take in all.
        connections: requests under way at once.
        retries: repeat a request this often after a broken connection, 429, 502, 503 or 504.
        form: the name of the form field with the PNG; "body": the PNG is the whole body.
        template: a JSON file to send instead, with "{image}" where the PNG belongs, in base64.
        scores: path of the scores in the answer, as "result.scores": a list with a number per class.
        label: path of the class index, if it has no scores.
        score: path of the probability of that class; without it, the answer is the class alone.
        classes: how many classes there are (default: those of the data).
        key: the environment variable with the key that is sent as "Authorization: Bearer KEY".
        fixed: whether equal images always get equal answers; it is assumed that they do not.
    """

    address: str
    calls: int = 10_000
    rate: float | None = None
    timeout: float = 10.0
    connections: int = 1
    retries: int = 2
    form: str = "file"
    template: str | None = None
    scores: str | None = None
    label: str = "index"
    score: str = "probability"
    classes: int | None = None
    key: str | None = None
    fixed: bool = False

    def __post_init__(self) -> None:
        try:
            url = urlsplit(self.address)
            valid = is_remote(self.address) and url.hostname and url.port != 0 and "@" not in url.netloc
        except ValueError:  # a port that is not a number, half an IPv6 address
            valid = False
        if not valid or not _PRINTED.fullmatch(self.address):
            raise InvalidInputError(
                f"classifier={self.address!r} should be http:// or https://, a host and a path, in ASCII "
                "without spaces or a password (key=VARIABLE names an environment variable with a key)"
            )
        for name, least in (("calls", 1), ("retries", 0), ("connections", 1), ("classes", 2)):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), least=least)
        checks.real("timeout", self.timeout, least=0.001, most=600.0)
        if self.rate is not None:
            checks.real("rate", self.rate, least=0.001)
        if self.key is not None and not _PRINTED.fullmatch(os.environ.get(self.key, "")):
            raise InvalidInputError(f"key={self.key} should be an environment variable with a key; set it")

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """The endpoint of an address with settings after #."""
        address, _, rest = text.partition("#")
        kinds = get_type_hints(cls)
        settings: dict[str, object] = {"address": address}
        for pair in rest.split(",") if rest else ():
            name, _, value = pair.partition("=")
            refuse_unknown("a remote classifier", [name], list(kinds)[1:])
            is_text = str in (kinds[name], *get_args(kinds[name]))
            settings[name] = value if is_text else parse_spec(f"remote:{pair}")[1][name]
        return from_plain(cls, settings, text)

    @property
    def is_local(self) -> bool:
        """Whether it is on this machine."""
        return urlsplit(self.address).hostname in ("127.0.0.1", "::1", "localhost")


class Remote(nn.Module):
    """8-bit images to logits, by requests; calls: how many were made, repeated ones included."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.endpoint, self.classes, self.calls = endpoint, endpoint.classes, 0
        self._idle: list[http.client.HTTPConnection] = []
        self._next = 0.0
        self._template = None if endpoint.template is None else read_text(Path(endpoint.template))
        if self._template is not None:
            parse_json(self._template, endpoint.template)
            if f'"{_IMAGE}"' not in self._template:
                raise InvalidInputError(f'template={endpoint.template} has no "{_IMAGE}" for the image')

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, classes) for images (B, q, h, w) in [0, 1], which are rounded to bytes."""
        if images.requires_grad and torch.is_grad_enabled():
            raise NoGradientError(f"{self.endpoint.address} has no gradients; {WITHOUT_GRADIENTS}")
        pixels = checks.image_batch(images).detach().mul(255).round().byte().permute(0, 2, 3, 1)
        pool = ThreadPoolExecutor(self.endpoint.connections)
        try:
            answers = pool.map(self._answer, map(encode_png, pixels.cpu().numpy()))
            rows = list(map(self._logits, answers))
        finally:
            pool.shutdown(cancel_futures=True)
        if any(len(row) != len(rows[0]) for row in rows):
            raise self._wrong(f"answers have {sorted({len(row) for row in rows})} scores")
        return torch.tensor(rows, dtype=images.dtype, device=images.device)

    def _answer(self, png: bytes) -> Any:
        """The JSON that the server answers with."""
        failure = ""
        for attempt in range(self.endpoint.retries + 1):
            wait = 0.1 * 2**attempt
            with _TURNS:
                self._wait_for_turn()
            try:
                status, headers, body = self._request(png)
            except (OSError, http.client.HTTPException) as error:
                failure = f"no answer ({type(error).__name__}: {error})"
            else:
                if status == 200:
                    return parse_json(body, f"{self.endpoint.address}: its answer {_beginning(body)}")
                failure = f"status {status}, {_beginning(body)}"
                if 300 <= status < 400:
                    failure += f"; redirects are not followed, here to {headers.get('Location')!s:.200}"
                if status not in _AGAIN:
                    break
                with suppress(ValueError):
                    wait = max(wait, float(headers.get("Retry-After", "")))
            if attempt < self.endpoint.retries:
                time.sleep(min(wait, _LONGEST_WAIT))
        raise self._wrong(failure)

    def _request(self, png: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        """One request; its whole time and the length of its answer are bounded."""
        url, timeout, started = urlsplit(self.endpoint.address), self.endpoint.timeout, time.monotonic()
        body, headers = self._body(png)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        try:
            connection = self._idle.pop()
        except IndexError:  # all are under way
            connection = kind(str(url.hostname), url.port, timeout=timeout)
        # A socket's own timeout is of each byte: a server that sends one now and then would never end.
        watch = threading.Timer(timeout, _cut, [connection])
        watch.start()
        try:
            connection.request("POST", url._replace(scheme="", netloc="").geturl() or "/", body, headers)
            answer = connection.getresponse()
            content = answer.read(MOST_BYTES + 1)
            if time.monotonic() - started >= timeout:
                raise TimeoutError(f"more than timeout={timeout:g} s")
            if len(content) > MOST_BYTES:
                raise self._wrong(f"its answer has more than {MOST_BYTES} bytes")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise self._wrong("its answer is compressed, which is not read")
        except BaseException:
            connection.close()
            raise
        finally:
            watch.cancel()
        if answer.will_close or not answer.isclosed():
            connection.close()
        else:
            self._idle.append(connection)
        return answer.status, answer.headers, content

    def _body(self, png: bytes) -> tuple[bytes, dict[str, str]]:
        """The body of a request, and its headers."""
        kind, body = "image/png", png
        if self._template is not None:
            kind = "application/json"
            body = self._template.replace(_IMAGE, base64.b64encode(png).decode()).encode()
        elif self.endpoint.form != "body":
            line = f"--{secrets.token_hex(16)}"
            name = json.dumps(self.endpoint.form)
            head = f'{line}\r\nContent-Disposition: form-data; name={name}; filename="image.png"\r\n'
            body = f"{head}Content-Type: image/png\r\n\r\n".encode() + png + f"\r\n{line}--\r\n".encode()
            kind = f"multipart/form-data; boundary={line[2:]}"
        headers = {"Content-Type": kind, "Accept": "application/json", "Accept-Encoding": "identity"}
        if self.endpoint.key is not None:
            headers["Authorization"] = f"Bearer {os.environ[self.endpoint.key]}"
        return body, headers

    def _wait_for_turn(self) -> None:
        """Count a call, and wait where the rate asks for it."""
        endpoint = self.endpoint
        if self.calls >= endpoint.calls:
            raise VqshieldError(
                f"the budget of {endpoint.calls:,} calls to {endpoint.address} is spent; give a larger one "
                "(#calls=N), fewer images, or fewer queries"
            )
        if self.calls == 0:
            _LOG.warning(
                "images are sent to %s, at most %s; query only what its owner has permitted",
                endpoint.address, f"{endpoint.calls:,}",
            )  # fmt: skip
        self.calls += 1
        rate = endpoint.rate or (math.inf if endpoint.is_local else POLITE)
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / rate

    def _logits(self, answer: Any) -> list[float]:
        """Logits from scores, or from the class and its probability."""
        endpoint = self.endpoint
        if endpoint.scores is not None:
            scores = _at(answer, endpoint.scores)
            if not isinstance(scores, list) or len(scores) < 2 or not all(map(_is_number, scores)):
                raise self._wrong(f"{endpoint.scores} in {_shown(answer)} is not a list of finite numbers")
            return _log(scores) if min(scores) >= 0 and abs(sum(scores) - 1) < 1e-3 else scores
        index, share = _at(answer, endpoint.label), _at(answer, endpoint.score)
        if self.classes is None:
            raise self._wrong("answers have no scores, so #classes=N has to say how many classes there are")
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self.classes:
            raise self._wrong(
                f"{endpoint.label} in {_shown(answer)} is not a class from 0 to {self.classes - 1} "
                "(a vote that abstains gives none: serve it with --no-abstain)"
            )
        share = 1.0 if share is None else share
        if not _is_number(share) or not 0 <= share <= 1:
            raise self._wrong(f"{endpoint.score} in {_shown(answer)} is not a probability")
        logits = _log([(1 - share) / (self.classes - 1)] * self.classes)
        logits[index] = max(*_log([share]), max(logits) + 1e-6)  # it is the class, whatever its share
        return logits

    def _wrong(self, what: str) -> InvalidInputError:
        return InvalidInputError(f"{self.endpoint.address}: {what}")


WITHOUT_GRADIENTS = "square, rays and noise need none, nor do transfer attacks and repeated submissions"


def is_remote(text: str) -> bool:
    """Whether this names a classifier behind HTTP."""
    return text.startswith(("http://", "https://"))


@cache
def remote_classifier(text: str) -> Normalised:
    """The classifier of an address with settings; one per process, so that its budget holds for all of it."""
    remote = Remote(Endpoint.parse(text))
    atexit.register(_say_calls, remote)
    return Normalised(remote, mean=[0.0], std=[1.0]).eval()


def remote_part(model: nn.Module) -> Remote | None:
    """The remote network of a model, if it has one."""
    return next((module for module in model.modules() if isinstance(module, Remote)), None)


def _say_calls(remote: Remote) -> None:
    if remote.calls:
        _LOG.info("%s: calls made: %d", remote.endpoint.address, remote.calls)


def _cut(connection: http.client.HTTPConnection) -> None:
    """End a request that takes too long, whatever it waits for."""
    with suppress(OSError, AttributeError):  # not connected yet, or no more
        connection.sock.shutdown(socket.SHUT_RDWR)


def _at(answer: Any, path: str) -> Any:
    """The value at "result.0.label"; None where there is none."""
    for name in path.split("."):
        if isinstance(answer, dict):
            answer = answer.get(name)
        elif isinstance(answer, list) and name.isdecimal() and int(name) < len(answer):
            answer = answer[int(name)]
        else:
            return None
    return answer


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30


def _log(shares: list[float]) -> list[float]:
    return [math.log(max(share, _LEAST)) for share in shares]


def _beginning(body: bytes) -> str:
    return repr(printable(body[:80].decode(errors="replace")))


def _shown(answer: Any) -> str:
    return str(answer)[:200]
